"""What is measured of one model: perplexity by length and by position, use of the past, tasks, short texts.

Shapes: rows (windows), seq (tokens of one), vocab.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.corpora.long_context import long_context
from contentrope.errors import InputError
from contentrope.evaluation.answers import answers
from contentrope.evaluation.distant import doubling_edges, perplexity_with_changed_past
from contentrope.evaluation.perplexity import evaluating, perplexity_of
from contentrope.evaluation.tasks import Example, examples, score
from contentrope.hf.finetune import CausalLM
from experiments.open_model.config import LISTS, LONGEST_LIST, Reading
from experiments.open_model.models import Books

SHORT = 1024
"""Tokens that a single passage with its question has at most."""
HEAD_TOKENS = 4096
"""Whose logits are made at once: a large vocabulary would fill the memory."""


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


@torch.no_grad()
def last_losses(model: Any, row: Int[Tensor, "seq+1"], count: int) -> Float[Tensor, "count"]:
    """Minus the log probability of the last ``count`` tokens of a text, in float32."""
    inputs, targets = row[None, :-1].to(model.device), row[-count:].to(model.device)
    with evaluating(model):
        hidden = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state[0, -count:]
        head = model.get_output_embeddings()
        parts = zip(hidden.split(HEAD_TOKENS), targets.split(HEAD_TOKENS), strict=True)
        return torch.cat([F.cross_entropy(head(x).float(), y, reduction="none").cpu() for x, y in parts])


def perplexity_at(model: Any, books: Books, reading: Reading, length: int) -> float:
    """Over the tokens that all lengths score."""
    rows = windows(books, reading, length)
    return perplexity_of(torch.stack([last_losses(model, row, reading.scored) for row in rows]))


def by_position(model: Any, books: Books, reading: Reading) -> dict[str, Any]:
    """Perplexity between positions that double, in a quarter of the windows."""
    length = reading.position_length
    rows = windows(books, reading, length)[::4]
    losses = torch.stack([last_losses(model, row, length) for row in rows])
    edges = doubling_edges(length)
    bins = losses.split([end - begin for begin, end in pairwise(edges)], dim=1)
    found = {"perplexity": [perplexity_of(part) for part in bins], "tokens": [part.numel() for part in bins]}
    return {"length": length, "edges": edges, **found}


def use_of_the_past(model: Any, tokenizer: Any, books: Books, reading: Reading) -> dict[str, Any]:
    """Perplexity of the last tokens with the paragraphs before them as written, in another order, missing, others."""
    length = reading.distant_length
    return perplexity_with_changed_past(
        CausalLM(model),
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


def normalised(text: str) -> list[str]:
    """Words as the scores of SQuAD compare them.

    >>> normalised("The  Norman Conquest, of 1066.")
    ['norman', 'conquest', 'of', '1066']
    """
    plain = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def exact_and_f1(answer: str, references: tuple[str, ...]) -> tuple[float, float]:
    """Whether an answer is one of the references, and its best overlap with them.

    >>> exact_and_f1("the Norman conquest of 1066", ("Norman Conquest", "1066"))
    (0.0, 0.6666666666666666)
    """
    said, best, exact = normalised(answer), 0.0, False
    for reference in map(normalised, references):
        exact |= said == reference
        common = sum((Counter(said) & Counter(reference)).values())
        best = max(best, 2 * common / (len(said) + len(reference)) if common else 0.0)
    return float(exact), best


def answered(
    model: Any, tokenizer: Any, task: str, size: int, count: int, chat: bool = False
) -> list[tuple[Example, str]]:
    """What the model says to the first examples of a task, of ``size`` tokens or pairs."""
    length = LONGEST_LIST if LISTS.fullmatch(task) else size
    asked = examples(task, tokenizer, length, count, data=long_context(), chat=chat)
    enough = None if task == "squad" else lambda example, answer: score(task, example, answer) == 1.0
    return list(zip(asked, answers(model, tokenizer, asked, chat=chat, enough=enough), strict=True))


def accuracy(task: str, said: list[tuple[Example, str]]) -> float:
    return fmean(score(task, example, answer) for example, answer in said)


def single_passages(model: Any, tokenizer: Any, count: int) -> dict[str, float]:
    """Questions of SQuAD on one passage: how many answers hold a reference, are one, and overlap with one."""
    said = answered(model, tokenizer, "squad", SHORT, count)
    both = [exact_and_f1(answer.strip().split("\n")[0], example.answers) for example, answer in said]
    exact, f1 = (fmean(values) for values in zip(*both, strict=True))
    return {"contained": accuracy("squad", said), "exact": exact, "f1": f1}
