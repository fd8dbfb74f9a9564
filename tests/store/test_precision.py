"""In 8 bits a unit loses half a scale at most, and nothing else changes: no order, the same bytes, the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.store import UnitStore, precision
from contentrope.store.precision import PRECISIONS, TOKENS
from tests.hf.models import ARCHITECTURES
from tests.store.helpers import DOCUMENTS, LONG, asked, model_for, same_bits

CODED = PRECISIONS["int8"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def states_of(kind: str, tokens: int, dtype: torch.dtype) -> Tensor:
    """Of three layers with two heads."""
    states = torch.randn(3, 2, tokens, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(tokens))
    info = torch.finfo(dtype)
    if kind == "outliers":
        states[..., 2] = states[..., 2] * 1e-3 + 50.0
        states[..., 5] *= 100.0
    elif kind == "zeros":
        states[:, :, :, ::2] = 0.0
        states[0] = 0.0
    elif kind == "small":
        states *= info.smallest_normal * 1e-2
    elif kind == "large":
        limit = min(info.max, 0.99 * precision.LARGEST)
        states = states.clamp(-1, 1).sign() * limit * 0.999
        states[0, 0, 0] = limit
    return states.to(dtype)


def decoded(parts: tuple[Tensor, ...], lengths: list[int], are_keys: bool, dtype: torch.dtype) -> Tensor:
    return CODED.decode(parts, lengths, are_keys, dtype)


def bound(scales: Tensor, found: Tensor, tokens: int, are_keys: bool) -> Tensor:
    """Half of what one more in a code makes, and how far numbers in the model's dtype lie apart."""
    if are_keys:
        scales = scales.chunk(2, dim=3)[0]
        scales = torch.stack([scales[:, :, min(t // TOKENS, scales.shape[2] - 1)] for t in range(tokens)], dim=2)
    info = torch.finfo(found.dtype)
    rounding = max(info.eps, torch.finfo(torch.float32).eps if info.bits < 64 else info.eps)
    return scales.double() * (0.5 + 1e-6) + found.double().abs() * rounding + info.smallest_normal * info.eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["random", "outliers", "zeros", "small", "large"])
@pytest.mark.parametrize("are_keys", [True, False])
@pytest.mark.parametrize("tokens", [1, 31, 100])
def test_no_number_loses_more_than_half_a_scale(kind: str, are_keys: bool, tokens: int, dtype: torch.dtype) -> None:
    states = states_of(kind, tokens, dtype)
    codes, scales = CODED.encode(states, are_keys)
    assert (codes.dtype, scales.dtype) == (torch.int8, torch.bfloat16)
    found = decoded((codes, scales), [tokens], are_keys, dtype)
    assert found.dtype == dtype
    assert bool(found.isfinite().all())
    lost = (found.double() - states.double()).abs()
    assert bool((lost <= bound(scales, found, tokens, are_keys)).all())
    if kind == "random" and tokens > 1 and dtype in (torch.float32, torch.float64):
        assert not bool((lost <= 0.5 * bound(scales, found, tokens, are_keys)).all()), "half of it would not do"
    if kind == "zeros":
        assert not bool(found[0].any()), "zero stays zero"


@pytest.mark.parametrize("are_keys", [True, False])
def test_units_that_are_joined_are_decoded_as_alone(are_keys: bool) -> None:
    lengths = [1, 70, 31, 64]
    units = [states_of("outliers", tokens, torch.float32) for tokens in lengths]
    coded = [CODED.encode(unit, are_keys) for unit in units]
    joined = tuple(torch.cat(parts, dim=2) for parts in zip(*coded, strict=True))
    alone = [decoded(parts, [n], are_keys, torch.float32) for parts, n in zip(coded, lengths, strict=True)]
    assert torch.equal(decoded(joined, lengths, are_keys, torch.float32), torch.cat(alone, dim=2))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), 1e300, 3.1e38])
@pytest.mark.parametrize("are_keys", [True, False])
def test_what_has_no_scale_is_refused(wrong: float, are_keys: bool) -> None:
    states = states_of("random", 40, torch.float64)
    states[1, 0, 35, 3] = wrong
    with pytest.raises(cr.InputError, match="precision='model'"):
        CODED.encode(states, are_keys)


