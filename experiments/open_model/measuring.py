"""What is measured of one model: perplexity by length and by position, use of the past, tasks, short texts.

Shapes: rows are windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora.long_context import long_context
from contentrope.errors import InputError
from contentrope.evaluation.answers import accuracy, answers
from contentrope.evaluation.distant import doubling_edges, perplexity_with_changed_past
from contentrope.evaluation.overlap import overlap
from contentrope.evaluation.perplexity import perplexity_of, token_losses
from contentrope.evaluation.tasks import examples, score
from contentrope.hf.losses import Predictor
from experiments.open_model.config import LISTS, LONGEST_LIST, Reading
from experiments.open_model.models import Books

SHORT = 1024
"""Tokens that a single passage with its question has at most."""


def windows(books: Books, reading: Reading, length: int) -> Int[Tensor, "rows length+1"]:
    """Windows of ``length`` inputs whose last tokens are the same for every length, with the target of the last input.

    They end at places spread evenly over every book that the longest window fits into.
    """
    longest = max(reading.lengths)
    fitting = [ids for ids in books.held_out.values() if len(ids) > longest]
    if not fitting:
        sizes = ", ".join(f"{len(ids):,}" for ids in books.held_out.values())
        raise InputError(f"windows of {longest:,} tokens fit into none of the books, of {sizes} tokens; read less")
    return torch.stack([ids[end - length - 1 : end] for ids, end in _ends(fitting, longest, reading.windows)]).long()


def _ends(books: list[Tensor], longest: int, count: int) -> Iterator[tuple[Tensor, int]]:
    shares = [count // len(books) + (place < count % len(books)) for place in range(len(books))]
    for ids, share in zip(books, shares, strict=True):
        room = len(ids) - longest - 1
        yield from ((ids, longest + 1 + round(room * place / max(share - 1, 1))) for place in range(share))


def perplexity_at(model: Any, books: Books, reading: Reading, length: int) -> float:
    """Over the tokens that all lengths score."""
    losses = token_losses(Predictor(model), windows(books, reading, length), batch_tokens=length)
    return perplexity_of(losses[:, -reading.scored :])


def by_position(model: Any, books: Books, reading: Reading) -> dict[str, Any]:
    """Perplexity between positions that double, in a quarter of the windows."""
    length = reading.position_length
    losses = token_losses(Predictor(model), windows(books, reading, length)[::4], batch_tokens=length)
    edges = doubling_edges(length)
    bins = losses.split([end - begin for begin, end in pairwise(edges)], dim=1)
    found = {"perplexity": [perplexity_of(part) for part in bins], "tokens": [part.numel() for part in bins]}
    return {"length": length, "edges": edges, **found}


def use_of_the_past(model: Any, tokenizer: Any, books: Books, reading: Reading) -> dict[str, Any]:
    """Perplexity of the last tokens with the paragraphs before them as written, in another order, missing, others."""
    length = reading.distant_length
    return perplexity_with_changed_past(
        Predictor(model),
        books.held_out_row.long(),
        length,
        near=reading.near,
        terminators=ends_of_paragraphs(tokenizer),
        elsewhere=books.training[: 64 * length].long(),
        max_tokens=reading.windows * length,
        batch_tokens=length,
    )


def ends_of_paragraphs(tokenizer: Any) -> list[int]:
    """The tokens that hold an empty line."""
    found = [i for i, text in enumerate(tokenizer.batch_decode([[i] for i in range(len(tokenizer))])) if "\n\n" in text]
    if not found:
        raise InputError(
            "no token of this tokenizer holds an empty line, so paragraphs cannot be told; leave out distant"
        )
    return found


# --- tasks ---------------------------------------------------------------------------------------------------------


def found_in(model: Any, tokenizer: Any, task: str, size: int, count: int) -> float:
    """Share of what the first examples of a task, of ``size`` tokens or pairs, ask for that the model finds."""
    length = LONGEST_LIST if LISTS.fullmatch(task) else size
    found, _ = accuracy(model, tokenizer, task, examples(task, tokenizer, length, count, data=long_context()))
    return found


def single_passages(model: Any, tokenizer: Any, count: int) -> dict[str, float]:
    """Questions of SQuAD on one passage: how many answers hold a reference, are one, and overlap with one."""
    asked = examples("squad", tokenizer, SHORT, count, data=long_context())
    said = answers(model, tokenizer, asked)
    both = [overlap(answer.strip().split("\n")[0], one.answers) for one, answer in zip(asked, said, strict=True)]
    exact, f1 = (fmean(values) for values in zip(*both, strict=True))
    contained = fmean(score("squad", one, answer) for one, answer in zip(asked, said, strict=True))
    return {"contained": contained, "exact": exact, "f1": f1}
