"""Theorem 1 and the continuity bound of the appendix, on random texts, each beside a scheme that violates it.

Operators are read off the library itself, as matrices: the images of the basis vectors under ``rotate``. A text is a
list of units, a unit a (tokens, dim) tensor of input embeddings. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.address import ContentAddress, random_angles, sum_by_unit
from contentrope.rotary import PositionRotations, Rotation, inverse_frequencies, rotate, rotation_of
from contentrope.units import Units
from tests.support import TERMINATOR, VOCABULARY, lively_model

HEADS, HEAD_DIM = 2, 8
DIM = HEADS * HEAD_DIM
LONGEST = 5
TOLERANCE = 1e-12
MOVED = 1e-3

Text = list[Tensor]
Token = tuple[int, int]
"""A unit of a text and a position in it."""


@dataclass(frozen=True)
class Pieces:
    """The method's three maps: position to rotation, content to address, and the pairing of dimensions."""

    rotary: cr.RotaryConfig
    rotations: PositionRotations
    address: ContentAddress

    def units(self, text: Text) -> Units:
        ends = torch.cat([torch.arange(len(unit)) == len(unit) - 1 for unit in text])[None]
        return cr.segment(torch.zeros(ends.shape, dtype=torch.int64), cr.Boundaries(ends), max_length=LONGEST)

    def at(self, positions: Tensor, bound: int) -> Rotation:
        return self.rotations.at(positions, torch.float64, bound=bound)

    def angles_by_token(self, text: Text, units: Units, slot: Tensor) -> Tensor:
        local = self.at(units.local, LONGEST)
        by_head = torch.cat(text)[None].unflatten(-1, (HEADS, HEAD_DIM))
        total, tokens, _ = sum_by_unit(rotate(by_head, local, self.rotary.pairs).flatten(-2), units, slot)
        angles = self.address(total, tokens)
        return angles[0, slot[0]][None]

    def content(self, text: Text) -> Rotation:
        """A(i, e) of every token: the method."""
        units = self.units(text)
        return self.at(units.local, LONGEST).then(rotation_of(self.angles_by_token(text, units, units.unit)))

    def per_token(self, text: Text) -> Rotation:
        """Not the method: every token has an address of its own instead of its unit's."""
        units = self.units(text)
        alone = torch.arange(units.seq_length)[None]
        return self.at(units.local, LONGEST).then(rotation_of(self.angles_by_token(text, units, alone)))

    def global_rope(self, text: Text) -> Rotation:
        tokens = sum(len(unit) for unit in text)
        return self.at(torch.arange(tokens)[None], tokens)

    def one_step(self) -> Tensor:
        """The matrix of R_1, per head; the theorem's Rot."""
        return self.matrices(self.at(torch.tensor([[1]]), 2))[0]

    def matrices(self, rotation: Rotation) -> Tensor:
        """(tokens, heads, head_dim, head_dim): column n is where basis vector n goes."""
        tokens = rotation.cos.shape[1]
        basis = torch.eye(HEAD_DIM, dtype=torch.float64)
        repeated = basis[:, None].expand(HEAD_DIM, HEADS, HEAD_DIM).repeat(tokens, 1, 1)[None]
        each = Rotation(*(part.repeat_interleave(HEAD_DIM, dim=1) for part in (rotation.cos, rotation.sin)))
        images = rotate(repeated, each, self.rotary.pairs)[0].view(tokens, HEAD_DIM, HEADS, HEAD_DIM)
        return images.permute(0, 2, 3, 1)


def column(text: Text, token: Token) -> int:
    unit, position = token
    return sum(len(u) for u in text[:unit]) + position


def operator(addresses: Tensor, text: Text, key: Token, query: Token) -> Tensor:
    """P of the pair: A(query)^-1 A(key), per head."""
    return torch.linalg.inv(addresses[column(text, query)]) @ addresses[column(text, key)]


def make_pieces(seed: int, **rotary: Any) -> Pieces:
    config = cr.RotaryConfig(**rotary)
    torch.manual_seed(seed)
    address = ContentAddress(DIM, HEADS, config.pair_count(HEAD_DIM)).double()
    with torch.no_grad():
        # A fresh map is zero: every unit would have the address I, and nothing could go wrong.
        for parameter in address.parameters():
            parameter.normal_(std=0.7)
    address.requires_grad_(False)
    return Pieces(config, PositionRotations(inverse_frequencies(config, HEADS, HEAD_DIM)), address)


