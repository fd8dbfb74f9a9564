"""Hugging Face models with addresses: whatever is done to their cache, rows say what they say alone, without one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

import contentrope.hf as chf
from tests.fuzz.engine import Area, Distances, Program, Step
from tests.fuzz.models import mask, relative
from tests.hf.models import TERMINATOR, enliven, padded_dtype, random_ids, tiny

BOUND = 2e-5
"""Relative to the largest logit: some models compute norms and softmax in float32, whatever their dtype."""
MOST_COLUMNS = 80
MARKER = 9
CROPPED = ("llama", "qwen3", "glm", "smollm3", "gpt_neox")
"""Full attention in every layer: what a window has let go of does not come back."""
MODELS = (*CROPPED, "llama", "mistral, window", "gemma3", "gpt_oss")


def draw(random: Random) -> Program:
    name = random.choice(MODELS)
    positions = random.choice(["local", "local", "local", 0.5, "global"])
    settings = {
        "model": name,
        "positions": positions,
        "units": random.choice(["ids", "ids", "ids", "every 5"]),
        "reader": (MARKER,) if random.random() < 0.25 else (),
        "competition": random.choice([0.0, 0.0, 1.0]),
        "learn": random.random() < 0.3,
        "max_length": random.choice([5, 7, 11]),
        "ends": random.random() < 0.2,
        "cache": random.choice(["dynamic", "dynamic", "lazy", "static"]),
        "left": [random.choice([0, 0, random.randint(0, 6)]) for _ in range(random.randint(1, 3))],
    }
    if random.random() < 0.08:
        steps: tuple[Step, ...] = (
            ("generate", random.choice([1, 2, 3]), random.randint(2, 14), random.randrange(999)),
        )
    else:
        phrases = [draw_phrase(random) for _ in range(random.randint(2, 5))]
        steps = draw_step(random, "read"), *(step for phrase in phrases for step in phrase)
    return Program({**settings, "window": draw_window(random, positions)}, steps)


def draw_window(random: Random, positions: str | float) -> int:
    """In a window positions are the model's own."""
    return random.choice([0, 0, 0, 3, 10, 21]) if positions == "local" else 0


def draw_phrase(random: Random) -> list[Step]:
    kind = random.choice(["read", "decode", "decode", "reorder", "crop", "search"])
    if kind != "search":
        return [draw_step(random, kind)]
    return [draw_step(random, "decode"), ("reorder", (random.random(),)), draw_step(random, "decode")]


def draw_step(random: Random, kind: str) -> Step:
    seed, end_rate = random.randrange(10**6), random.choice([0.0, 0.0, 0.1, 0.3])
    if kind == "read":
        return kind, random.choice([2, 7, 16]), random.choice([end_rate, 0.3]), seed
    if kind == "decode":
        return kind, random.choice([1, 2, 5, 9]), end_rate, seed
    if kind == "crop":
        return kind, random.choice([1, 2, random.randint(1, 12)])
    return kind, tuple(random.random() for _ in range(random.choice([1, 2, 3, 4])))


def run(program: Program) -> Distances:
    settings, worst = program.settings, 0.0
    model = model_of(*(settings[k] for k in MODEL_SETTINGS))
    history = History(model, settings)
    for number, step in enumerate(program.steps):
        distance = generated(model, settings, *step[1:]) if step[0] == "generate" else history.after(step)
        assert distance <= BOUND, f"step {number} {step} is {distance:.1e} from reading each row alone"
        worst = max(worst, distance)
    return {str(padded_dtype(settings["model"])): worst}


MODEL_SETTINGS = ("model", "window", "positions", "units", "competition", "learn", "max_length", "reader")


@functools.lru_cache(maxsize=200)
def model_of(
    name: str,
    window: int,
    positions: str | float,
    units: str,
    competition: float,
    learn: bool,
    max_length: int,
    reader: tuple[int, ...],
) -> PreTrainedModel:
    model = tiny(name, dtype=padded_dtype(name))
    chf.attach(
        model,
        units={TERMINATOR} if units == "ids" else 5,
        window=window,
        positions=positions,
        competition=competition,
        learn_competition=learn,
        max_length=max_length,
        reader=reader,
    )
    model.generation_config.eos_token_id = None
    return enliven(model)


