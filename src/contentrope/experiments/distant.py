"""How much distant text a model uses: a flat perplexity curve does not show it.

By position: what is used of the text must show in later tokens of a window being predicted better than earlier ones.
With a changed past: the same tokens are predicted after the text as written, after its units in another order,
after nothing, and after another text. What makes no difference was not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contentrope.errors import InputError
from contentrope.experiments.evaluation import perplexity_of, token_losses, windows_of

CONDITIONS = ("as written", "shuffled", "deleted", "replaced")
FIRST_BIN = 16


def perplexity_by_position(
    model: nn.Module,
    data: Int[Tensor, "tokens"],
    length: int,
    edges: Sequence[int] | None = None,
    max_tokens: int | None = None,
    batch_tokens: int = 16384,
) -> dict[str, Any]:
    """Perplexity of the predictions made at the positions from ``edges[i]`` to before ``edges[i + 1]``, for each i.

    Windows and scored tokens are those of :func:`contentrope.experiments.evaluation.perplexity`.
    """
    edges = doubling_edges(length) if edges is None else _checked_edges(edges, length)
    losses = token_losses(model, windows_of(data, length, max_tokens), batch_tokens)
    bins = losses.split([end - begin for begin, end in pairwise(edges)], dim=1)
    return {
        "length": length,
        "edges": edges,
        "perplexity": [perplexity_of(part) for part in bins],
        "tokens": [part.numel() for part in bins],
    }


def perplexity_with_changed_past(
    model: nn.Module,
    data: Int[Tensor, "tokens"],
    length: int,
    *,
    near: int,
    terminators: Iterable[int],
    elsewhere: Int[Tensor, "other_tokens"],
    seed: int = 0,
    max_tokens: int | None = None,
    batch_tokens: int = 16384,
) -> dict[str, Any]:
    """Perplexity of the last units of every window, at least ``near`` tokens, with four versions of the text before.

    The same tokens are scored in all four; a window whose recent units would leave nothing before them is skipped.
    ``terminators`` end a unit; ``elsewhere`` is the other text, e.g. the training text. The model must be causal.
    """
    _check_near(near, length)
    windows = windows_of(data, length, max_tokens).cpu()
    changed = change_pasts(windows, near=near, terminators=terminators, elsewhere=elsewhere.cpu(), seed=seed)
    scored = [window.scored for window in changed]
    found = {}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        for condition in CONDITIONS:
            torch.manual_seed(seed)  # schemes that draw at random: the same again
            texts = [window.texts[condition] for window in changed]
            found[condition] = perplexity_of(_last_losses(model, texts, scored, batch_tokens))
    return {
        "length": length,
        "near": near,
        "windows": len(changed),
        "skipped": len(windows) - len(changed),
        "scored": sum(scored),
        "perplexity": found,
    }


@dataclass(frozen=True)
class ChangedPast:
    """One window under every condition. The last ``scored`` tokens of each text are the ones to predict."""

    scored: int
    texts: dict[str, Int[Tensor, "_"]]


def change_pasts(
    windows: Int[Tensor, "windows tokens"],
    *,
    near: int,
    terminators: Iterable[int],
    elsewhere: Int[Tensor, "other_tokens"],
    seed: int,
) -> list[ChangedPast]:
    """Every window that has a distant part, with that part as written, shuffled, deleted and replaced."""
    ends_unit = _checked_terminators(terminators)
    other = _OtherText(elsewhere, ends_unit)
    generator = torch.Generator().manual_seed(seed)
    latest_start = windows.shape[1] - 1 - near
    changed = []
    for window in windows:
        unit_starts = _after_ends(window[:latest_start], ends_unit)
        if unit_starts:
            distant, recent = window[: unit_starts[-1]], window[unit_starts[-1] :]
            pasts = (distant, _shuffled(distant, unit_starts, generator), distant[:0], other.draw(distant, generator))
            texts = {name: torch.cat([past, recent]) for name, past in zip(CONDITIONS, pasts, strict=True)}
            changed.append(ChangedPast(len(recent) - 1, texts))
    if not changed:
        raise InputError(
            f"no unit ends within the first {latest_start} tokens of any of the {len(windows)} windows, so nothing "
            f"is distant: check terminators {ends_unit.tolist()}, lower near ({near}), or raise length"
        )
    return changed


def _after_ends(tokens: Int[Tensor, "tokens"], ends_unit: Int[Tensor, "ids"]) -> list[int]:
    """The places right after a token that ends a unit."""
    return (torch.isin(tokens, ends_unit).nonzero().flatten() + 1).tolist()


def _shuffled(
    distant: Int[Tensor, "tokens"], unit_starts: list[int], generator: torch.Generator
) -> Int[Tensor, "tokens"]:
    """Whole units in random order; the rest of a unit at the window's begin, ended like the others, is one of them."""
    units = distant.tensor_split(unit_starts[:-1])
    return torch.cat([units[i] for i in torch.randperm(len(units), generator=generator).tolist()])


