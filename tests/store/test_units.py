"""A unit is computed the same in any company, and a long document is cut by a rule that is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import contentrope as cr
from contentrope.store import UnitStore
from contentrope.store import units as module
from contentrope.store.fingerprint import document_key
from tests.hf.models import TERMINATOR
from tests.store.helpers import DOCUMENTS, LONG, asked, model_for, read_at_once, units_in


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize(("rows", "precision"), [(1, "model"), (4, "model"), (4, "int8")])
def test_two_stores_that_were_filled_otherwise_have_the_same_bytes(
    dtype: torch.dtype, window: int, rows: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many rows as a GPU takes, and with one."""
    model = model_for(window=window, dtype=dtype)
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "ON_ITS_OWN", ())
    documents = [*DOCUMENTS, LONG, *([n, n + 1, n + 2] for n in range(40, 55))]
    stores = [UnitStore(tmp_path / name, model, precision=precision) for name in ("at once", "one by one")]
    keys = stores[0].add(documents)
    assert [stores[1].add([document])[0] for document in reversed(documents)] == keys[::-1]
    units = [unit for order in stores[0].units_of(keys).values() for unit in order]
    found = [store.read(units) for store in stores]
    assert all(found[0][unit].digest() == found[1][unit].digest() for unit in units)


def test_a_long_document_is_cut_where_units_end(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    (key,) = store.add([LONG])
    order = store.units_of([key])[key]
    pieces = [store.read([unit])[unit].ids.tolist() for unit in order]
    assert pieces == [LONG[:7], LONG[7:14], LONG[14:21], LONG[21:28], LONG[28:]]
    assert pieces[0][-1] == pieces[1][-1] == TERMINATOR
    assert (key, store.ids(key)) == (document_key(order), LONG)
    torch.testing.assert_close(
        asked(model, store.cache([key])), read_at_once(model, units_in(store, [key])), rtol=0, atol=1e-12
    )


def test_documents_may_share_units_and_text(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for())
    long, part = store.add([LONG, LONG[:7]])
    assert store.units_of([long])[long][0] == part
    assert store.stats()["units"] == 5
    assert store.cache([long, part]).tokens == len(LONG), "a unit is there once"
    before = store.stats()["bytes"]
    assert store.add([LONG, LONG]) == [long, long]
    assert store.stats()["bytes"] == before


def test_documents_may_be_cut_at_every_unit_or_never(tmp_path: Path) -> None:
    model = model_for()
    lines = UnitStore(tmp_path / "lines", model, cut="always")
    (key,) = lines.add([DOCUMENTS[3]])
    assert sorted(units_in(lines, [key])) == [[20, 21, TERMINATOR], [22, 23, TERMINATOR]]
    whole = UnitStore(tmp_path / "whole", model, cut="never")
    with pytest.raises(cr.InputError, match=r"30 tokens and a unit at most 7.*cut='long'"):
        whole.add([DOCUMENTS[0], LONG])
    assert len(whole) == 0
    with pytest.raises(cr.InputError, match="'sometimes'"):
        UnitStore(tmp_path, model, cut="sometimes")


def test_only_what_is_missing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = UnitStore(tmp_path, model_for())
    seen: list[tuple[int, int]] = []
    store.add(DOCUMENTS, progress=lambda done, total: seen.append((done, total)))
    total = sum(map(len, DOCUMENTS))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)
    seen.clear()
    store.add([*DOCUMENTS, [60, 61]], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 2)]


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = model_for().train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    store = UnitStore(tmp_path, model)
    with torch.autocast("cpu", torch.bfloat16):
        keys = store.add(DOCUMENTS)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    unit = store.units_of(keys)[keys[0]][0]
    alone = UnitStore(tmp_path.parent / f"{tmp_path.name}-other", model.eval())
    alone.add(DOCUMENTS)
    assert alone.read([unit])[unit].digest() == store.read([unit])[unit].digest()