seeds = st.integers(0, 2**32 - 1)
all_pieces = st.builds(
    make_pieces,
    seeds,
    base=st.sampled_from([3.0, 100.0, 10000.0]),
    pairs=st.sampled_from(["half", "interleaved"]),
    frequencies=st.sampled_from(["per_head", "model_wide"]),
    fraction=st.sampled_from([0.5, 1.0]),
)


@st.composite
def texts(draw: st.DrawFn, least: int = 1, most: int = 5) -> Text:
    generator = torch.Generator().manual_seed(draw(seeds))
    lengths = draw(st.lists(st.integers(1, LONGEST), min_size=least, max_size=most))
    return [torch.randn(length, DIM, generator=generator, dtype=torch.float64) for length in lengths]


def any_token(text: Text, unit: int) -> st.SearchStrategy[Token]:
    return st.tuples(st.just(unit), st.integers(0, len(text[unit]) - 1))


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


# --- Part 1: within a unit, local RoPE ---


@given(all_pieces, texts(), st.data())
def test_within_a_unit_the_operator_is_local_rope(pieces: Pieces, text: Text, data: st.DataObject) -> None:
    unit = data.draw(st.integers(0, len(text) - 1))
    (_, i), (_, j) = data.draw(any_token(text, unit)), data.draw(any_token(text, unit))
    addresses = pieces.matrices(pieces.content(text))
    one_step = pieces.one_step()
    expected = torch.linalg.matrix_power(one_step, i - j)
    assert distance(operator(addresses, text, (unit, i), (unit, j)), expected) <= TOLERANCE


@given(all_pieces, texts(), st.data())
def test_addresses_per_token_break_local_rope(pieces: Pieces, text: Text, data: st.DataObject) -> None:
    unit = data.draw(st.integers(0, len(text) - 1))
    assume(len(text[unit]) > 1)
    addresses = pieces.matrices(pieces.per_token(text))
    one_step = pieces.one_step()
    assert distance(operator(addresses, text, (unit, 1), (unit, 0)), one_step) > MOVED


@given(all_pieces, texts())
def test_addresses_are_orthogonal(pieces: Pieces, text: Text) -> None:
    addresses = pieces.matrices(pieces.content(text))
    identity = torch.eye(HEAD_DIM, dtype=torch.float64).expand_as(addresses)
    assert distance(addresses @ addresses.transpose(-1, -2), identity) <= TOLERANCE


# --- Part 2: other units do not matter ---


@st.composite
def edits(draw: st.DrawFn) -> tuple[Text, Text, list[int]]:
    """Two fixed units among others, then the same two among others again: added, dropped and in any order.

    Gives both texts and, for the two fixed units, their number in the second text.
    """
    fixed = draw(texts(2, 2))
    others, new = draw(texts(0, 4)), draw(texts(0, 4))
    kept = [other for other in others if draw(st.booleans())]
    first = [*fixed, *others]
    order = draw(st.permutations(range(2 + len(kept) + len(new))))
    pool = [*fixed, *kept, *new]
    return first, [pool[n] for n in order], [order.index(0), order.index(1)]


@given(all_pieces, edits(), st.data())
def test_other_units_do_not_change_the_operator(
    pieces: Pieces, edit: tuple[Text, Text, list[int]], data: st.DataObject
) -> None:
    before, after, moved_to = edit
    addresses_before, addresses_after = (pieces.matrices(pieces.content(text)) for text in (before, after))
    (_, i), (_, j) = data.draw(any_token(before, 0)), data.draw(any_token(before, 1))
    expected = operator(addresses_before, before, (0, i), (1, j))
    found = operator(addresses_after, after, (moved_to[0], i), (moved_to[1], j))
    assert distance(found, expected) <= TOLERANCE


@given(all_pieces, texts(2, 2), texts(1, 3), st.data())
def test_an_inserted_unit_changes_the_operator_of_global_rope(
    pieces: Pieces, fixed: Text, inserted: Text, data: st.DataObject
) -> None:
    after = [fixed[0], *inserted, fixed[1]]
    (_, i), (_, j) = data.draw(any_token(fixed, 0)), data.draw(any_token(fixed, 1))
    expected = operator(pieces.matrices(pieces.global_rope(fixed)), fixed, (0, i), (1, j))
    found = operator(pieces.matrices(pieces.global_rope(after)), after, (0, i), (len(after) - 1, j))
    assert distance(found, expected) > MOVED


