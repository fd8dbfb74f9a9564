"""Optional packages stay optional, and every module imports only from the layers below it."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import contentrope

PACKAGE = Path(contentrope.__file__).parent
OPTIONAL = (
    "triton", "transformers", "matplotlib", "tyro", "rich", "accelerate", "peft", "beartype", "hypothesis", "faker",
    "fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client", "ray",
)  # fmt: skip

# Lowest first. A module may import from lower layers and from its own.
LAYERS = (
    {"config", "devices", "errors", "files", "outputs", "sealed", "version"},
    {"rotary", "stacked", "units"},
    {"kernels"},
    {"address", "attention", "cache", "parallel", "window"},
    {"context"},
    {"schemes"},
    {"model"},
    {"generation", "checkpoint", "inspection"},
    {"public"},
    {"cluster", "corpora", "results", "text_model"},
    {"training"},
    {"evaluation", "hf"},
    {"store"},
    {"serving"},
    {"cli"},
)
ABOVE_THE_CORE = {
    "cluster",
    "corpora",
    "results",
    "text_model",
    "training",
    "evaluation",
    "hf",
    "store",
    "serving",
    "cli",
}


def run_fresh(program: str) -> str:
    """Run a program in a new interpreter, where nothing has been imported yet."""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


# Every finder is asked through one that knows nothing of the blocked packages, so that they look not installed: some
# builds of torch ask find_spec("triton") while they are imported, and expect None rather than an error.
BLOCK_OPTIONAL = f"""
import sys

class WithoutOptional:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL!r} else self.finder.find_spec(name, path, target)

    def find_distributions(self, *asked):
        found = getattr(self.finder, "find_distributions", lambda *asked: ())(*asked)
        return [one for one in found if one.metadata["Name"].lower() not in {OPTIONAL!r}]

sys.meta_path[:] = map(WithoutOptional, sys.meta_path)
"""


@pytest.mark.parametrize("package", ["hypothesis", "rich"])
def test_a_blocked_package_looks_not_installed(package: str) -> None:
    """As Python itself says of a package that is not there; that these two are there, the second line shows."""
    ask = f"""
import importlib.metadata, importlib.util
print(importlib.util.find_spec({package!r}) is None)
print({package!r} in {{one.metadata["Name"] for one in importlib.metadata.distributions()}})
try:
    import {package}
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run_fresh(BLOCK_OPTIONAL + ask).split() == ["True", "False", package]
    assert run_fresh(ask).split() == ["False", "True"]


def test_the_library_works_without_any_optional_package() -> None:
    out = run_fresh(
        BLOCK_OPTIONAL
        + f"""
import torch
import contentrope as cr

config = cr.ModelConfig(vocab_size=9, dim=16, layers=1, heads=2, terminators=(0,))
model = cr.Transformer(config)
ids = torch.tensor([[1, 2, 0, 3]])
model(ids).sum().backward()
cr.generate(model, ids, 3)
print(sorted(set({OPTIONAL!r}) & set(sys.modules)))
"""
    )
    assert out.strip() == "[]"


@functools.cache
def modules_after(program: str) -> set[str]:
    return set(json.loads(run_fresh(f"import sys, json; {program}\nprint(json.dumps(sorted(sys.modules)))")))


THE_LIBRARY = "from contentrope import *"


def test_importing_the_library_imports_no_optional_package() -> None:
    """Installed or not: torch may look for some by itself, so only what contentrope adds counts."""
    added = {name.partition(".")[0] for name in modules_after(THE_LIBRARY) - modules_after("import torch")}
    assert "contentrope" in added
    assert not added & set(OPTIONAL)


def test_importing_the_library_imports_nothing_above_the_core() -> None:
    parts = {name.split(".")[1] for name in modules_after(THE_LIBRARY) if name.startswith("contentrope.")}
    assert {"model", "schemes", "units"} <= parts
    assert not parts & ABOVE_THE_CORE


@pytest.mark.parametrize("module", ["contentrope", "contentrope.cli"])
def test_torch_is_not_imported_before_it_is_needed(module: str) -> None:
    assert "torch" not in modules_after(f"import {module}")


