"""The examples, options, names and links of the documents are right."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import contentrope as cr
import contentrope.hf as chf
from contentrope.cli import main
from experiments.command import Places, presets_of, settings_of
from experiments.docs_tables import ROOT, documents
from experiments.facts.show import OPTIONS as SHOWN
from experiments.results import EXPERIMENTS

DOCUMENTS = [*documents(), ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL):
        exec(compile(example, document.name, "exec"), names)


OF_OTHERS = {
    "cpu",
    "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_version",
    "help",
    "local-dir",
    "multi_gpu",
    "nproc-per-node",
    "nproc_per_node",
    "num_processes",
    "tool",
    "tyro-print-completion",
    "use_fsdp",
}
"""Options of accelerate, torchrun, hf, compute-sanitizer and tyro."""
PARSED = (
    "src/contentrope/cli",
    "benchmarks",
    "tests/fuzz",
    "experiments/facts/show.py",
    "experiments/open_model/weights.py",
)


def own_options() -> set[str]:
    """Fields of the commands' dataclasses, the settings of experiments, and what other parsers take."""
    places = [ROOT / name for name in PARSED]
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*.py"))]
    source = "\n".join(path.read_text() for path in (*files, ROOT / "src/contentrope/training/config.py"))
    fields = {name.replace("_", "-") for name in re.findall(r"^    (\w+):", source, re.MULTILINE)}
    fields |= {field.name for field in dataclasses.fields(Places)}
    fields |= {one.name.replace("_", "-") for name in EXPERIMENTS for one in settings_of(presets_of(name)["quick"])}
    return fields | SHOWN.keys() | {"preset", "check"} | set(re.findall(r'"--([a-z-]+)"', source))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_options_are_those_of_the_commands(document: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--([a-z][\w-]+)", document.read_text()))
    assert named - own_options() - OF_OTHERS == set()


def test_a_word_that_is_no_option_is_not_taken_for_one() -> None:
    assert {"ramp", "answers-after", "preset", "backend"} <= own_options()
    assert not {"learning", "original", "self", "vocab-size"} & own_options()


MODULE = re.compile(r"python -m ((?:experiments|benchmarks|tests)[\w.]*)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_are_run_are_there(document: Path) -> None:
    for module in MODULE.findall(document.read_text()):
        place = ROOT.joinpath(*module.rstrip(".").split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text()
    errors = {name for name in cr.__all__ if name.endswith("Error")}
    names = {f"contentrope.{name}" for name in set(cr.__all__) - errors - {"__version__"}}
    names |= {f"contentrope.hf.{name}" for name in set(chf.__all__) - {"adapter_of"}}
    assert names <= set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    assert all(name in page for name in errors)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#][^)]*)\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_is_given_its_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--tyro-print-completion", shell])
    assert not done.value.code
    script = capsys.readouterr().out
    assert all(command in script for command in ("train", "finetune", "--tokens"))
