"""What a Hugging Face model answers, greedily, with addresses or without.

Of a prompt only the last position has logits, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.evaluation.perplexity import evaluating
from contentrope.evaluation.tasks.example import Example, prompt_ids, score

Enough = Callable[[Example, str], bool]


def accuracy(
    model: Any, tokenizer: Any, task: str, examples: Sequence[Example], **options: Any
) -> tuple[float, list[str]]:
    """The mean score of a model's answers, from 0 to 1, and the answers; ``options`` are those of :func:`answers`.

    An answer ends where all that is asked for was said, as more words would not change its score.
    """
    said = answers(model, tokenizer, examples, enough=lambda asked, text: score(task, asked, text) == 1, **options)
    scores = [score(task, asked, text) for asked, text in zip(examples, said, strict=True)]
    return sum(scores) / len(scores), said


def answers(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    chat: bool = False,
    batch_tokens: int = 16384,
    enough: Enough | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """What comes after prompt and answer prefix, for each example, by taking the likeliest token again and again.

    Examples of like length are read together, padded on the left, on about ``batch_tokens`` tokens at once;
    ``progress`` is told how many are done. An answer ends where the model ends it, at ``new_tokens``, or as soon as it
    is ``enough``: for a score that further words do not change.
    """
    if not examples:
        raise InputError("there are no examples to answer; give at least one")
    prompts = [prompt_ids(tokenizer, example, chat=chat) for example in examples]
    lengths = [len(ids) + example.new_tokens for ids, example in zip(prompts, examples, strict=True)]
    said: dict[int, str] = {}
    with evaluating(model), _greedy(model), torch.no_grad():
        for batch in _batches(lengths, batch_tokens):
            asked = [examples[place] for place in batch]
            texts = _continued(model, tokenizer, [prompts[place] for place in batch], asked, enough)
            said |= dict(zip(batch, texts, strict=True))
            progress(len(said))
    return [said[place] for place in range(len(examples))]


def _batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Which examples are read together: the longest first, as it is they that may not fit into the memory.

    >>> list(_batches([5, 9, 4, 5], batch_tokens=10))
    [[1], [0, 3], [2]]
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    yield batch


def _continued(
    model: Any, tokenizer: Any, prompts: list[list[int]], examples: list[Example], enough: Enough | None
) -> list[str]:
    longest = max(map(len, prompts))
    padding = _padding(tokenizer)
    ids = torch.tensor([[padding] * (longest - len(row)) + row for row in prompts], device=model.device)
    seen = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts], device=model.device)
    done = _Done(tokenizer, model.generation_config.eos_token_id, longest, examples, enough)
    # Embeddings are often filled up to a round number; such ids stand for no text.
    textless = list(range(len(tokenizer), model.config.get_text_config().vocab_size))
    model.generate(
        input_ids=ids,
        attention_mask=seen,
        max_new_tokens=max(example.new_tokens for example in examples),
        suppress_tokens=textless or None,
        pad_token_id=padding,
        stopping_criteria=[done],
    )
    return done.said


def _padding(tokenizer: Any) -> int:
    return next(token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if token is not None)


class _Done:
    """Stops each row where its answer ends; ``said`` are the answers so far."""

    def __init__(
        self, tokenizer: Any, ends: int | list[int] | None, prompt: int, examples: list[Example], enough: Enough | None
    ) -> None:
        self.tokenizer, self.prompt, self.examples, self.enough = tokenizer, prompt, examples, enough
        self.ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        self.said = ["" for _ in examples]
        self.done = [False for _ in examples]

    def __call__(self, ids: Int[Tensor, "rows seq"], scores: Any, **options: Any) -> Bool[Tensor, "rows"]:
        for row, new in enumerate(ids[:, self.prompt :].tolist()):
            if not self.done[row]:
                self.said[row] = self.tokenizer.decode(new, skip_special_tokens=True)
                self.done[row] = self._ends(self.examples[row], new, self.said[row])
        return torch.tensor(self.done, device=ids.device)

    def _ends(self, example: Example, new: list[int], said: str) -> bool:
        if new[-1] in self.ends or len(new) >= example.new_tokens:
            return True
        return self.enough is not None and self.enough(example, said)


@contextmanager
def _greedy(model: Any) -> Iterator[None]:
    """Nothing of what a checkpoint suggests for generation but where texts end: no sampling, no penalties."""
    from transformers import GenerationConfig

    own = [module for module in model.modules() if "generation_config" in vars(module)]
    before = [module.generation_config for module in own]
    try:
        for module, config in zip(own, before, strict=True):
            module.generation_config = GenerationConfig(do_sample=False, eos_token_id=config.eos_token_id)
        yield
    finally:
        for module, config in zip(own, before, strict=True):
            module.generation_config = config
