"""``contentrope evaluate`` for Hugging Face models, with addresses or without. All lengths are in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from contentrope.cli.evaluate_tables import show_distant, show_perplexity, show_tasks
from contentrope.cli.progress import counting
from contentrope.cli.tables import say
from contentrope.corpora import Text, read_text
from contentrope.corpora.long_context import LongContext, is_at_hand, long_context
from contentrope.errors import InputError
from contentrope.evaluation import perplexity, perplexity_by_position, perplexity_with_changed_past
from contentrope.evaluation.answers import accuracy
from contentrope.evaluation.distant import CONDITIONS
from contentrope.evaluation.tasks import examples, needs_data, needs_prose, tasks_named
from contentrope.hf.characters import Encoded, encode
from contentrope.hf.layout import is_converted
from contentrope.results import finite_or_none
from contentrope.training.seeds import seeded
from contentrope.units import vocabulary_of

if TYPE_CHECKING:
    from contentrope.cli.evaluate import Evaluate

MOST_SCORED = 131_072
"""Tokens, unless more are asked for."""


def evaluate_tokens(asked: Evaluate, checkpoint: str, device: str, console: Console) -> None:
    """Measure, print and write. With Ctrl-C too: what is measured until then is not lost."""
    from contentrope.hf.plain import quiet, require_transformers

    require_transformers()
    tasks = tasks_named((asked.tasks or "").split(",")) if asked.tasks is not None else []
    text = None if asked.text is None else read_text([asked.text], asked.characters)
    data = _data(tasks, text)
    from contentrope.hf.loading import load_any

    model, tokenizer = load_any(checkpoint, device=device)
    reading = _Reading(asked, model, tokenizer, console)
    ids = None if text is None else reading.encoded(text, checkpoint)
    hay = None if data is not None or text is None else text.held_out if asked.part == "held-out" else text.whole
    material = {"data": data, "text": hay, "chat": asked.chat}
    if tasks:
        reading.require_long_enough(tasks, material)
    found = _description(asked, checkpoint, model, text, data)
    say(console, f"{checkpoint}: {found['model']['parameters']:,} parameters; all lengths are in tokens")
    try:
        with seeded(asked.seed), quiet():
            if ids is not None:
                reading.read(ids, found)
            for length in asked.task_lengths:
                for task in tasks:
                    reading.solve(task, length, material, found)
        found["complete"] = True
    finally:
        if found["perplexity"] or found["tasks"]:
            _show(console, asked, found)
            asked.write(console, found, device)


def _data(tasks: list[str], text: Text | None) -> LongContext | None:
    """The long-context texts, where they are at hand; where a task cannot do without them, an error that says how."""
    wanted = any(needs_data(task) or (text is None and needs_prose(task)) for task in tasks)
    return long_context() if wanted or (tasks and is_at_hand()) else None


def _description(
    asked: Evaluate, checkpoint: str, model: Any, text: Text | None, data: LongContext | None
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": checkpoint,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "addresses": None,
    }
    if is_converted(checkpoint):
        from contentrope.hf import adapter_of

        described["addresses"] = adapter_of(model).settings()
    return {
        "settings": asked.settings,
        "model": described,
        "text": None if text is None else text.description | {"part": asked.part},
        "haystacks": "the validation books of the long-context texts" if data is not None else asked.text,
        "scored": None,
        "perplexity": {},
        "tasks": {},
        "complete": False,
    }


def _show(console: Console, asked: Evaluate, found: dict[str, Any]) -> None:
    if found["perplexity"]:
        show_perplexity(console, "tokens", found)
    show_distant(console, "tokens", asked.recent, found)
    if found["tasks"]:
        show_tasks(console, asked.examples, found["tasks"])


class _Reading:
    """One model at work, with a progress bar for each measurement."""

    def __init__(self, asked: Evaluate, model: Any, tokenizer: Any, console: Console) -> None:
        from contentrope.hf.losses import Predictor

        self.asked, self.model, self.tokenizer, self.console = asked, model, tokenizer, console
        self.predictor = Predictor(model)

    def encoded(self, text: Text, name: str) -> Encoded:
        """The part to read, as held-out ids, and the other one; refused if it is too short for the windows."""
        from contentrope.hf.plain import require_embedded

        ids = encode(text, self.tokenizer)
        if self.asked.part == "whole":
            ids = Encoded(ids.training, torch.cat(ids))
        for part in ids:
            require_embedded(part, self.model.config, name)
        longest = max(*self.asked.lengths, self.asked.distant)
        if len(ids.held_out) <= longest:
            raise InputError(
                f"windows of {longest} tokens do not fit: the text leaves {len(ids.held_out) - 1} to score; take a "
                "longer text, or shorter lengths"
            )
        return ids

    def require_long_enough(self, tasks: list[str], material: dict[str, Any]) -> None:
        """Refuse what cannot be made now, not after hours of work: an example of every task in the shortest length."""
        for task in tasks:
            examples(task, self.tokenizer, min(self.asked.task_lengths), 1, self.asked.seed, **material)

    def read(self, ids: Encoded, found: dict[str, Any]) -> None:
        """Perplexity by length, all over the same tokens, and the use of distant text."""
        longest = max(self.asked.lengths)
        text = _last(ids.held_out, self.asked.scored, longest)
        found["scored"] = len(text) - 1
        for length in self.asked.lengths:
            with self._progress(f"perplexity at {length:,} tokens", len(text) - 1):
                value = perplexity(self.predictor, text, length, batch_tokens=length)
            found["perplexity"][str(length)] = finite_or_none(value)
        if self.asked.distant:
            self._read_distant(ids, found)

    def _read_distant(self, ids: Encoded, found: dict[str, Any]) -> None:
        length = self.asked.distant
        text = _last(ids.held_out, self.asked.scored, length)
        with self._progress(f"perplexity by position in {length:,} tokens", len(text) - 1):
            by_position = perplexity_by_position(self.predictor, text, length, batch_tokens=length)
        found["by_position"] = finite_or_none(by_position)
        with self._progress(f"use of distant text in {length:,} tokens", len(CONDITIONS) * (len(text) - 1)):
            changed = perplexity_with_changed_past(
                self.predictor,
                text,
                length,
                near=self.asked.recent,
                terminators=[token for token, said in enumerate(vocabulary_of(self.tokenizer)) if "\n" in said],
                elsewhere=ids.training,
                seed=self.asked.seed,
                batch_tokens=length,
            )
        found["distant"] = finite_or_none(changed)

    def solve(self, task: str, length: int, material: dict[str, Any], found: dict[str, Any]) -> None:
        asked = examples(task, self.tokenizer, length, self.asked.examples, self.asked.seed, **material)
        with counting(self.console, f"{task} at {length:,} tokens", len(asked)) as advance:
            value, _ = accuracy(self.model, self.tokenizer, task, asked, chat=self.asked.chat, progress=advance)
        found["tasks"].setdefault(task, {})[str(length)] = value

    @contextmanager
    def _progress(self, name: str, tokens: int) -> Iterator[None]:
        with counting(self.console, name, tokens) as advance:
            read = 0

            def more(tokens: int) -> None:
                nonlocal read
                read += tokens
                advance(read)

            self.predictor.progress = more
            yield


def _last(ids: Int[Tensor, "tokens"], scored: int | None, length: int) -> Int[Tensor, "last"]:
    """The last whole windows of a length, and the token before them; by default about ``MOST_SCORED`` tokens."""
    most = min(len(ids) - 1, max(scored or MOST_SCORED, length))
    return ids[-(most // length * length + 1) :]