class _OtherText:
    """Stretches of another text that end where one of its units ends, whatever their length.

    They may begin inside a unit, as windows do; so the length can be exact.
    """

    def __init__(self, ids: Int[Tensor, "other_tokens"], ends_unit: Int[Tensor, "ids"]) -> None:
        if ids.ndim != 1:
            raise InputError(f"elsewhere has shape {tuple(ids.shape)}: pass the token ids of a text in one row")
        self.ids = ids
        self.unit_ends = torch.tensor(_after_ends(ids, ends_unit), dtype=torch.int64)

    def draw(self, distant: Int[Tensor, "tokens"], generator: torch.Generator) -> Int[Tensor, "tokens"]:
        long_enough = self.unit_ends[self.unit_ends >= len(distant)]
        if not len(long_enough):
            raise InputError(
                f"elsewhere is too short: no unit ends at or after {len(distant)}, the tokens to replace, of its "
                f"{len(self.ids)}; give a longer text, cut by the same terminators"
            )
        end = int(long_enough[torch.randint(len(long_enough), (), generator=generator)])
        return self.ids[end - len(distant) : end].to(distant.dtype)


def _last_losses(
    model: nn.Module, texts: list[Tensor], scored: list[int], batch_tokens: int
) -> Float[Tensor, "all_scored"]:
    """Losses of the last ``scored`` tokens of each text, text after text."""
    # Filled up at the end, where a causal model does not look: no mask is needed, and all batches have one shape.
    losses = token_losses(model, pad_sequence(texts, batch_first=True), batch_tokens)
    end = torch.tensor([[len(text) - 1] for text in texts])
    place = torch.arange(losses.shape[1])
    return losses[(place < end) & (place >= end - torch.tensor(scored)[:, None])]


def doubling_edges(length: int) -> list[int]:
    """Bins that double in width after the first two.

    >>> doubling_edges(100)
    [0, 16, 32, 64, 100]
    """
    edges = [0]
    while edges[-1] < length:
        edges.append(min(length, max(FIRST_BIN, 2 * edges[-1])))
    return edges


def _checked_edges(edges: Sequence[int], length: int) -> list[int]:
    edges = [int(edge) for edge in edges]
    rising = all(begin < end for begin, end in pairwise(edges))
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != length or not rising:
        raise InputError(f"edges must rise from 0 to the length {length}, so that every token is in a bin; got {edges}")
    return edges


def _check_near(near: int, length: int) -> None:
    if near < 1:
        raise InputError(f"near must be at least 1, got {near}: it is how many tokens at least are not distant")
    if near >= length:
        raise InputError(f"near {near} leaves nothing distant in windows of {length}: lower near or raise length")


def _checked_terminators(terminators: Iterable[int]) -> Int[Tensor, "ids"]:
    ids = sorted(set(terminators))
    if not ids:
        raise InputError("terminators are empty: give the token ids that end a unit, e.g. {10}")
    return torch.tensor(ids)