class History:
    """A cache, and what was read into it, column by column; rows begin with padding."""

    def __init__(self, model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
        self.model, self.settings = model, settings
        self.cache: Any = {
            "dynamic": lambda: DynamicCache(config=model.config),
            "lazy": DynamicCache,
            "static": lambda: StaticCache(config=model.config, max_cache_len=MOST_COLUMNS),
        }[settings["cache"]]()
        self.left = torch.tensor(settings["left"])
        self.ids = torch.zeros(len(self.left), 0, dtype=torch.int64)
        self.ends = self.ids.bool()
        """Those of the caller, if there are any."""

    def after(self, step: Step) -> float:
        """How far the logits of the step are from those of each row alone."""
        kind, *given = step
        if kind == "reorder":
            self._reorder(given[0])
        elif kind == "crop":
            self._crop(given[0])
        else:
            size, end_rate, seed = given
            before = self.ids.shape[1]
            room = MOST_COLUMNS - before
            sizes = [1] * min(size, room) if kind == "decode" else [size] if size <= room else []
            parts = [self._read(n, end_rate, seed + i) for i, n in enumerate(sizes)]
            return self._distance(torch.cat(parts, dim=1), before) if parts else 0.0
        return 0.0

    def _read(self, size: int, end_rate: float, seed: int) -> Tensor:
        new = random_ids(len(self.ids), size, seed=seed, end_rate=end_rate)
        if seed % 3:
            new[new == MARKER] = MARKER + 1
        ends = mask(seed, end_rate, *new.shape)
        self.ids, self.ends = torch.cat((self.ids, new), dim=1), torch.cat((self.ends, ends), dim=1)
        given: dict[str, Tensor] = {"unit_ends": ends} if self.settings["ends"] else {}
        if bool(self.left.any()):
            valid = torch.arange(self.ids.shape[1]) >= self.left[:, None]
            given |= {"attention_mask": valid, "position_ids": (valid.cumsum(1) - 1).clamp(min=0)[:, -size:]}
        with torch.no_grad():
            return self.model(new, past_key_values=self.cache, **given).logits

    def _reorder(self, shares: tuple[float, ...]) -> None:
        rows, is_static = len(self.ids), self.settings["cache"] == "static"
        if not self.ids.shape[1]:
            return
        # The memory of a static cache is for as many rows as it has.
        shares = tuple(shares[i % len(shares)] for i in range(rows)) if is_static else shares
        index = torch.tensor([int(share * rows) for share in shares])
        self.cache.reorder_cache(index)
        self.left, self.ids, self.ends = self.left[index], self.ids[index], self.ends[index]

    def _crop(self, count: int) -> None:
        if self.settings["cache"] == "static" or self.settings["model"] not in CROPPED:
            return
        count = min(count, self.ids.shape[1] - 1)
        if count > 0:
            self.cache.crop(-count)
            self.ids, self.ends = self.ids[:, :-count], self.ends[:, :-count]

    def _distance(self, found: Tensor, before: int) -> float:
        worst = 0.0
        for row, left in enumerate(self.left.tolist()):
            kept = max(left - before, 0)
            ends = self.ends[row : row + 1, left:] if self.settings["ends"] else None
            expected = alone(self.model, self.ids[row : row + 1, left:], ends)[:, max(before - left, 0) :]
            worst = max(worst, relative(found[row : row + 1, kept:], expected))
        return worst


def alone(model: PreTrainedModel, ids: Tensor, ends: Tensor | None = None) -> Tensor:
    if not ids.shape[1]:
        return torch.zeros(1, 0, model.config.vocab_size)
    with torch.no_grad():
        return model(ids, unit_ends=ends, use_cache=False).logits


def generated(model: PreTrainedModel, settings: Mapping[str, Any], beams: int, new: int, seed: int) -> float:
    """How far the score of what a search finds is from the one that reading it anew gives: for each row, the sum of
    the logarithms of the chances of its new tokens."""
    prompt, left = random_ids(len(settings["left"]), 12, seed=seed), torch.tensor(settings["left"])
    valid = torch.arange(12) >= left[:, None]
    out = model.generate(
        torch.where(valid, prompt, 0),
        attention_mask=valid.long(),
        max_new_tokens=new,
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0 if beams > 1 else None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        cache_implementation="static" if settings["cache"] == "static" else None,
    )
    indices = out.beam_indices if beams > 1 else None
    found = model.compute_transition_scores(out.sequences, out.scores, indices, normalize_logits=beams == 1)
    rows = left.repeat_interleave(beams).tolist()
    chosen, largest = [], 0.0
    for ids, padding in zip(out.sequences, rows, strict=True):
        logits = alone(model, ids[None, padding:])[0, 11 - padding : -1]
        chosen.append(logits.log_softmax(-1).gather(1, ids[12:, None])[:, 0])
        largest = max(largest, float(logits.abs().max()))
    return float((found - torch.stack(chosen)).abs().max()) / largest


AREA = Area("adapters", draw, run)