def test_the_package_has_its_public_names_and_its_modules_and_no_others() -> None:
    assert {"Transformer", "generate", "__version__", "__all__"} <= set(dir(contentrope))
    assert set(contentrope.__all__) <= set(dir(contentrope))
    assert all(hasattr(contentrope, name) for name in contentrope.__all__)
    assert run_fresh("import contentrope; print(contentrope.schemes.names()[0])").strip() == "content"
    assert not hasattr(contentrope, "nothing_of_this_name")
    assert not hasattr(contentrope, "__wrapped__")


def test_using_the_library_leaves_the_environment_alone() -> None:
    ask = "import os; before = dict(os.environ); from contentrope import *; print(dict(os.environ) == before)"
    assert run_fresh(ask).strip() == "True"


# --- layers ----------------------------------------------------------------------------------------------------


def imported_names(tree: ast.AST, module: str, is_package: bool = False) -> Iterator[str]:
    """Every module name imported anywhere in a tree, imports inside functions included, as absolute names."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["contentrope", *package]
            anchor = ".".join(above[: len(above) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (anchor, node.module)))
            yield source
            # "from contentrope import schemes" names the module in its list.
            yield from (f"{source}.{alias.name}" for alias in node.names)


@functools.cache
def own_modules() -> dict[str, Path]:
    """Dotted name below the package -> file; a package's own name stands for its __init__."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts and parts != ["__main__"]:
            found[".".join(parts)] = path
    return found


def own_imports(module: str, path: Path) -> set[str]:
    """The library's own modules that a module imports, as dotted names below the package."""
    names = imported_names(ast.parse(path.read_text()), module, path.name == "__init__.py")
    below = {name.removeprefix("contentrope.") for name in names if name.startswith("contentrope.")}
    return {name for name in below if name.split(".")[0] in {m.split(".")[0] for m in own_modules()}}


def layer_of(module: str) -> int:
    top = module.split(".")[0]
    for height, layer in enumerate(LAYERS):
        if top in layer:
            return height
    raise AssertionError(f"{module} stands in no layer: place it in LAYERS")


@pytest.mark.parametrize("module", own_modules())
def test_imports_go_downwards(module: str) -> None:
    own_top = module.split(".")[0]
    for imported in sorted(own_imports(module, own_modules()[module])):
        same_part = imported.split(".")[0] == own_top
        assert same_part or layer_of(imported) <= layer_of(module), f"{module} imports {imported} from above"


def test_the_library_imports_no_experiment() -> None:
    """They are not installed with it."""
    for module, path in own_modules().items():
        names = imported_names(ast.parse(path.read_text()), module, path.name == "__init__.py")
        assert not [name for name in names if name.partition(".")[0] == "experiments"], module


def test_only_the_entry_points_import_the_public_package() -> None:
    """``import contentrope`` inside the library would import everything, whatever the layer."""
    for module, path in own_modules().items():
        imports = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
        assert "contentrope" not in imports or layer_of(module) >= layer_of("hf"), module


def test_neighbours_in_a_layer_do_not_import_each_other_in_circles() -> None:
    top_level: dict[str, set[str]] = {}
    for module, path in own_modules().items():
        parts = {name.split(".")[0] for name in own_imports(module, path)}
        top_level.setdefault(module.split(".")[0], set()).update(parts)
    reached: dict[str, set[str]] = {part: set(direct) - {part} for part, direct in top_level.items()}
    for _ in reached:
        for part in reached:
            reached[part] |= set().union(*(reached[other] for other in reached[part])) - {part}
    for part, others in reached.items():
        assert not [other for other in others if part in top_level[other] and other != part], part


def test_backends_do_not_know_each_other() -> None:
    backends = {"reference", "tiled", "flex", "plain"}
    for backend in backends:
        module = f"attention.{backend}"
        imported = {
            name.split(".")[1] for name in own_imports(module, own_modules()[module]) if name.startswith("attention.")
        }
        assert not imported & (backends - {backend}), backend
        assert "api" not in imported, backend


def test_these_tests_see_the_imports_there_are() -> None:
    """A parser that finds nothing would find no fault either."""
    assert "rotary" in own_imports("address", PACKAGE / "address.py")
    assert "schemes" in own_imports("model", PACKAGE / "model.py")
    relative = ast.parse("from ..units import table\nfrom . import pairs")
    assert {"contentrope.units.table", "contentrope.attention.pairs"} <= set(imported_names(relative, "attention.api"))
    inside = ast.parse("def f():\n    import contentrope.model")
    assert list(imported_names(inside, "units.table")) == ["contentrope.model"]