def test_a_model_that_computes_such_stores_nothing(tmp_path: Path) -> None:
    model = model_for(dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[0].fill_(1e38)
        model.model.layers[1].input_layernorm.weight.fill_(1e30)
    store = UnitStore(tmp_path, model, precision="int8")
    with pytest.raises(cr.InputError, match="precision='model'"):
        store.add(DOCUMENTS)
    assert len(store) == 0


@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4, shared keys"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stored_units_differ_from_computed_ones_by_half_a_scale(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if name not in ARCHITECTURES:
        pytest.skip("not in this version of transformers")
    model = model_for(name, dtype=dtype)
    full, coded = (UnitStore(tmp_path / how, model, precision=how) for how in ("model", "int8"))
    documents = [*DOCUMENTS, LONG]
    for document, key, other in zip(documents, full.add(documents), coded.add(documents), strict=True):
        assert key != other
        assert coded.ids(other) == document
        for unit, same in zip(full.units_of([key])[key], coded.units_of([other])[other], strict=True):
            exact, stored = full.read([unit])[unit], coded.read([same])[same]
            tokens = len(exact.ids)
            before = {
                s: x for kind, states in full.layout.decode(exact.states, [tokens]) for s, x in of_slots(kind, states)
            }
            scales = {
                slot: x
                for kind, part in zip(coded.layout.kinds, stored.states[1::2], strict=True)
                for slot, x in of_slots(kind, part)
            }
            for kind, states in coded.layout.decode(stored.states, [tokens]):
                for slot, x in of_slots(kind, states):
                    most = bound(scales[slot][None], x[None], tokens, slot % 2 == 0)[0]
                    assert bool(((x.double() - before[slot].double()).abs() <= most).all())


def of_slots(kind: Any, states: Tensor) -> list[tuple[int, Tensor]]:
    return list(zip(kind.slots, states, strict=True))


def test_a_store_of_another_precision_is_refused(tmp_path: Path) -> None:
    model = model_for()
    for own, other in (("model", "int8"), ("int8", "model")):
        keys = UnitStore(tmp_path / own, model, precision=own).add(DOCUMENTS)
        with pytest.raises(cr.CheckpointError, match=rf"precision.*pass precision='{own}'"):
            UnitStore(tmp_path / own, model, precision=other)
        assert keys[0] in UnitStore(tmp_path / own, model, precision=own)
    with pytest.raises(cr.InputError, match="'int4'"):
        UnitStore(tmp_path, model, precision="int4")


def test_it_takes_fewer_bytes_and_says_so(tmp_path: Path) -> None:
    model = model_for(dtype=torch.float32)
    stores = [UnitStore(tmp_path / how, model, precision=how) for how in ("model", "int8")]
    keys = [store.add(DOCUMENTS) for store in stores]
    stats = [store.stats() for store in stores]
    assert [found["precision"] for found in stats] == ["model", "int8"]
    sizes = [sum(document.bytes for document in store.list()) for store in stores]
    assert sizes[1] < 0.6 * sizes[0], "short units of few channels: scales are many"
    assert {document.precision for document in stores[1].list()} == {"int8"}
    assert all(store.verify() == {} for store in stores)
    assert stores[1].prune(0) == sorted(keys[1])


def test_a_damaged_code_is_said(tmp_path: Path) -> None:
    model = model_for()
    keys = UnitStore(tmp_path, model, precision="int8").add(DOCUMENTS)
    (path,) = (tmp_path / "units").iterdir()
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    store = UnitStore(tmp_path, model, precision="int8")
    with pytest.raises(cr.CheckpointError, match="damaged"):
        store.cache(keys)
    assert len(store.verify(remove=True)) == 1
    assert store.add(DOCUMENTS) == keys
    assert store.verify() == {}


def test_whoever_reads_gets_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that come alone, in chunks or at once, into a row or several; and by another process's store."""
    from contentrope.store import filling

    model = model_for(dtype=torch.float32)
    store = UnitStore(tmp_path, model, precision="int8")
    keys = store.add([*DOCUMENTS, LONG])
    expected = store.cache(keys)
    for size in (1, 400, 10**9):
        monkeypatch.setattr(filling, "CHUNK_BYTES", size)
        assert same_bits(UnitStore(tmp_path, model, precision="int8").cache(keys), expected)
        rows = store.caches([keys, keys[:2]])
        for layer, one in zip(rows.layers[:-1], expected.layers[:-1], strict=True):
            assert torch.equal(layer.keys[:1], one.keys)
            assert torch.equal(layer.values[:1], one.values)
    assert not torch.equal(asked(model, expected), asked(model, store.cache(keys[:-1])))


def test_keys_lose_less_with_an_offset_than_values_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why keys are stored otherwise: channels that lie off zero."""
    states = states_of("outliers", 64, torch.float32)
    lost = [
        float((decoded(CODED.encode(states, how), [64], how, torch.float32) - states)[..., 2].abs().max())
        for how in (True, False)
    ]
    assert 20 * lost[0] < lost[1]
    assert precision.STEPS == 127