class Weights:
    """Reads the attention weights of a model, of any scheme, by letting it attend to one-hot values."""

    def __init__(self, model: cr.Transformer) -> None:
        self.by_layer: list[Tensor] = []
        make_frame = model.scheme.frame

        def probed(chunk: Any) -> Any:
            frame = make_frame(chunk)
            attend = frame.attend

            def attend_and_look(layer: int, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                parts = []
                for part in torch.eye(value.shape[1], dtype=value.dtype).split(value.shape[-1], dim=1):
                    one_hot = torch.zeros_like(value)
                    one_hot[..., : part.shape[1]] = part[None, :, None]
                    parts.append(attend(layer, hidden, query, key, one_hot)[..., : part.shape[1]])
                self.by_layer.append(torch.cat(parts, dim=-1)[0].transpose(0, 1))
                return attend(layer, hidden, query, key, value)

            frame.attend = attend_and_look
            return frame

        model.scheme.frame = probed


def written(units: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
    """A text as ids, and the columns of each unit."""
    lengths = torch.tensor([len(unit) for unit in units])
    columns = torch.arange(int(lengths.sum())).split(lengths.tolist())
    return torch.tensor([[token for unit in units for token in unit]]), list(columns)


def first_layer_scores(model: cr.Transformer, units: list[list[int]], key: int, query: int) -> Tensor:
    """Scores (heads, queries, keys) of one unit's tokens with another's, up to a constant per query."""
    weights = Weights(model)
    ids, columns = written(units)
    with torch.no_grad():
        model(ids)
    logs = weights.by_layer[0][:, columns[query]][:, :, columns[key]].log()
    return logs - logs[..., :1]


some_unit = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=5).map(lambda unit: [*unit, TERMINATOR])
some_units = st.lists(some_unit, min_size=1, max_size=3)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@given(some_unit, some_unit, some_units, some_units, st.randoms(use_true_random=False))
def test_first_layer_scores_of_the_model_ignore_other_units(
    backend: str, key: list[int], query: list[int], before: list[list[int]], between: list[list[int]], random: Any
) -> None:
    """The model's own path: closing and open queries, keys of an earlier unit, any others before and between."""
    expected = first_layer_scores(lively_model("content", backend=backend), [key, query], 0, 1)
    random.shuffle(before)
    edited = [*before, key, *between, query]
    found = first_layer_scores(lively_model("content", backend=backend), edited, len(before), len(edited) - 1)
    assert distance(found, expected) <= TOLERANCE


@given(some_unit, some_unit, some_units)
def test_first_layer_scores_of_rope_depend_on_other_units(
    key: list[int], query: list[int], between: list[list[int]]
) -> None:
    expected = first_layer_scores(lively_model("rope"), [key, query], 0, 1)
    found = first_layer_scores(lively_model("rope"), [key, *between, query], 0, len(between) + 1)
    assert distance(found, expected) > MOVED


def first_layer_output(model: cr.Transformer, ids: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    handle = model.blocks[0].register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return outputs[0][0]


@pytest.mark.parametrize("options", [{}, {"competition": 1.0}], ids=["paper", "competition"])
@given(st.lists(some_unit, min_size=3, max_size=5), st.data())
def test_reordering_earlier_units_keeps_the_first_layer_but_moves_rope(
    options: dict[str, float], units: list[list[int]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(units) - 1)))
    shuffled = [*(units[n] for n in order), units[-1]]
    last = written(units)[1][-1]
    model, rope = lively_model("content", options=options), lively_model("rope")
    original, moved = (first_layer_output(model, written(text)[0])[last] for text in (units, shuffled))
    assert distance(original, moved) <= TOLERANCE
    if shuffled != units:
        original, moved = (first_layer_output(rope, written(text)[0])[last] for text in (units, shuffled))
        assert distance(original, moved) > MOVED


# --- Part 3: one fixed family, however long the text ---


def descriptor(pieces: Pieces, unit: Tensor) -> Tensor:
    """Equation (1) word by word: the mean of R_i x_i, with powers of one matrix."""
    one_step = pieces.one_step()
    turned = [torch.linalg.matrix_power(one_step, i) @ token.view(HEADS, HEAD_DIM, 1) for i, token in enumerate(unit)]
    return torch.stack(turned).mean(0).flatten()


def phi(pieces: Pieces, z: Tensor) -> Tensor:
    """Equation (2) word by word: LN, W, and 2x2 rotations put where the pairs are."""
    norm, project = pieces.address.norm, pieces.address.project
    centred = z - z.mean()
    normed = centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias
    angles = (project.weight @ normed + project.bias).view(HEADS, -1)
    pairs = angles.shape[1]
    matrix = torch.eye(HEAD_DIM, dtype=torch.float64).repeat(HEADS, 1, 1)
    for pair in range(pairs):
        a, b = (pair, pair + pairs) if pieces.rotary.pairs == "half" else (2 * pair, 2 * pair + 1)
        cos, sin = angles[:, pair].cos(), angles[:, pair].sin()
        matrix[:, a, a], matrix[:, a, b], matrix[:, b, a], matrix[:, b, b] = cos, -sin, sin, cos
    return matrix


@given(all_pieces, texts(2, 6), st.data())
def test_every_operator_is_made_of_positions_and_descriptors_alone(
    pieces: Pieces, text: Text, data: st.DataObject
) -> None:
    """Rebuilt from (i, j, z, z') without the text: R_j^-1 phi(z')^-1 phi(z) R_i."""
    key = data.draw(st.integers(0, len(text) - 1).flatmap(lambda unit: any_token(text, unit)))
    query = data.draw(st.integers(0, len(text) - 1).flatmap(lambda unit: any_token(text, unit)))
    one_step = pieces.one_step()
    local = [torch.linalg.matrix_power(one_step, i) for i in range(LONGEST)]
    of_key, of_query = (phi(pieces, descriptor(pieces, text[unit])) for unit, _ in (key, query))
    member = torch.linalg.inv(of_query @ local[query[1]]) @ of_key @ local[key[1]]
    found = operator(pieces.matrices(pieces.content(text)), text, key, query)
    assert distance(found, member) <= TOLERANCE


def small_model(pairs: Any, backend: str = "auto") -> tuple[cr.Transformer, Pieces]:
    """A model of these tests' dimensions, and the pieces it is made of."""
    rotary = cr.RotaryConfig(pairs=pairs)
    model = lively_model("content", backend=backend, dim=DIM, heads=HEADS, layers=1, rotary=rotary)
    model.requires_grad_(False)
    return model, Pieces(model.config.rotary, model.scheme.reader.rotations, model.scheme.address)


layouts = st.sampled_from(["half", "interleaved"])


@given(st.lists(some_unit, min_size=1, max_size=5), layouts)
def test_the_model_gives_its_units_these_addresses(units: list[list[int]], pairs: Any) -> None:
    """The addresses a model notes in its cache are equations (1) and (2) of its input embeddings."""
    model, pieces = small_model(pairs)
    ids, columns = written(units)
    cache = model.new_cache(1)
    model(ids, cache=cache)
    found = pieces.matrices(rotation_of(cache.angles["turned"][:, : cache.length]))
    for span in columns:
        expected = phi(pieces, descriptor(pieces, model.embedding.weight[ids[0, span]]))
        assert distance(found[span], expected.expand_as(found[span])) <= TOLERANCE


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@given(some_unit, some_unit, layouts)
def test_the_model_scores_with_these_operators(
    backend: str, key_unit: list[int], query_unit: list[int], pairs: Any
) -> None:
    """The score of a query with an earlier unit is q' R_j^-1 phi(z')^-1 phi(z) R_i k; phi(z') only where it closes."""
    model, pieces = small_model(pairs, backend)
    of_key, of_query = (
        phi(pieces, descriptor(pieces, model.embedding.weight[torch.tensor(unit)])) for unit in (key_unit, query_unit)
    )
    block, powers = model.blocks[0], [torch.linalg.matrix_power(pieces.one_step(), i) for i in range(7)]
    projected = block.query_key_value(block.attention_norm(model.embedding.weight)).view(VOCABULARY, 3, HEADS, HEAD_DIM)
    keys = [of_key @ powers[i] @ projected[token, 1, :, :, None] for i, token in enumerate(key_unit)]
    queries = [powers[j] @ projected[token, 0, :, :, None] for j, token in enumerate(query_unit)]
    queries[-1] = of_query @ queries[-1]
    products = torch.stack([torch.stack([(q * k).sum((1, 2)) for k in keys]) for q in queries])
    expected = products.permute(2, 0, 1) / HEAD_DIM**0.5
    found = first_layer_scores(model, [key_unit, query_unit], 0, 1)
    assert distance(found, expected - expected[..., :1]) <= TOLERANCE


def count_distinct(operators: Tensor) -> int:
    flat = operators.flatten(1)
    return len(torch.unique((flat * 1e6).round(), dim=0))


def all_operators(addresses: Tensor) -> Tensor:
    return (addresses[:, None].transpose(-1, -2) @ addresses[None]).flatten(0, 1)


@given(seeds, texts(1, 3), st.integers(2, 4))
def test_more_units_add_no_operators_but_more_global_positions_do(seed: int, text: Text, times: int) -> None:
    # A low base keeps neighbouring powers of the rotation apart, so that they can be counted.
    pieces = make_pieces(seed, base=3.0)
    tokens = sum(len(unit) for unit in text)
    content, global_rope = (
        [count_distinct(all_operators(pieces.matrices(scheme(text * n)))) for n in (1, times)]
        for scheme in (pieces.content, pieces.global_rope)
    )
    assert content[1] == content[0]
    assert global_rope == [2 * tokens - 1, 2 * times * tokens - 1]


@given(all_pieces, st.integers(1, 60))
def test_local_positions_stay_bounded_without_any_end(pieces: Pieces, tokens: int) -> None:
    """The maximum length ends units that nothing else ends, so i and j stay in 0..L-1."""
    no_ends = torch.zeros(1, tokens, dtype=torch.bool)
    units = cr.segment(torch.zeros(1, tokens, dtype=torch.int64), cr.Boundaries(no_ends), max_length=LONGEST)
    assert units.local.tolist() == [[t % LONGEST for t in range(tokens)]]
    assert len(torch.unique(units.local)) == min(tokens, LONGEST)


@given(st.integers(2, 12), st.integers(1, 12))
def test_longer_contexts_give_global_rope_rotations_never_seen(length: int, extra: int) -> None:
    pieces = make_pieces(0, base=3.0)
    seen = pieces.matrices(pieces.at(torch.arange(length)[None], length))
    longer = pieces.matrices(pieces.at(torch.arange(length + extra)[None], length + extra))
    gaps = [distance(longer[-1], known) for one in seen for known in (one, torch.linalg.inv(one))]
    assert min(gaps) > MOVED


# --- Continuity ---


def lipschitz_constant(pieces: Pieces, descriptors: list[Tensor]) -> float:
    """K of phi on descriptors whose standard deviation is at least the smallest of these.

    |R(a) - R(b)| <= max |a_b - b_b|; an angle is a row of W diag(gamma) times a normalized vector; and normalizing
    vectors of deviation at least s is 1/s-Lipschitz, as is projecting on a ball.
    """
    norm, project = pieces.address.norm, pieces.address.project
    steepest_row = (project.weight * norm.weight).norm(dim=1).max()
    spread = min((z.var(unbiased=False) + norm.eps).sqrt() for z in descriptors)
    return float(steepest_row / spread)


def address_of(pieces: Pieces, z: Tensor) -> Tensor:
    angles = pieces.address(z[None, None], torch.ones(1, 1, dtype=torch.float64))
    return pieces.matrices(rotation_of(angles))[0]


def score(query: Tensor, key: Tensor, of_query: Tensor, of_key: Tensor, local: Tensor, i: int, j: int) -> Tensor:
    """F of the proposition for every head: q' R_j^-1 phi(z')^-1 phi(z) R_i k."""
    middle = local[j].transpose(-1, -2) @ of_query.transpose(-1, -2) @ of_key @ local[i]
    return torch.einsum("hd,hde,he->h", query, middle, key)


def unit_vectors(generator: torch.Generator) -> Tensor:
    x = torch.randn(HEADS, HEAD_DIM, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


positions = st.integers(0, LONGEST - 1)
steps = st.sampled_from([1e-6, 1e-3, 0.1, 1.0])


@given(all_pieces, seeds, positions, positions, steps, steps)
def test_scores_move_at_most_k_times_the_descriptors(
    pieces: Pieces, seed: int, i: int, j: int, step: float, other_step: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    z, z_other = torch.randn(2, DIM, generator=generator, dtype=torch.float64)
    u = z + step * torch.randn(DIM, generator=generator, dtype=torch.float64)
    u_other = z_other + other_step * torch.randn(DIM, generator=generator, dtype=torch.float64)
    query, key = unit_vectors(generator), unit_vectors(generator)
    local = pieces.matrices(pieces.at(torch.arange(LONGEST)[None], LONGEST))
    before, after = (
        score(query, key, address_of(pieces, primed), address_of(pieces, plain), local, i, j)
        for plain, primed in ((z, z_other), (u, u_other))
    )
    bound = lipschitz_constant(pieces, [z, z_other, u, u_other]) * ((z - u).norm() + (z_other - u_other).norm())
    assert distance(before, after) <= float(bound) + TOLERANCE
    turned = torch.linalg.matrix_norm(address_of(pieces, z) - address_of(pieces, u), ord=2).max()
    assert float(turned) <= lipschitz_constant(pieces, [z, u]) * float((z - u).norm()) + TOLERANCE


@given(all_pieces, texts(2, 2), seeds, positions, positions, steps)
def test_scores_move_at_most_k_times_the_contents(
    pieces: Pieces, text: Text, seed: int, i: int, j: int, step: float
) -> None:
    """From the tokens on: pooling is a mean of isometries, so descriptors move no further than the tokens do."""
    generator = torch.Generator().manual_seed(seed)
    moved = [unit + step * torch.randn(unit.shape, generator=generator, dtype=unit.dtype) for unit in text]
    query, key = unit_vectors(generator), unit_vectors(generator)
    i, j = min(i, len(text[0]) - 1), min(j, len(text[1]) - 1)
    before, after = (
        torch.einsum("hd,hde,he->h", query, operator(pieces.matrices(pieces.content(t)), t, (0, i), (1, j)), key)
        for t in (text, moved)
    )
    constant = lipschitz_constant(pieces, [descriptor(pieces, unit) for unit in (*text, *moved)])
    distances = [(a - b).norm(dim=1).mean() for a, b in zip(text, moved, strict=True)]
    assert distance(before, after) <= constant * float(sum(distances)) + TOLERANCE


@given(all_pieces, seeds)
def test_the_bound_is_not_idle(pieces: Pieces, seed: int) -> None:
    """Moving the descriptor straight up the steepest row turns the address by at least half of K per unit."""
    norm, project = pieces.address.norm, pieces.address.project
    z = torch.randn(DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = project.weight * norm.weight
    # LayerNorm does not see a shift of all entries or a change of length.
    unseen, _ = torch.linalg.qr(torch.stack([torch.ones(DIM, dtype=torch.float64), z - z.mean()], dim=1))
    seen = rows - rows @ unseen @ unseen.T
    direction = seen[seen.norm(dim=1).argmax()]
    u = z + 1e-6 * direction / direction.norm()
    turned = torch.linalg.matrix_norm(address_of(pieces, z) - address_of(pieces, u), ord=2).max()
    assert float(turned) >= 0.5 * lipschitz_constant(pieces, [z, u]) * 1e-6


@given(all_pieces, seeds, positions, positions)
def test_random_addresses_break_the_bound(pieces: Pieces, seed: int, i: int, j: int) -> None:
    """Drawn by unit number, two units of nearly the same content have nothing in common."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(DIM, generator=generator, dtype=torch.float64)
    u = z + 1e-6 * torch.randn(DIM, generator=generator, dtype=torch.float64)
    pairs = pieces.rotary.pair_count(HEAD_DIM)
    drawn = random_angles(torch.tensor([seed]), torch.arange(3)[None], HEADS, pairs)
    of_z, of_u, of_query = pieces.matrices(rotation_of(drawn))
    key = unit_vectors(generator)
    local = pieces.matrices(pieces.at(torch.arange(LONGEST)[None], LONGEST))
    # The query that looks along the difference: the bound is for all queries.
    gap = torch.einsum(
        "hde,he->hd", local[j].transpose(-1, -2) @ of_query.transpose(-1, -2) @ (of_z - of_u) @ local[i], key
    )
    query = gap / gap.norm(dim=-1, keepdim=True)
    before, after = (score(query, key, of_query, of_key, local, i, j) for of_key in (of_z, of_u))
    assert distance(before, after) > lipschitz_constant(pieces, [z, u]) * float((z - u).norm())


def test_operators_between_neighbouring_units_differ() -> None:
    """Without this, a map that gives every unit the same address would pass all of the above."""
    pieces = make_pieces(0)
    text = list(torch.randn(6, 3, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    addresses = pieces.matrices(pieces.content(text))
    found = [operator(addresses, text, (a, 0), (b, 0)) for a, b in pairwise(range(len(text)))]
    assert all(distance(a, b) > MOVED for a, b in pairwise(found))
