"""How well a model reads held-out text, below and above the length it was made for, before and after training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.evaluation.perplexity import evaluating, perplexity_of, token_losses, windows_of
from contentrope.hf.chat import ChatRows, Conversation
from contentrope.hf.finetune import CausalLM
from contentrope.training.batches import IGNORED, Batch

SHORTEST = 4
"""The first length measured is so many times shorter than what the model reads."""
TIMES_THE_LIMIT = 4
"""The last one so many times longer."""
MOST_SCORED = 131_072
"""Held-out tokens for each length."""
LEAST_SCORED = 8_192
"""With fewer a perplexity says little."""
COST = 0.25
"""All measuring together, as a share of what the training costs; only the longest length may ask for more."""
READ_AT_ONCE = 4096
"""Tokens in short windows; a longer window is read alone."""
NOT_WORTH_SAYING = 0.0005
"""A relative difference that rounding makes too."""

Perplexities = Mapping[int, float]
Told = Callable[[int, int], object]
"""Is told of tokens read, and how many there are."""


def reading_limit(config: Any) -> int | None:
    """The longest text a model was made for: where its rotary frequencies were rescaled, before that.

    >>> from transformers import LlamaConfig
    >>> reading_limit(LlamaConfig(max_position_embeddings=2048))
    2048
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    by_kind = [kind for kind in (rope, *rope.values()) if isinstance(kind, Mapping)]
    named = [kind.get("original_max_position_embeddings") for kind in by_kind]
    named += [getattr(text, name, None) for name in ("original_max_position_embeddings", "max_position_embeddings")]
    return next((int(found) for found in named if isinstance(found, int) and found > 0), None)


def changes_frequencies(config: Any) -> bool:
    """Whether rotary frequencies depend on the length of the text, which a near window cannot have."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [kind.get("rope_type") for kind in (rope, *rope.values()) if isinstance(kind, Mapping)]
    return any(kind in ("dynamic", "longrope") for kind in kinds)


def near_window(config: Any, length: int, longest_unit: int) -> int:
    """A quarter of what a model reads well, and at most half of a training window, so that the other half is far.

    Far units seem to lie just beyond the near window, which with the longest unit stays within the model's limit.

    >>> from transformers import LlamaConfig
    >>> [near_window(LlamaConfig(max_position_embeddings=8192), length, 256) for length in (512, 16384)]
    [256, 2048]
    """
    limit = reading_limit(config) or length
    return 0 if changes_frequencies(config) else max(0, min(limit // 4, length // 2, limit - longest_unit))


def lengths_for(limit: int, length: int, tokens: int) -> list[int]:
    """The lengths to measure in a held-out text of so many tokens: doubling, from a quarter of the shorter one of the
    model's limit and the training length, to a few times the limit where the text allows.

    >>> lengths_for(2048, 512, 100_000), lengths_for(2048, 512, 1_000)
    ([128, 256, 512, 1024, 2048, 4096, 8192], [128, 256, 512])
    """
    found = [max(1, min(length, limit) // SHORTEST)]
    while 2 * found[-1] <= min(TIMES_THE_LIMIT * max(limit, length), tokens - 1, MOST_SCORED):
        found.append(2 * found[-1])
    return found


def require_lengths(lengths: Sequence[int], tokens: int) -> list[int]:
    """Lengths of the user's own: all must score the same tokens."""
    longest = max(lengths, default=0)
    if not longest or min(lengths) < 1:
        raise InputError(f"lengths must be one or more numbers of at least 1, got {list(lengths)}")
    if odd := [length for length in lengths if longest % length]:
        raise InputError(f"lengths must divide the longest, {longest}, so that all score the same tokens; got {odd[0]}")
    if longest >= tokens:
        raise InputError(f"length {longest} does not fit: {tokens} tokens are held out; take a longer text, or shorter")
    return sorted(set(lengths))


def tokens_to_score(lengths: Sequence[int], held_out: int, training_tokens: int) -> int:
    """How many, in whole windows of the longest length: no more than the training makes worthwhile, but one window."""
    longest = max(lengths)
    # An update costs three times as much as reading; what is measured, is measured twice.
    worthwhile = int(COST * 3 * training_tokens / (2 * len(lengths)))
    most = max(longest, min(held_out - 1, MOST_SCORED, max(worthwhile, LEAST_SCORED)))
    return most // longest * longest


