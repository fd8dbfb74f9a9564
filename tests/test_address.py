"""Addresses against a loop over tokens in float64: values, what they depend on, gradients, precision and cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import contentrope as cr
from contentrope.address import ContentAddress, UnitSums, random_angles, random_ranks, sum_by_unit, sum_runs
from contentrope.config import RotaryConfig
from contentrope.rotary import PositionRotations, inverse_frequencies, rotate
from tests.support import TERMINATOR, lively_model, random_ids

HEADS, HEAD_DIM, PAIRS = 2, 6, 3
DIM = HEADS * HEAD_DIM
MAX_UNIT = 5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lively_address(seed: int = 0, heads: int = HEADS, pairs: int = PAIRS, dim: int = DIM) -> ContentAddress:
    address = ContentAddress(dim, heads, pairs).double()
    with torch.no_grad():
        for i, parameter in enumerate(address.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + i))
    return address


def turned_by_local_position(embedded: Tensor, units: cr.Units) -> Tensor:
    rotations = PositionRotations(inverse_frequencies(RotaryConfig(), HEADS, HEAD_DIM))
    local = rotations.at(units.local, embedded.dtype, bound=MAX_UNIT)
    return rotate(embedded.unflatten(-1, (HEADS, -1)), local).flatten(-2)


def descriptor_by_hand(tokens: list[Tensor]) -> list[complex]:
    """The mean of R_i x_i, one complex number per head and pair (half-split)."""
    mean = [0j] * (HEADS * PAIRS)
    for position, token in enumerate(tokens):
        for head in range(HEADS):
            x = token[head * HEAD_DIM : (head + 1) * HEAD_DIM].tolist()
            for pair in range(PAIRS):
                angle = position * 10000.0 ** (-pair / PAIRS)
                rotation = complex(math.cos(angle), math.sin(angle))
                mean[head * PAIRS + pair] += complex(x[pair], x[pair + PAIRS]) * rotation / len(tokens)
    return mean


def angles_by_hand(tokens: list[Tensor], address: ContentAddress) -> Tensor:
    """W LN(z) with every sum written out."""
    parts = descriptor_by_hand(tokens)
    flat: list[float] = []
    for head in range(HEADS):
        of_head = parts[head * PAIRS : (head + 1) * PAIRS]
        flat += [z.real for z in of_head] + [z.imag for z in of_head]
    mean = sum(flat) / DIM
    variance = sum((value - mean) ** 2 for value in flat) / DIM
    gain, shift = address.norm.weight.tolist(), address.norm.bias.tolist()
    normed = [
        (value - mean) / math.sqrt(variance + address.norm.eps) * gain[i] + shift[i] for i, value in enumerate(flat)
    ]
    weight, bias = address.project.weight.tolist(), address.project.bias.tolist()
    rows = [bias[i] + sum(w * n for w, n in zip(weight[i], normed, strict=True)) for i in range(HEADS * PAIRS)]
    return torch.tensor(rows, dtype=torch.float64).view(HEADS, PAIRS)


def tokens_by_unit(embedded: Tensor, units: cr.Units, row: int) -> dict[int, list[Tensor]]:
    found: dict[int, list[Tensor]] = {}
    for column in range(embedded.shape[1]):
        if units.valid[row, column]:
            found.setdefault(int(units.unit[row, column]), []).append(embedded[row, column])
    return found


def angles_of(embedded: Tensor, units: cr.Units, address: ContentAddress) -> Tensor:
    sums = sum_by_unit(turned_by_local_position(embedded, units), units, units.unit)
    return address(sums.total, sums.tokens)


def padding_mask(batch: int, seq: int, seed: int) -> Tensor:
    return torch.rand(batch, seq, generator=torch.Generator().manual_seed(seed)) < 0.8


@given(seed=st.integers(0, 10**6), seq=st.integers(1, 17), padded=st.booleans())
def test_addresses_equal_a_loop_over_tokens(seed: int, seq: int, padded: bool) -> None:
    ids = random_ids(2, seq, seed=seed)
    valid = padding_mask(2, seq, seed) if padded else None
    units = cr.segment(ids, cr.Terminators({TERMINATOR}), max_length=MAX_UNIT, valid=valid)
    embedded, address = normal(2, seq, DIM, seed=seed), lively_address(seed)
    found = angles_of(embedded, units, address)
    assert found.shape == (2, seq, HEADS, PAIRS)
    for row in range(2):
        for unit, tokens in tokens_by_unit(embedded, units, row).items():
            torch.testing.assert_close(found[row, unit], angles_by_hand(tokens, address), rtol=0, atol=1e-11)


def sums_in_chunks(rotated: Tensor, ids: Tensor, valid: Tensor | None, sizes: list[int]) -> list[tuple[Any, UnitSums]]:
    """What a stream sees: chunk after chunk, with the open unit's sum and count carried over."""
    segmenter = cr.Segmenter(cr.Terminators({TERMINATOR}), max_length=MAX_UNIT)
    state = segmenter.initial(len(ids))
    open_total = torch.zeros(len(ids), DIM, dtype=torch.float64)
    parts, begin = [], 0
    for size in sizes:
        span = slice(begin, begin + size)
        before = state
        units, state = segmenter.advance(before, ids[:, span], valid=None if valid is None else valid[:, span])
        carried = open_total, before.next_local[:, 0]
        sums = sum_by_unit(rotated[:, span], units, units.unit - before.next_unit, carried)
        open_total = sums.open_total
        parts.append((before.next_unit[:, 0], sums))
        begin += size
    return parts


