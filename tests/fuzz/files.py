"""What was saved comes back to the bit, or is refused by an error of the project that names where it lies."""

from __future__ import annotations

import functools
import json
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import contentrope as cr
import contentrope.hf as chf
from contentrope.corpora import CharVocabulary
from contentrope.results import read_json, write_json
from contentrope.text_model import load_text_model, save_text_model
from contentrope.training import checkpoint as training
from tests.fuzz.engine import Area, Distances, Program, Step
from tests.hf.models import attached
from tests.support import lively_model

OURS = (cr.InputError, cr.BackendError, cr.CacheError, cr.CheckpointError)
SILENT = ("results",)
"""Kinds without a checksum: other numbers may come back."""
VALUES = (None, True, -1, 0, 1.5, 1e999, 10**30, "", "a" * 9, [], [[1]], {}, {"format": 1}, "\ud800")
NESTED = b'{"a":' * 100_000 + b"1" + b"}" * 100_000

Files = dict[str, bytes]
Snapshot = dict[str, Any]


class Kind(NamedTuple):
    write: Callable[[Path, int], Any]
    """``seed``: two of a kind have the same settings and other numbers."""
    read: Callable[[Path], Snapshot]


def bits(tensors: Mapping[str, Tensor]) -> Snapshot:
    return {
        name: (t.dtype, tuple(t.shape), t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, t in tensors.items()
    }


def core_model(seed: int) -> cr.Transformer:
    return lively_model("content", seed=seed, layers=1, dim=8, heads=1, options={"learn_competition": True})


def read_core(folder: Path) -> Snapshot:
    model = cr.load(folder)
    return {"config": model.config.to_dict(), **bits(model.state_dict())}


def read_into(folder: Path) -> Snapshot:
    model = core_model(9)
    return unless_refused(model, lambda: cr.load_into(model, folder), lambda: bits(model.state_dict()))


def unless_refused(model: nn.Module, load: Callable[[], None], state: Callable[[], Snapshot]) -> Snapshot:
    """What was loaded; a model that refuses a file is left as it was."""
    before = state()
    try:
        load()
    except OURS:
        assert state() == before, "a refused file has changed the model"
        raise
    return state()


def read_text_model(folder: Path) -> Snapshot:
    model, vocabulary = load_text_model(folder)
    return {"vocabulary": vocabulary.to_dict(), **bits(model.state_dict())}


@functools.cache
def attached_model(seed: int) -> nn.Module:
    return attached("llama", positions=0.5, num_hidden_layers=1, seed=seed)


def write_addresses(folder: Path, seed: int) -> None:
    model = attached_model(seed)
    with torch.no_grad():
        for weight in model.contentrope.parameters():
            weight.fill_(seed + 0.25)
    chf.save(model, folder)


def read_addresses(folder: Path) -> Snapshot:
    model, adapter = attached_model(9), chf.adapter_of(attached_model(9))

    def state() -> Snapshot:
        return {"settings": json.dumps(adapter.settings()), **bits(adapter.trained.state_dict())}

    return unless_refused(model, lambda: chf.load(model, folder), state)


def write_training(folder: Path, seed: int) -> None:
    model = core_model(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 0, 2]])).sum().backward()
    optimizer.step()
    tensors = {name: training.copied(t) for name, t in training.named_tensors(model, optimizer).items()}
    state = {"step": 3, "loss": 1.5 + seed, "norm": 0.5, "tokens_per_step": 3, "seconds": 1.0}
    training.save(folder, 3, tensors, {**state, "settings": {"seed": seed}})


def read_training(folder: Path) -> Snapshot:
    found = training.latest(folder)
    assert found is not None, "a checkpoint is there, and none was found"
    return {"state": found[1], **bits(found[0])}


def write_results(folder: Path, seed: int) -> None:
    write_json(folder / "results.json", {"settings": {"seed": seed, "lengths": [1, 2]}, "rows": [{"loss": 1.5 + seed}]})


KINDS = {
    "core": Kind(lambda folder, seed: cr.save(core_model(seed), folder), read_core),
    "core into a model": Kind(lambda folder, seed: cr.save(core_model(seed), folder), read_into),
    "text model": Kind(
        lambda folder, seed: save_text_model(folder, core_model(seed), CharVocabulary("\nabcdefghij")), read_text_model
    ),
    "addresses": Kind(write_addresses, read_addresses),
    "training": Kind(write_training, read_training),
    "results": Kind(write_results, lambda folder: {"data": read_json(folder / "results.json")}),
}


def draw(random: Random) -> Program:
    kind = random.choice(list(KINDS))
    return Program({"kind": kind}, tuple(draw_step(random, kind) for _ in range(random.choice([0, 1, 1, 1, 1, 2, 3]))))