def perplexities(
    model: CausalLM, ids: Int[Tensor, "tokens"], lengths: Sequence[int], scored: int, told: Told = lambda *_: None
) -> dict[int, float]:
    """By length: the same first ``scored`` tokens, in windows that do not overlap."""
    found, total = {}, scored * len(lengths)
    for place, length in enumerate(lengths):
        losses, windows = [], windows_of(ids, length, scored)
        for rows in windows.split(max(1, READ_AT_ONCE // length)):
            losses.append(token_losses(model, rows, rows.numel()))
            told(place * scored + sum(map(torch.numel, losses)), total)
        found[length] = perplexity_of(torch.cat(losses))
    return found


def answers_perplexity(model: CausalLM, rows: ChatRows, conversations: Sequence[Conversation]) -> float:
    """Of the answers in conversations, each as it is trained on, up to the tokens that are scored of a text."""
    losses, read = [], 0
    for conversation in conversations:
        if read < MOST_SCORED:
            batch = rows.batch([conversation])
            window = torch.cat([batch.inputs["ids"], batch.targets[:, -1:].clamp(min=0)], 1)
            losses.append(token_losses(model, window)[(batch.targets != IGNORED).cpu()])
            read += rows.length
    return perplexity_of(torch.cat(losses))


@torch.no_grad()
def readings_perplexity(model: CausalLM, batches: Iterable[Batch]) -> float:
    """Of what reads documents and counts fully, up to the tokens that are scored of a text. A model without addresses
    reads the documents as one text."""
    losses, read, device = [], 0, next(model.parameters()).device
    with evaluating(model):
        for batch in batches:
            if read >= MOST_SCORED:
                break
            counts = batch.targets != IGNORED
            if batch.weights is not None:
                counts &= batch.weights >= 1.0
            inputs = dict(batch.map(lambda x: x.to(device)).inputs)
            rows = torch.cat([inputs.pop("ids"), batch.targets[:, -1:].clamp(min=0).to(device)], 1)
            losses.append(model.token_losses(rows, **inputs).cpu()[counts.cpu()])
            read += counts.numel()
    return perplexity_of(torch.cat(losses))


# --- in words ------------------------------------------------------------------------------------------------------


def verdict(before: Perplexities, after: Perplexities) -> str:
    """What a training did to the perplexity at the lengths measured, in one sentence.

    >>> verdict({512: 4.0, 1024: 5.0, 2048: 9.0}, {512: 4.032, 1024: 4.5, 2048: 4.4})
    'better from 1,024 tokens on, by 10.0% to 51.1%; worse by 0.8% at 512 tokens'
    >>> verdict({512: 4.0, 1024: math.inf}, {512: 3.0, 1024: math.nan})
    'better at 512 tokens, by 25.0%; not finite at 1,024 tokens'
    """
    lengths = sorted(before)
    stretches = [(kind, list(found)) for kind, found in groupby(lengths, lambda n: _kind(before[n], after[n]))]
    said = []
    for wanted in ("better", "worse", "as before", "not finite"):
        for kind, stretch in stretches:
            if kind == wanted:
                by = _by([after[n] / before[n] - 1.0 for n in stretch]) if kind in ("better", "worse") else ""
                said.append(_clause(kind, _where(stretch, lengths), by))
    return "; ".join(said)


def change(before: float | None, after: float | None) -> str:
    """What became of a single number.

    >>> change(3.0, 3.3), change(None, 2.0)
    ('worse by 10.0%', 'better')
    """
    was, now = (math.inf if value is None else value for value in (before, after))
    kind = _kind(was, now)
    return " ".join(filter(None, [kind, _by([now / was - 1.0]) if kind in ("better", "worse") else ""]))


def _kind(before: float, after: float) -> str:
    if not math.isfinite(after):
        return "not finite"
    change = after / before - 1.0 if math.isfinite(before) else -1.0
    return "as before" if abs(change) <= NOT_WORTH_SAYING else "better" if change < 0 else "worse"


def _by(changes: Sequence[float]) -> str:
    """Relative changes as a range; without those from infinity, of which nobody can say how much they are."""
    sizes = sorted(abs(change) for change in changes if change > -1.0)
    shown = dict.fromkeys(f"{size:.1%}" for size in (*sizes[:1], *sizes[-1:]))
    return f"by {' to '.join(shown)}" if shown else ""


def _clause(kind: str, where: str, by: str) -> str:
    if kind == "better":
        return ", ".join(filter(None, [f"better {where}", by]))
    return " ".join(filter(None, [kind, by, where]))


def _where(stretch: Sequence[int], lengths: Sequence[int]) -> str:
    first, last = stretch[0], stretch[-1]
    if len(stretch) == len(lengths) > 1:
        return f"at all lengths measured, {first:,} to {last:,} tokens"
    if first == last and (last != lengths[-1] or len(lengths) == 1):
        return f"at {first:,} tokens"
    if last == lengths[-1]:
        return f"from {first:,} tokens on" if first != last else f"at {first:,} tokens"
    return f"at {last:,} tokens and below" if first == lengths[0] else f"at {first:,} to {last:,} tokens"
