"""The continuity bound of the appendix, on random texts, beside a scheme that violates it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contentrope.address import random_angles
from contentrope.rotary import rotation_of
from tests.theorem.pieces import (
    DIM,
    HEAD_DIM,
    HEADS,
    LONGEST,
    TOLERANCE,
    Pieces,
    Text,
    all_pieces,
    descriptor,
    distance,
    operator,
    seeds,
    texts,
)


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
    rotated = torch.linalg.matrix_norm(address_of(pieces, z) - address_of(pieces, u), ord=2).max()
    assert float(rotated) <= lipschitz_constant(pieces, [z, u]) * float((z - u).norm()) + TOLERANCE


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
    """Moving the descriptor straight up the steepest row rotates the address by at least half of K per unit."""
    norm, project = pieces.address.norm, pieces.address.project
    z = torch.randn(DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = project.weight * norm.weight
    # LayerNorm does not see a shift of all entries or a change of length.
    unseen, _ = torch.linalg.qr(torch.stack([torch.ones(DIM, dtype=torch.float64), z - z.mean()], dim=1))
    seen = rows - rows @ unseen @ unseen.T
    direction = seen[seen.norm(dim=1).argmax()]
    u = z + 1e-6 * direction / direction.norm()
    rotated = torch.linalg.matrix_norm(address_of(pieces, z) - address_of(pieces, u), ord=2).max()
    assert float(rotated) >= 0.5 * lipschitz_constant(pieces, [z, u]) * 1e-6


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
