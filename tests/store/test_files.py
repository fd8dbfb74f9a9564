"""Files of a store are whole or not there, belong to one model, and what is damaged is said and not read."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

import contentrope as cr
import contentrope.hf as chf
from contentrope import files
from contentrope.store import UnitStore, catalog, unit_store
from contentrope.store.places import Folder, place_of
from tests.hf.models import TERMINATOR, enliven, tiny
from tests.store.helpers import DOCUMENTS, LONG, asked, model_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["folder", "local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}"
    else:
        yield f"file://{tmp_path}/store" if request.param == "local" else str(tmp_path / "store")


def test_a_store_is_opened_again(address: str) -> None:
    model = model_for(dtype=torch.bfloat16)
    store = UnitStore(address, model)
    keys = store.add([*DOCUMENTS, LONG])
    again = UnitStore(address, model)
    assert all(key in again for key in keys)
    assert torch.equal(asked(model, again.cache(keys)), asked(model, store.cache(keys)))
    assert again.ids(keys[5]) == LONG
    assert again.verify() == {}
    stats = again.stats()
    assert (stats["documents"], stats["units"], stats["tokens"]) == (6, 10, 20 + len(LONG))
    assert {document.key for document in again.list()} == set(keys)


def test_documents_are_removed_and_pruned(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used first; bytes of the others do not change, and what is gone can be added again."""
    clock = count(1000.0, 100.0)
    monkeypatch.setattr(catalog, "time", SimpleNamespace(time=lambda: next(clock)))
    model = model_for()
    store = UnitStore(address, model)
    keys = store.add([*DOCUMENTS, LONG])
    store.cache([keys[0]])
    store.remove([keys[1]])
    kept = [key for key in keys if key != keys[1]]
    digests = {key: [store.read([x])[x].digest() for x in store.units_of([key])[key]] for key in kept}
    with pytest.raises(cr.InputError, match="is no document"):
        store.cache([keys[1]])
    store.cache([keys[5]])
    size = store.stats()["bytes"]
    gone = store.prune(size - 1)
    assert gone
    assert not {keys[0], keys[5]} & set(gone)
    assert store.stats()["bytes"] < size
    left = UnitStore(address, model)
    for key in set(kept) - set(gone):
        assert [left.read([x])[x].digest() for x in left.units_of([key])[key]] == digests[key]
    assert left.add([*DOCUMENTS, LONG]) == keys
    assert set(left.prune(0)) == set(keys)
    assert (left.stats()["bytes"], left.stats()["units"]) == (0, 0)
    with pytest.raises(cr.InputError, match="-1"):
        left.prune(-1)


def test_any_reader_of_safetensors_reads_a_group(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for(dtype=torch.float32))
    (key,) = store.add([DOCUMENTS[0]])
    (path,) = (tmp_path / "units").iterdir()
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor(f"{key}.ids").tolist() == DOCUMENTS[0]
        assert torch.equal(file.get_tensor(f"{key}.0"), store.read([key])[key].states[0])


@pytest.mark.parametrize("links", [True, False])
def test_of_those_who_create_a_file_one_does(address: str, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    place = place_of(address)
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: place.create("claims/one", bytes([number])), range(8)))
    if "://" not in address:  # fsspec looks first and writes then, where no service does both at once
        assert created.count(True) == 1
        assert place.read("claims/one") == bytes([created.index(True)])
    assert place.create("claims/one", b"again") is False
    assert place.names("claims") == {"one"} == set(place.sizes("claims"))
    place.remove("claims/one")
    assert place.create("claims/one", b"again")


# --- whose it is ---


def changed(what: str) -> Any:
    if what == "weights":
        return model_for(seed=3)
    if what == "addresses":
        return enliven(model_for(), seed=9)
    if what == "dtype":
        return model_for(dtype=torch.float32)
    if what == "config":
        return model_for(rms_norm_eps=1e-3)
    if what == "adapter.window":
        return model_for(window=6)
    return model_for(competition=0.25)


@pytest.mark.parametrize("what", ["weights", "addresses", "dtype", "config", "adapter.window", "adapter.competition"])
def test_a_store_of_another_model_is_refused_by_name(what: str, tmp_path: Path) -> None:
    keys = UnitStore(tmp_path, model_for()).add(DOCUMENTS)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(cr.CheckpointError, match=what):
        UnitStore(tmp_path, changed(what))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert keys[0] in UnitStore(tmp_path, model_for())


def test_a_model_that_changes_is_noticed(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS[:1])
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
    for use in (lambda: store.add(DOCUMENTS), lambda: store.cache(keys)):
        with pytest.raises(cr.InputError, match="has changed"):
            use()


def test_models_whose_units_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cr.InputError, match="attach"):
        UnitStore(tmp_path, tiny("llama"))
    model = tiny("llama")
    chf.attach(model, units={TERMINATOR}, positions="global", check=False)
    with pytest.raises(cr.InputError, match="set_positions"):
        UnitStore(tmp_path, model)
    assert not list(tmp_path.iterdir())