@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), padded=st.booleans())
def test_sums_carried_over_chunks_equal_those_of_the_whole(seed: int, sizes: list[int], padded: bool) -> None:
    seq = sum(sizes)
    ids = random_ids(2, seq, seed=seed)
    valid = padding_mask(2, seq, seed) if padded else None
    units = cr.segment(ids, cr.Terminators({TERMINATOR}), max_length=MAX_UNIT, valid=valid)
    rotated = normal(2, seq, DIM, seed=seed)
    whole = sum_by_unit(rotated, units, units.unit)
    total, count = torch.zeros(2, seq + 1, DIM, dtype=torch.float64), torch.zeros(2, seq + 1, dtype=torch.float64)
    parts = sums_in_chunks(rotated, ids, valid, sizes)
    for first_unit, sums in parts:
        for row in range(2):
            # A later chunk has seen more of the unit that was open, so what it says replaces what was said.
            for slot in range(sums.total.shape[1]):
                if sums.tokens[row, slot]:
                    unit = int(first_unit[row]) + slot
                    total[row, unit], count[row, unit] = sums.total[row, slot], sums.tokens[row, slot]
    torch.testing.assert_close(total[:, :seq], whole.total, rtol=0, atol=1e-13)
    assert torch.equal(count[:, :seq], whole.tokens)
    torch.testing.assert_close(parts[-1][1].open_total, whole.open_total, rtol=0, atol=1e-13)


def test_the_open_sum_is_that_of_the_unit_still_open() -> None:
    rotated = normal(1, 5, DIM)
    for ids, expected in (([5, 0, 5, 5, 5], rotated[0, 2:].sum(0)), ([5, 0, 5, 5, 0], torch.zeros(DIM).double())):
        units = cr.segment(torch.tensor([ids]), cr.Terminators({TERMINATOR}))
        torch.testing.assert_close(sum_by_unit(rotated, units, units.unit).open_total[0], expected, rtol=0, atol=1e-14)


def three_units() -> tuple[Tensor, cr.Units]:
    ids = torch.tensor([[4, 5, 6, 0, 7, 8, 0, 9, 3, 0]])
    return normal(1, 10, DIM), cr.segment(ids, cr.Terminators({TERMINATOR}))


