"""How much distant text a model uses: a flat perplexity curve does not show it.

By position: what is used of the text must show in later tokens of a window being predicted better than earlier ones.
With a changed past: the same tokens are predicted after the text as written, after its units in another order,
after nothing, and after another text. What makes no difference was not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contentrope.errors import InputError
from contentrope.evaluation.perplexity import perplexity_of, token_losses, windows_of
from contentrope.model import Transformer
from contentrope.results import finite_or_none

CONDITIONS = ("as written", "shuffled", "deleted", "replaced")
FIRST_BIN = 16


def perplexity_by_position(
    model: nn.Module,
    data: Int[Tensor, "tokens"],
    length: int,
    *,
    max_tokens: int | None = None,
    batch_tokens: int = 16384,
) -> dict[str, Any]:
    """Perplexity of the predictions made at the positions from ``edges[i]`` to before ``edges[i + 1]``, for each i.

    Windows and scored tokens are those of :func:`contentrope.evaluation.perplexity`.
    """
    edges = doubling_edges(length)
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
    if not 1 <= near < length:
        raise InputError(
            f"near {near}, the tokens at least that are not distant, must be from 1 to less than length {length}: "
            "change near, or raise length"
        )
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


def use_of_distant_text(
    model: Transformer,
    data: Int[Tensor, "tokens"],
    length: int,
    *,
    elsewhere: Int[Tensor, "other_tokens"],
    near: int,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Both measures of this file, as JSON."""
    by_position = perplexity_by_position(model, data, length, max_tokens=max_tokens)
    changed_past = perplexity_with_changed_past(
        model,
        data,
        length,
        near=near,
        terminators=model.config.terminators,
        elsewhere=elsewhere,
        max_tokens=max_tokens,
    )
    return finite_or_none({"by_position": by_position, "distant": changed_past})


class ChangedPast(NamedTuple):
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
    ends_unit = torch.tensor(sorted(set(terminators)), dtype=torch.int64)
    if not len(ends_unit):
        raise InputError("terminators are empty: give the token ids that end a unit, e.g. {10}")
    if elsewhere.ndim != 1:
        raise InputError(f"elsewhere has shape {tuple(elsewhere.shape)}: pass the token ids of a text in one row")
    ends_elsewhere = torch.tensor(_after_ends(elsewhere, ends_unit), dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    latest_start = windows.shape[1] - 1 - near
    changed = []
    for window in windows:
        unit_starts = _after_ends(window[:latest_start], ends_unit)
        if unit_starts:
            distant, recent = window[: unit_starts[-1]], window[unit_starts[-1] :]
            shuffled = _shuffled(distant, unit_starts, generator)
            other = _stretch(elsewhere, ends_elsewhere, len(distant), generator).to(distant.dtype)
            pasts = (distant, shuffled, distant[:0], other)
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


def _stretch(
    text: Int[Tensor, "other_tokens"], unit_ends: Int[Tensor, "ends"], length: int, generator: torch.Generator
) -> Int[Tensor, "{length}"]:
    """So many tokens of another text, up to where one of its units ends.

    They may begin inside a unit, as windows do; so the length can be exact.
    """
    long_enough = unit_ends[unit_ends >= length]
    if not len(long_enough):
        raise InputError(
            f"elsewhere is too short: no unit ends at or after {length}, the tokens to replace, of its "
            f"{len(text)}; give a longer text, cut by the same terminators"
        )
    end = int(long_enough[torch.randint(len(long_enough), (), generator=generator)])
    return text[end - length : end]


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