def test_wrong_documents_and_keys_are_named(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for())
    wrong: list[tuple[Any, str]] = [
        ([[]], "empty"),
        (["a text"], "no tokenizer"),
        ("a text", "a list of them"),
        ([[7, -1]], "token ids"),
        ([[7, 1000]], "1000"),
    ]
    for documents, message in wrong:
        with pytest.raises(cr.InputError, match=message):
            store.add(documents)
    assert len(store) == 0
    keys = store.add(DOCUMENTS)
    with pytest.raises(cr.InputError, match="'nothing'"):
        store.cache(["nothing"])
    with pytest.raises(cr.InputError, match="a list of keys"):
        store.cache(keys[0])
    with pytest.raises(cr.InputError, match="empty"):
        store.ask([], keys)
    with pytest.raises(cr.InputError, match="at least one"):
        store.caches([])


# --- damage ---


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut short":
        del data[-5:]
    elif how == "nothing left":
        data.clear()
    else:
        data[{"a flipped bit": -100, "in the header": 60, "its length": 3}[how]] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["a flipped bit", "in the header", "its length", "cut short", "nothing left"])
@pytest.mark.parametrize("index", [True, False], ids=["", "without index"])
def test_damage_is_said_and_healed(how: str, index: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_store, "GROUP_BYTES", 1)
    model = model_for()
    keys = UnitStore(tmp_path, model).add(DOCUMENTS)
    expected = asked(model, UnitStore(tmp_path, model).cache(keys))
    paths = sorted((tmp_path / "units").iterdir())
    damage(paths[2], how)
    if not index:
        (tmp_path / "index.json").unlink()
    store = UnitStore(tmp_path, model)
    if (
        index and "flipped" not in how and store.stats()["damaged"] == 0
    ):  # the header alone is wrong, which is in the index
        assert torch.equal(asked(model, store.cache(keys)), expected)
    else:
        with pytest.raises((cr.CheckpointError, cr.InputError), match="damaged"):
            store.cache(keys)
    assert store.verify()
    assert store.verify(remove=True)
    assert store.verify() == {}
    assert len(store) == len(keys) - 1
    assert store.add(DOCUMENTS) == keys
    assert torch.equal(asked(model, store.cache(keys)), expected)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b'{"sha256": "0", "groups": "{}"}', b"\xff"])
def test_a_damaged_index_is_made_again(data: bytes, tmp_path: Path) -> None:
    model = model_for()
    keys = UnitStore(tmp_path, model).add(DOCUMENTS)
    (tmp_path / "index.json").write_bytes(data)
    (tmp_path / "used").mkdir(exist_ok=True)
    (tmp_path / "used" / "0.json").write_bytes(data)
    store = UnitStore(tmp_path, model)
    assert store.cache(keys).tokens == sum(map(len, DOCUMENTS))
    assert len(store.list()) == len(keys)


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    UnitStore(tmp_path, model_for())
    for data in (b"", b"[]", b"{"):
        (tmp_path / "store.json").write_bytes(data)
        with pytest.raises(cr.CheckpointError, match=r"store\.json is damaged"):
            UnitStore(tmp_path, model_for())


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS[:3])
    expected = asked(model, store.cache(keys))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(cr.errors.WriteError, match="free some space"):
            store.add(DOCUMENTS)
    assert torch.equal(asked(model, store.cache(keys)), expected)
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert store.add(DOCUMENTS)[:3] == keys
    assert UnitStore(tmp_path, model).verify() == {}


# --- several processes ---


def started(folder: Path, first: int, count: int, pause: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.program_that_adds", str(folder), str(first), str(count), str(pause)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


@pytest.mark.slow
def test_processes_write_at_once_and_one_is_killed(tmp_path: Path) -> None:
    """Both add the same documents, until the second, which would add more, is killed in the midst of it."""
    whole, killed = started(tmp_path, 0, 25), started(tmp_path, 0, 1000)
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.strip() == "30":
            killed.send_signal(signal.SIGKILL)
            break
    assert (whole.wait(), killed.wait()) == (0, -signal.SIGKILL)
    for process in (whole, killed):
        process.stdout.close()  # type: ignore[union-attr]
    model = model_for()
    store = UnitStore(tmp_path, model)
    assert store.verify() == {}
    assert store.stats()["damaged"] == 0
    assert {tuple(store.ids(document.key)) for document in store.list()} >= {
        (7 + n % 40, 8 + n // 40, 9) for n in range(31)
    }
    alone = UnitStore(tmp_path.parent / f"{tmp_path.name}-alone", model)
    keys = alone.add([[7 + n % 40, 8 + n // 40, 9] for n in range(25)])
    assert all(alone.read([key])[key].digest() == store.read([key])[key].digest() for key in keys)


def test_a_process_sees_what_another_has_added_and_moved(tmp_path: Path) -> None:
    model = model_for()
    one, other = (UnitStore(tmp_path, model) for _ in range(2))
    keys = one.add(DOCUMENTS)
    expected = asked(model, other.cache(keys))
    one.remove(keys[:1])  # the group is written anew
    assert torch.equal(asked(model, other.cache(keys[1:])), asked(model, one.cache(keys[1:])))
    other.catalog.refresh()
    with pytest.raises(cr.InputError, match="is no document"):
        other.cache(keys)
    assert other.add(DOCUMENTS) == keys
    assert torch.equal(asked(model, one.cache(keys)), expected)


def test_what_a_crash_left_behind_is_cleaned(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for())
    store.add(DOCUMENTS)
    left, fresh = tmp_path / "units" / ".x.safetensors.abc", tmp_path / "units" / ".y.safetensors.abc"
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert store.prune(10**9) == []
    assert not left.exists()
    assert fresh.exists(), "somebody may be writing it"
    assert isinstance(store.place, Folder)
