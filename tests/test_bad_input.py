"""Wrong input is refused with a message that names the value and what to do; empty and padded input is defined."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope import schemes
from contentrope.attention import backend_status
from contentrope.attention.api import REGISTERED
from contentrope.attention.pairs import PairRule
from contentrope.units.table import may_sync
from tests.support import DRAW_AT_RANDOM, KNOW_MEMORY, READ_UNITS, TERMINATOR, VOCABULARY, lively_model, random_ids

WITHOUT_UNITS = sorted(set(schemes.names()) - set(READ_UNITS))
WITHOUT_MEMORY = sorted(set(schemes.names()) - set(KNOW_MEMORY))

# --- addressed_attention ---------------------------------------------------------------------------------------


def attention_input(
    batch: int = 2, heads: int = 4, kv_heads: int = 2, seq: int = 5, head_dim: int = 8
) -> dict[str, Any]:
    units = cr.segment(random_ids(batch, seq), cr.Terminators({TERMINATOR}))
    return {
        "q": torch.randn(batch, heads, seq, head_dim),
        "k": torch.randn(batch, kv_heads, seq, head_dim),
        "v": torch.randn(batch, kv_heads, seq, head_dim),
        "units": units,
        "angles": torch.randn(batch, seq, kv_heads, head_dim // 2),
    }


def test_the_input_the_tests_below_spoil_is_good() -> None:
    assert cr.addressed_attention(**attention_input()).shape == (2, 4, 5, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(2, 5, 8)}, r"q, k and v must be \(batch, heads, seq, head_dim\).*got \(2, 5, 8\)"),
        ({"v": torch.zeros(2, 2, 4, 8)}, r"k and v alike; got .*\(2, 2, 5, 8\), \(2, 2, 4, 8\)"),
        ({"q": torch.zeros(1, 4, 5, 8)}, r"k \(2, 2, 5, 8\) does not go with q \(1, 4, 5, 8\): batch, seq and head"),
        ({"q": torch.zeros(2, 4, 5, 6)}, r"does not go with q \(2, 4, 5, 6\): batch, seq and head_dim must agree"),
        ({"q": torch.zeros(2, 3, 5, 8)}, r"does not go with q \(2, 3, 5, 8\).*heads be a multiple"),
        ({"q": torch.zeros(2, 4, 5, 8).double()}, "must share one float dtype, got torch.float64, torch.float32"),
        (
            {"angles": torch.zeros(2, 5, 4, 4)},
            r"angles must be \(batch 2, seq 5, kv_heads 2, pairs <= 4\), got \(2, 5, 4",
        ),
        ({"angles": torch.zeros(2, 5, 2, 5)}, r"angles must be .*pairs <= 4\), got \(2, 5, 2, 5\)"),
        ({"angles": torch.zeros(2, 5, 2, 0)}, r"angles must be .*pairs <= 4\), got \(2, 5, 2, 0\)"),
        ({"angles": torch.zeros(2, 5, 8)}, r"angles must be .* got \(2, 5, 8\)"),
        ({"competition": torch.zeros(2)}, r"competition must be one number or 4 \(one per head\), got \(2,\)"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": -0.5}, r"dropout must be in \[0, 1\), got -0.5"),
        ({"units": attention_input(seq=6)["units"]}, r"units are \(2, 6\) but q has batch 2 and seq 5"),
        ({"units": attention_input(batch=1)["units"]}, r"units are \(1, 5\) but q has batch 2 and seq 5"),
        ({"units": attention_input()["units"].to("meta")}, r"are on cpu, cpu, cpu, cpu, meta: move them to one device"),
        ({"angles": torch.zeros(2, 5, 2, 4, device="meta")}, r"cpu, meta, cpu: move .*; units by units.to\(q.device\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(cr.InputError, match=message):
        cr.addressed_attention(**{**attention_input(), **changes})


def test_whole_numbers_are_no_queries() -> None:
    given = attention_input()
    for name in "qkv":
        given[name] = given[name].long()
    with pytest.raises(cr.InputError, match=r"must share one float dtype, got torch.int64"):
        cr.addressed_attention(**given)


def test_an_angle_that_is_not_a_number_is_found() -> None:
    given = attention_input()
    given["angles"][1, 3, 0, 2] = torch.nan
    with pytest.raises(cr.InputError, match=r"angles of row 1, token 3 are not finite; check"):
        cr.addressed_attention(**given)


def test_units_that_go_down_are_refused() -> None:
    unit, local = torch.tensor([[0, 1, 0]]), torch.tensor([[0, 0, 0]])
    with pytest.raises(cr.InputError, match=r"unit\[0, 2\] is 0: units are counted from 0 and never go down"):
        cr.Units.of(unit, local, torch.tensor([[True, True, False]]))


# --- backends --------------------------------------------------------------------------------------------------


def pretend_installed(monkeypatch: pytest.MonkeyPatch, package: str, installed: bool) -> None:
    find_spec = importlib.util.find_spec

    def pretend(name: str, *rest: Any) -> Any:
        return (SimpleNamespace(name=name) if installed else None) if name == package else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", pretend)


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(cr.BackendError, match="unknown backend 'cuda'; choose auto, reference, tiled, flex"):
        cr.addressed_attention(**attention_input(), backend="cuda")
    with pytest.raises(cr.InputError, match="unknown backend 'cuda'; choose auto, reference, tiled, flex"):
        lively_model("content", backend="cuda")


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, "triton", installed=False)
    message = r"backend 'flex': needs the package 'triton', .*\(pip install triton\); or pass backend='tiled'"
    with pytest.raises(cr.BackendError, match=message):
        cr.addressed_attention(**attention_input(), backend="flex")
    with pytest.raises(cr.BackendError, match=message):
        lively_model("content", backend="flex")(random_ids(1, 5))
    assert backend_status()["flex"].startswith("needs the package 'triton'")
    assert backend_status()["tiled"] == backend_status()["reference"] == "ready"


def test_a_backend_is_ready_only_where_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, "triton", installed=True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status = backend_status()
    assert status["tiled"] == status["reference"] == "ready"
    for name in ("flex", "fused"):
        assert "GPU" in status[name]
        with pytest.raises(cr.BackendError, match=name):
            cr.addressed_attention(**attention_input(), backend=name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set(backend_status().values()) == {"ready"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend_status()["fused"] == "ready"
    assert backend_status()["flex"] != "ready"


def test_a_device_the_backend_cannot_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, "triton", installed=True)
    with pytest.raises(cr.BackendError, match="'flex' needs CUDA tensors, got cpu; use backend='tiled'"):
        cr.addressed_attention(**attention_input(), backend="flex")


@pytest.mark.parametrize("backend", ["reference", "tiled", "flex"])
def test_plain_attention_takes_no_backend(backend: str) -> None:
    config = cr.ModelConfig(vocab_size=9, dim=8, layers=1, heads=2, scheme="rope")
    with pytest.raises(cr.InputError, match="scheme 'rope' reads by plain attention; backend= is for content, random"):
        cr.Transformer(config, backend=backend)


@pytest.mark.parametrize(
    ("dtype", "offset", "dropout", "message"),
    [
        (torch.float64, 0, 0.0, "'flex' has no float64; use backend='reference' or 'tiled'"),
        (torch.float32, 0, 0.1, r"'flex' has no dropout \(got 0.1\); use backend='tiled' or dropout=0"),
        (torch.float32, 3, 0.0, "'flex' reads whole sequences, not cached ones; use backend='tiled'"),
    ],
)
def test_what_flex_cannot_do_is_refused(dtype: torch.dtype, offset: int, dropout: float, message: str) -> None:
    """These follow the check of the device, so a CUDA tensor is stood in for."""
    query = SimpleNamespace(device=torch.device("cuda"), dtype=dtype)
    with pytest.raises(cr.BackendError, match=message):
        REGISTERED["flex"].require(query, 8, dropout=dropout, cached=offset > 0)


# --- the model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([1, 2, 3]), r"ids has shape \(3,\): pass \(batch, seq\)"),
        (torch.tensor([[[1]]]), r"ids has shape \(1, 1, 1\): pass \(batch, seq\)"),
        (torch.tensor([[1.0, 2.0]]), "ids has dtype torch.float32: pass int64 or int32"),
        (torch.tensor([[True]]), "ids has dtype torch.bool: pass int64 or int32"),
        (torch.tensor([[3, VOCABULARY]]), r"id 11 lies outside the vocabulary of 11 \(0..10\)"),
        (torch.tensor([[3, -1]]), r"id -1 lies outside the vocabulary of 11 \(0..10\)"),
        (torch.tensor([[VOCABULARY]]), r"id 11 lies outside the vocabulary of 11 \(0..10\)"),
        (torch.tensor([[-1]]), r"id -1 lies outside the vocabulary of 11 \(0..10\)"),
        (torch.tensor([[3], [VOCABULARY]]), r"id 11 lies outside the vocabulary of 11 \(0..10\)"),
        (torch.tensor([[3], [-1]]), r"id -1 lies outside the vocabulary of 11 \(0..10\)"),
    ],
)
def test_ids_that_are_none(ids: Tensor, message: str) -> None:
    with pytest.raises(cr.InputError, match=message):
        lively_model("content")(ids)


@pytest.mark.parametrize("name", ["valid", "ends", "memory"])
@pytest.mark.parametrize(
    ("mask", "found"),
    [(torch.ones(2, 4).bool(), r"shape \(2, 4\), the tokens \(2, 5\)"), (torch.ones(2, 5).long(), "dtype torch.int64")],
    ids=["shape", "dtype"],
)
def test_masks_are_bool_and_of_the_shape_of_ids(name: str, mask: Tensor, found: str) -> None:
    with pytest.raises(cr.InputError, match=f"{name} has {found}"):
        lively_model("content")(random_ids(2, 5), **{name: mask})


@pytest.mark.parametrize("scheme", WITHOUT_UNITS)
def test_ends_are_refused_where_nobody_reads_them(scheme: str) -> None:
    ids = random_ids(1, 5)
    with pytest.raises(cr.InputError, match=f"scheme '{scheme}' does not read units; leave out ends="):
        lively_model(scheme)(ids, ends=ids == TERMINATOR)


@pytest.mark.parametrize("scheme", WITHOUT_MEMORY)
def test_memory_is_refused_where_there_are_no_memory_units(scheme: str) -> None:
    ids = random_ids(1, 5)
    with pytest.raises(cr.InputError, match=f"scheme '{scheme}' has no memory units; leave out memory="):
        lively_model(scheme)(ids, memory=ids == TERMINATOR)
    with pytest.raises(cr.InputError, match=rf"scheme '{scheme}' has no memory units; leave out reader=\(10,\)"):
        lively_model(scheme, reader=(10,))


def test_two_ways_of_marking_memory_at_once_are_refused() -> None:
    ids = random_ids(1, 5)
    with pytest.raises(cr.InputError, match=r"memory= and reader=\(10,\) both mark memory units: pass one of them"):
        lively_model("content", reader=(10,))(ids, memory=ids > 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "rotary"}, "unknown scheme 'rotary'; choose one of content, random, local, rope, .*bipe"),
        ({"terminators": (11,)}, r"terminators \[11\] lie outside the vocabulary of 11 \(ids 0..10\)"),
        ({"dropout": 1.5}, r"dropout must be in \[0, 1\), got 1.5"),
    ],
)
def test_settings_no_model_can_have(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(cr.InputError, match=message):
        cr.Transformer(cr.ModelConfig(**{"vocab_size": VOCABULARY, "dim": 24, "layers": 1, "heads": 2, **settings}))


@pytest.mark.parametrize(("batch_size", "max_tokens"), [(-1, None), (2, 0)])
def test_a_cache_without_room_is_refused(batch_size: int, max_tokens: int | None) -> None:
    with pytest.raises(cr.InputError, match=f"batch_size {batch_size} or max_tokens {max_tokens} is too small"):
        lively_model("content").new_cache(batch_size, max_tokens=max_tokens)


# --- NaN -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False], ids=["completed unit", "open unit"])
def test_an_embedding_that_is_not_a_number_is_found(closed: bool) -> None:
    model = lively_model("content")
    with torch.no_grad():
        model.embedding.weight[9, 4] = torch.nan
    ids = torch.tensor([[3, 0, 4, 4, 0, 4], [3, 0, 5, 4, 9, 0 if closed else 4]])
    with pytest.raises(cr.InputError, match=r"embeddings of row 1, token 4 are not finite; check the embeddings"):
        model(ids)


def test_a_weight_of_the_address_that_is_not_a_number_is_laid_at_a_unit() -> None:
    """The embeddings are sound here, so the first token of the first unit concerned is named."""
    model = lively_model("content")
    with torch.no_grad():
        model.scheme.address.project.weight[0, 0] = torch.inf
    with pytest.raises(cr.InputError, match=r"addresses of row 0, token 0 are not finite; check .* weights"):
        model(random_ids(2, 6))


def test_an_embedding_found_while_streaming_counts_from_the_chunk() -> None:
    model = lively_model("content")
    with torch.no_grad():
        model.embedding.weight[9, 4] = torch.nan
    cache = model.new_cache(1)
    model(torch.tensor([[3, 4]]), cache=cache)
    with pytest.raises(cr.InputError, match=r"embeddings of row 0, token 1 are not finite"):
        model(torch.tensor([[3, 9, 0]]), cache=cache)


@pytest.mark.parametrize(
    ("on_gpu", "training", "waits"), [(False, True, True), (True, False, True), (True, True, False)]
)
def test_in_training_a_gpu_is_not_waited_for(
    on_gpu: bool, training: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN shows in the loss there."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    somewhere = SimpleNamespace(is_cuda=on_gpu)
    with torch.set_grad_enabled(training):
        assert may_sync(somewhere) is waits


# --- nothing at all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize("shape", [(2, 0), (0, 5), (0, 0)], ids=["no tokens", "no rows", "neither"])
@pytest.mark.parametrize("cached", [False, True])
def test_nothing_in_nothing_out(scheme: str, shape: tuple[int, int], cached: bool) -> None:
    model, ids = lively_model(scheme), torch.zeros(shape, dtype=torch.int64)
    cache = model.new_cache(shape[0]) if cached else None
    assert model(ids, valid=ids == 0, cache=cache).shape == (*shape, VOCABULARY)


@pytest.mark.parametrize("scheme", sorted(set(schemes.names()) - set(DRAW_AT_RANDOM)))
def test_an_empty_chunk_changes_nothing_in_a_cache(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(2, 9)
    cache = model.new_cache(2)
    model(ids[:, :5], cache=cache)
    model(ids[:, :0], cache=cache)
    torch.testing.assert_close(model(ids[:, 5:], cache=cache), model(ids)[:, 5:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("sizes", [{"seq": 0}, {"batch": 0}], ids=["no tokens", "no rows"])
def test_attention_over_nothing(backend: str, sizes: dict[str, int]) -> None:
    given = attention_input(**sizes)
    given["q"].requires_grad_()
    out = cr.addressed_attention(**given, backend=backend)
    assert out.shape == given["q"].shape
    out.sum().backward()
    assert given["q"].grad.shape == given["q"].shape


# --- rows of padding only --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_padding_reads_nothing(backend: str) -> None:
    given = attention_input()
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[0], valid[1, :2] = False, False
    given["units"] = cr.segment(random_ids(2, 5), cr.Terminators({TERMINATOR}), valid=valid)
    assert PairRule.among(given["units"]).query_valid is not None
    out = cr.addressed_attention(**given, backend=backend).transpose(1, 2)
    assert (out[~valid] == 0).all()
    assert (out[valid] != 0).any(-1).all()


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize("cached", [False, True])
def test_a_row_of_padding_only_is_finite_and_attends_to_nothing(scheme: str, cached: bool) -> None:
    model, ids = lively_model(scheme), random_ids(2, 12)
    valid = torch.stack((torch.zeros(12), torch.ones(12))).bool()
    read: list[Tensor] = []
    for block in model.blocks:
        block.attention_out.register_forward_pre_hook(lambda _module, inputs: read.append(inputs[0]))
    torch.manual_seed(0)
    found = model(ids, valid=valid, cache=model.new_cache(2, max_tokens=12) if cached else None)
    assert torch.isfinite(found).all()
    assert len(read) == 3
    assert all((part[0] == 0).all() and (part[1] != 0).all() for part in read)
    if scheme not in DRAW_AT_RANDOM:
        torch.testing.assert_close(found[1], model(ids[1:])[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", schemes.names())
def test_gradients_of_a_row_of_padding_only_are_finite(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(2, 12)
    model(ids, valid=torch.stack((torch.zeros(12), torch.ones(12))).bool()).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