def test_swapping_two_tokens_inside_a_unit_changes_its_address() -> None:
    embedded, units = three_units()
    swapped = embedded[:, [0, 2, 1, 3, 4, 5, 6, 7, 8, 9]]
    before, after = (angles_of(x, units, lively_address()) for x in (embedded, swapped))
    assert (before[0, 0] - after[0, 0]).abs().min() > 1e-4
    # Without the local rotation the sum would not know the order: the control for this test.
    plain = [sum_by_unit(x, units, units.unit).total for x in (embedded, swapped)]
    torch.testing.assert_close(plain[0], plain[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("changed_unit", [0, 1, 2])
def test_an_address_depends_on_its_own_unit_only(changed_unit: int) -> None:
    embedded, units = three_units()
    other = torch.where((units.unit == changed_unit)[..., None], normal(1, 10, DIM, seed=9), embedded)
    before, after = (angles_of(x, units, lively_address()) for x in (embedded, other))
    for unit in range(3):
        assert torch.equal(before[0, unit], after[0, unit]) == (unit != changed_unit)


def test_an_address_does_not_depend_on_where_its_unit_stands() -> None:
    embedded, units = three_units()
    moved = embedded[:, [4, 5, 6, 0, 1, 2, 3, 7, 8, 9]]
    moved_units = cr.segment(torch.tensor([[7, 8, 0, 4, 5, 6, 0, 9, 3, 0]]), cr.Terminators({TERMINATOR}))
    before, after = angles_of(embedded, units, lively_address()), angles_of(moved, moved_units, lively_address())
    torch.testing.assert_close(after[0, [1, 0, 2]], before[0, :3], rtol=0, atol=1e-14)


def test_padding_adds_nothing_even_where_it_is_not_a_number() -> None:
    embedded, _ = three_units()
    ids = torch.tensor([[4, 5, 6, 0, 7, 8, 0, 9, 3, 0]])
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[0, 1] = False
    units = cr.segment(ids, cr.Terminators({TERMINATOR}), valid=valid)
    poisoned = embedded.clone()
    poisoned[0, 1] = torch.nan
    expected = angles_by_hand([embedded[0, i] for i in (0, 2, 3)], lively_address())
    torch.testing.assert_close(angles_of(poisoned, units, lively_address())[0, 0], expected, rtol=0, atol=1e-11)


def test_gradients_of_the_address() -> None:
    address = lively_address(heads=1, pairs=2, dim=4)
    ids = torch.tensor([[4, 5, 0, 7, 0], [4, 0, 3, 7, 2]])
    valid = torch.tensor([[True] * 5, [False, True, True, True, True]])
    units = cr.segment(ids, cr.Terminators({TERMINATOR}), valid=valid)
    names = [name for name, _ in address.named_parameters()]

    def of_everything(x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        sums = sum_by_unit(x, units, units.unit)
        given_parameters = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(address, given_parameters, (sums.total, sums.tokens)), sums.open_total

    inputs = (normal(2, 5, 4, seed=5).requires_grad_(), *address.parameters())
    assert torch.autograd.gradcheck(of_everything, inputs)


def test_addresses_start_at_zero_and_learn_from_there() -> None:
    torch.manual_seed(0)
    config = cr.ModelConfig(vocab_size=11, dim=24, layers=2, heads=2, terminators=(TERMINATOR,))
    model = cr.Transformer(config).double()
    project = model.scheme.address.project
    assert not project.weight.any()
    assert not project.bias.any()
    ids = random_ids(2, 40)
    torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    # A gradient of zero at zero weights would mean that addresses never begin to exist.
    assert (project.weight.grad.abs().amax(1) > 1e-9).all()
    assert (project.bias.grad.abs() > 1e-9).all()


def angles_in(model: cr.Transformer, ids: Tensor) -> Tensor:
    """The addresses a model computes in a forward pass."""
    seen: list[Tensor] = []
    handle = model.scheme.address.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    model(ids)
    handle.remove()
    assert len(seen) == 1
    return seen[0]


def completed_slots(ids: Tensor) -> Tensor:
    units = cr.segment(ids, cr.Terminators({TERMINATOR}), max_length=7)
    return torch.arange(ids.shape[1]) < units.count[:, None]


def test_a_bfloat16_model_computes_its_addresses_in_float32() -> None:
    narrow = lively_model("content", dtype=torch.bfloat16)
    same_weights_wide = lively_model("content", dtype=torch.bfloat16).double()
    ids = random_ids(2, 300)
    found, exact = angles_in(narrow, ids), angles_in(same_weights_wide, ids)
    assert found.dtype == torch.float32
    done = completed_slots(ids)
    # Measured 6e-7; a single rounding to bfloat16 of angles this size costs 8e-3.
    assert (found - exact)[done].abs().max() < 5e-6
    assert (exact.bfloat16() - exact)[done].abs().max() > 1e-3


def test_autocast_does_not_lower_the_precision_of_addresses() -> None:
    model, ids = lively_model("content", dtype=torch.float32), random_ids(2, 300)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.head(torch.zeros(1, 24)).dtype == torch.bfloat16, "autocast is not at work in this test"
        lowered = angles_in(model, ids)
    assert lowered.dtype == torch.float32
    assert torch.equal(lowered, angles_in(model, ids))


def test_random_addresses_are_the_same_for_all_tokens_of_a_unit() -> None:
    unit = torch.tensor([[0, 0, 0, 1, 1, 2]])
    angles = random_angles(torch.tensor([5]), unit, heads=2, pairs=3)
    assert torch.equal(angles[0, 0], angles[0, 2])
    assert torch.equal(angles[0, 3], angles[0, 4])
    assert not (angles[0, 0] == angles[0, 3]).any()


@given(seed=st.integers(0, 2**62), length=st.integers(1, 30), begin=st.integers(0, 29))
def test_random_addresses_do_not_depend_on_what_is_drawn_with_them(seed: int, length: int, begin: int) -> None:
    seeds, unit = torch.tensor([seed, 17]), torch.arange(30).expand(2, -1)
    whole = random_angles(seeds, unit, heads=2, pairs=3)
    assert torch.equal(random_angles(seeds, unit[:, :length], 2, 3), whole[:, :length])
    assert torch.equal(random_angles(seeds, unit[:, begin:], 2, 3), whole[:, begin:])
    assert torch.equal(random_angles(seeds[1:], unit[1:], 2, 3), whole[1:])


def test_random_addresses_are_standard_normal() -> None:
    angles = random_angles(torch.arange(40), torch.arange(50).expand(40, -1), heads=4, pairs=16).flatten()
    count = len(angles)
    assert torch.isfinite(angles).all()
    # Five standard errors of the mean, the variance and the fourth moment of N(0, 1).
    assert angles.mean().abs() < 5 / count**0.5
    assert (angles.var() - 1).abs() < 5 * (2 / count) ** 0.5
    assert (angles.pow(4).mean() - 3).abs() < 5 * (96 / count) ** 0.5
    # Kolmogorov-Smirnov: the largest gap between the two distribution functions, at about one in a million.
    expected = torch.special.ndtr(angles.sort().values)
    observed = (torch.arange(count) + 0.5) / count
    assert (expected - observed).abs().max() < 2.7 / count**0.5


@pytest.mark.parametrize("along", ["row", "unit", "head", "pair"])
def test_random_addresses_are_independent_along(along: str) -> None:
    """No correlation between neighbours along an axis, of the angles or of their squares."""
    angles = random_angles(torch.arange(40), torch.arange(50).expand(40, -1), heads=4, pairs=16)
    axis = ("row", "unit", "head", "pair").index(along)
    length = angles.shape[axis]
    for values in (angles, angles.square() - 1):
        for lag in (1, 2, 3):
            products = values.narrow(axis, 0, length - lag) * values.narrow(axis, lag, length - lag)
            assert products.mean().abs() < 5 * products.std() / products.numel() ** 0.5


def test_random_ranks_are_uniform_and_differ_between_rows() -> None:
    ranks = random_ranks(torch.arange(30), 2000)
    assert ranks.min() >= 0
    assert ranks.max() < 1
    observed = (torch.arange(ranks.numel()) + 0.5) / ranks.numel()
    assert (ranks.flatten().sort().values - observed).abs().max() < 2.7 / ranks.numel() ** 0.5
    assert torch.corrcoef(ranks).fill_diagonal_(0).abs().max() < 5 / 2000**0.5


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor any operation gives back, gradients included."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return out


@pytest.mark.parametrize("end_rate", [0.0, 0.25, 1.0])
def test_the_cost_is_linear_in_tokens(end_rate: float) -> None:
    tokens = 4096
    ids = random_ids(1, tokens, end_rate=end_rate)
    address = ContentAddress(DIM, HEADS, PAIRS).double()
    embedded = normal(1, tokens, DIM).requires_grad_()
    with LargestTensor() as largest:
        units = cr.segment(ids, cr.Terminators({TERMINATOR}), max_length=MAX_UNIT)
        angles_of(embedded, units, address).sum().backward()
    assert tokens * DIM <= largest.elements <= 2 * tokens * DIM
    with LargestTensor() as control:
        # What the address must not make: one entry per unit and token.
        (torch.arange(tokens)[:, None] == units.unit[0]).double()
    assert control.elements > 2 * tokens * DIM


def test_a_table_of_random_addresses_is_linear_in_tokens() -> None:
    with LargestTensor() as largest:
        random_angles(torch.tensor([1]), torch.arange(4096)[None], HEADS, PAIRS)
    assert largest.elements <= 2 * 4096 * HEADS * PAIRS


def test_the_gpu_way_of_summing_units_equals_the_scatter_add() -> None:
    """It runs on the CPU too, only slower; on a GPU it is what keeps the sums the same from call to call."""
    torch.manual_seed(0)
    x = torch.randn(3, 40, 6, dtype=torch.float64, requires_grad=True)
    slot = (torch.rand(3, 40) < 0.3).long().cumsum(1)
    expected = x.new_zeros(3, 41, 6).scatter_add(1, slot[..., None].expand_as(x), x)
    torch.testing.assert_close(sum_runs(x, slot), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda values: sum_runs(values, slot), (x,))
    torch.library.opcheck(sum_runs, (x, slot), test_utils=("test_schema", "test_faketensor"))
