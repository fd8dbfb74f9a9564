"""What several processes, a crash and other people's files do to a store, and what it does to them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope.store import UnitStore, cache
from tests.store.helpers import DOCUMENTS, asked, model_for


def flipped(folder: Path) -> None:
    (path,) = (folder / "units").iterdir()
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    changed = path.with_suffix(".new")
    changed.write_bytes(data)
    changed.replace(path)  # a file of its own: mapped ones stay


def test_damage_stays_damage_when_its_group_is_written_anew(tmp_path: Path) -> None:
    model = model_for()
    keys = UnitStore(tmp_path, model).add(DOCUMENTS)
    flipped(tmp_path)
    (damaged,) = UnitStore(tmp_path, model).verify()
    store = UnitStore(tmp_path, model)
    store.remove([next(key for key in keys if key != damaged)])
    assert set(UnitStore(tmp_path, model).verify()) == {damaged}
    with pytest.raises(cr.CheckpointError, match="damaged"):
        UnitStore(tmp_path, model).cache([damaged])


def test_what_another_process_has_mended_is_read(tmp_path: Path) -> None:
    model = model_for()
    keys = UnitStore(tmp_path, model).add(DOCUMENTS)
    expected = asked(model, UnitStore(tmp_path, model).cache(keys))
    flipped(tmp_path)
    store, other = UnitStore(tmp_path, model), UnitStore(tmp_path, model)
    with pytest.raises(cr.CheckpointError, match="damaged"):
        store.cache(keys)
    (path,) = (tmp_path / "units").iterdir()
    path.unlink()
    assert other.add(DOCUMENTS) == keys
    assert (tmp_path / "units" / path.name).exists(), "the same name, as it holds the same"
    assert torch.equal(asked(model, store.cache(keys)), expected)


def test_what_one_process_removes_another_does_not_bring_back(tmp_path: Path) -> None:
    model = model_for()
    one, other = (UnitStore(tmp_path, model) for _ in range(2))
    keys = one.add(DOCUMENTS)
    other.cache(keys)
    one.remove(keys[:1])
    other.remove(keys[1:2])
    assert {document.key for document in UnitStore(tmp_path, model).list()} == set(keys[2:])


def test_a_file_that_another_process_has_removed_is_let_go_of(tmp_path: Path) -> None:
    """A mapped file takes room on the disk until nobody maps it."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what is mapped")
    model = model_for()
    one, other = (UnitStore(tmp_path, model) for _ in range(2))
    keys = one.add(DOCUMENTS)
    other.cache(keys)
    one.remove(keys)
    other.stats()
    assert f"{tmp_path}/units" not in maps.read_text(encoding="utf-8")


def test_a_file_may_go_while_the_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    (tmp_path / "units" / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    assert store.stats()["documents"] == len(keys)


def test_only_what_a_store_left_behind_is_cleaned(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for())
    store.add(DOCUMENTS)
    theirs, left = tmp_path / ".gitignore", tmp_path / "units" / ".0.safetensors.x1_y"
    claim = tmp_path / "claims" / f".{'a' * 32}.{'b' * 32}"
    claim.parent.mkdir()
    for path in (theirs, left, claim):
        path.write_text("old")
        os.utime(path, (0, 0))
    store.prune(10**9)
    assert theirs.exists()
    assert not left.exists()
    assert not claim.exists()


def test_when_documents_were_used_is_not_lost_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    keys = UnitStore(tmp_path, model).add(DOCUMENTS)
    store = UnitStore(tmp_path, model)
    write = store.place.write

    def full(name: str, data: bytes) -> None:
        if name.startswith("used/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(name, data)

    monkeypatch.setattr(store.place, "write", full)
    assert all(document.last_used for document in store.list())
    again = UnitStore(tmp_path, model).list()
    assert {document.key for document in again if document.last_used} == set(keys)


def test_a_store_that_is_removed_while_open_begins_anew(tmp_path: Path) -> None:
    """With its settings, so that another model is refused as ever."""
    import shutil

    folder = tmp_path / "store"
    store = UnitStore(folder, model_for())
    keys = store.add(DOCUMENTS)
    expected = asked(store.model, store.cache(keys))
    shutil.rmtree(folder)
    with pytest.raises(cr.InputError, match="is no document"):
        UnitStore(folder, model_for()).cache(keys)
    shutil.rmtree(folder)
    assert store.add(DOCUMENTS) == keys
    assert torch.equal(asked(store.model, store.cache(keys)), expected)
    with pytest.raises(cr.CheckpointError, match="another model"):
        UnitStore(folder, model_for(seed=3))
    shutil.rmtree(folder)
    UnitStore(folder, model_for(seed=3)).add(DOCUMENTS)
    with pytest.raises(cr.CheckpointError, match="another model"):
        store.add(DOCUMENTS)


def test_keys_that_are_none_are_named(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for())
    made = store.cache(store.add(DOCUMENTS))
    wrong: Any
    for wrong in (5, [5], [["a", "b"]], [None], [b"key"]):
        for use in (store.cache, store.remove, made.insert, made.remove):
            with pytest.raises(cr.InputError, match=r"a list of keys|is no document"):
                use(wrong)


def test_a_set_that_does_not_fit_into_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    made = store.cache(keys[:1])
    expected = asked(model, made)
    made.rewind()
    with monkeypatch.context() as patch:
        patch.setattr(cache, "with_room", lambda columns: 2**52)
        with pytest.raises(cr.InputError, match="fewer documents"):
            store.cache(keys)
    assert torch.equal(asked(model, made), expected)