def draw_step(random: Random, kind: str) -> Step:
    what = random.choice(["flip", "flip", "truncate", "zero", "delete", "swap", "edit", "edit", "edit", "nest"])
    if what == "delete" and kind == "results":
        what = "truncate"  # a file that is not there is not damaged: asked for by its name, it is not found
    return what, random.random(), random.random(), random.randrange(64)


def run(program: Program) -> Distances:
    name = program.settings["kind"]
    whole = saved(name, 1)
    files = dict(whole)
    for step in program.steps:
        damage(files, saved(name, 2), *step)
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder), files, whole)
        found = found_in(Path(folder), name)
        if isinstance(found, OURS):
            assert files != whole, f"a whole {name} was refused: {found}"
            assert folder in str(found), f"which file is damaged is not said: {found}"
    if not isinstance(found, Exception):
        same = any(found == original(name, seed) for seed in (1, 2))  # all files swapped are another whole one
        assert same or (name in SILENT and files != whole), f"a damaged {name} gave other numbers without a word"
    return {}


def found_in(folder: Path, name: str) -> Snapshot | Exception:
    try:
        return KINDS[name].read(folder)
    except OURS as error:
        return error


@functools.cache
def saved(name: str, seed: int) -> Files:
    with tempfile.TemporaryDirectory() as place:
        KINDS[name].write(Path(place), seed)
        paths = sorted(path for path in Path(place).rglob("*") if path.is_file())
        return {str(path.relative_to(place)): path.read_bytes() for path in paths}


@functools.cache
def original(name: str, seed: int) -> Snapshot:
    with tempfile.TemporaryDirectory() as place:
        lay_out(Path(place), saved(name, seed), ())
        return KINDS[name].read(Path(place))


def lay_out(folder: Path, files: Files, were: Iterable[str]) -> None:
    """``were``: files whose folders are there, though they may be gone."""
    for name in (*files, *were):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def damage(files: Files, others: Files, what: str, which: float, where: float, number: int) -> None:
    """``which`` and ``where`` are shares: of the files there are, and of the bytes or values of one."""
    if not files:
        return
    name = sorted(files)[int(which * len(files))]
    data = files[name]
    at = int(where * len(data))
    if what == "flip":
        data = data[:at] + bytes([data[at] ^ 1 << number % 8]) + data[at + 1 :] if data else data
    elif what == "zero":
        end = min(at + 2 ** (number % 12), len(data))
        data = data[:at] + bytes(end - at) + data[end:]
    elif what == "edit":
        data = edited(data, where, VALUES[number % len(VALUES)])
    else:
        data = {"truncate": data[:at], "swap": others[name], "nest": NESTED, "delete": b""}[what]
    files[name] = data
    if what == "delete":
        del files[name]


def edited(data: bytes, where: float, value: Any) -> bytes:
    """One value of the JSON, or of the header of a safetensors file, is another, or its key is gone."""
    try:
        return json.dumps(with_value(json.loads(data), where, value)).encode()
    except (ValueError, RecursionError):
        pass
    if len(data) < 8 or (length := struct.unpack("<Q", data[:8])[0]) > len(data):
        return data
    try:
        header = with_value_in_header(json.loads(data[8 : 8 + length]), where, value)
    except (ValueError, RecursionError):
        return data
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def with_value_in_header(header: Any, where: float, value: Any) -> bytes:
    """Every second time it is one of the settings, which the header holds as text."""
    carried = header.get("__metadata__") if isinstance(header, dict) else None
    texts = sorted(k for k, v in carried.items() if isinstance(v, str)) if isinstance(carried, dict) else []
    if texts and where < 0.5:
        settings = json.loads(carried[texts[0]])
        header["__metadata__"] = {**carried, texts[0]: json.dumps(with_value(settings, 2 * where, value))}
        return json.dumps(header).encode()
    return json.dumps(with_value(header, 2 * where % 1, value)).encode()


def with_value(tree: Any, where: float, value: Any) -> Any:
    """The whole of it is one of the places too."""
    places = [(), *paths_of(tree)]
    path = places[int(where * len(places))]
    if not path:
        return value
    *above, last = path
    inner = tree
    for key in above:
        inner = inner[key]
    if value is True and isinstance(inner, dict):
        del inner[last]
    else:
        inner[last] = value
    return tree


def paths_of(tree: Any) -> list[tuple[Any, ...]]:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [path for key in keys for path in ((key,), *((key, *rest) for rest in paths_of(tree[key])))]


AREA = Area("files", draw, run)
