"""Read, decode, reorder and truncate in any order: after each call every row says what it says read alone and anew."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

import contentrope as cr
from tests.fuzz.engine import Area, Distances, Program, Step
from tests.fuzz.models import MARKER, draw_model, mask, model_of, relative
from tests.fuzz.streams import BOUND
from tests.support import DRAW_AT_RANDOM, KNOW_MEMORY, READ_UNITS, random_ids

MOST_COLUMNS = 120


def draw(random: Random) -> Program:
    model = draw_model(random)
    model["max_unit_length"] = random.choice([2, 5, 7, 7, 11, 40])
    has_memory = model["scheme"] in KNOW_MEMORY and not model["reader"]
    settings = {
        "model": model,
        "rows": random.choice([1, 2, 3, 3, 4]),
        "room": random.choice([None, 1, MOST_COLUMNS]) if model["scheme"] != "randomized" else MOST_COLUMNS,
        "padded": random.random() < 0.25,
        "memory": has_memory and random.random() < 0.2,
        "ends": model["scheme"] in READ_UNITS and random.random() < 0.2,
    }
    phrases = [draw_phrase(random) for _ in range(random.randint(2, 5))]
    return Program(settings, (draw_step(random, "read"), *(step for phrase in phrases for step in phrase)))


def draw_phrase(random: Random) -> list[Step]:
    kind = random.choice(["read", "decode", "decode", "reorder", "truncate", "search"])
    if kind != "search":
        return [draw_step(random, kind)]
    # What many faults need in this order: rows that differ are told apart, one is kept, and ends its unit alone.
    return [draw_step(random, "decode"), ("reorder", (random.random(),)), ("decode", 9, 0.1, random.randrange(10**6))]


def draw_step(random: Random, kind: str) -> Step:
    seed, end_rate = random.randrange(10**6), random.choice([0.0, 0.0, 0.1, 0.3])
    if kind == "read":
        return kind, random.choice([2, 7, 16]), random.choice([end_rate, 0.3]), seed
    if kind == "decode":
        return kind, random.choice([1, 1, 2, 5]), end_rate, seed
    if kind == "truncate":
        return kind, random.choice([0.0, 1.0, random.random(), random.uniform(0.7, 1)])
    # Shares of the rows there are: any number of rows has such an order.
    return kind, tuple(random.random() for _ in range(random.choice([1, 2, 3, 4])))


def run(program: Program) -> Distances:
    settings = program.settings
    model, scale = model_of(settings["model"]), settings["model"]["scale"]
    torch.manual_seed(3)
    history = History(model, settings)
    worst = 0.0
    for number, step in enumerate(program.steps):
        before = history.cache.length
        logits = history.after(step)
        if logits:
            distance = history.distance(torch.cat(logits, dim=1), before)
            assert distance <= BOUND[scale], f"step {number} {step} is {distance:.1e} from reading anew"
            worst = max(worst, distance)
    return {f"float64, weights x{scale:g}": worst}


class History:
    """A cache, and what was read into it, column by column."""

    def __init__(self, model: cr.Transformer, settings: Mapping[str, Any]) -> None:
        self.model, self.settings = model, settings
        self.cache = model.new_cache(settings["rows"], max_tokens=settings["room"])
        self.ids = torch.zeros(settings["rows"], 0, dtype=torch.int64)
        self.masks = {name: torch.zeros_like(self.ids, dtype=torch.bool) for name in self._names()}

    def _names(self) -> list[str]:
        return ["valid", *(name for name in ("memory", "ends") if self.settings[name])]

    def after(self, step: Step) -> list[Tensor]:
        """The logits of every call of the step."""
        kind, *given = step
        if kind in ("read", "decode"):
            size, end_rate, seed = given
            sizes = [size] if kind == "read" else [1] * size
            return [
                self._read(n, end_rate, seed + i) for i, n in enumerate(sizes) if self.cache.length + n <= MOST_COLUMNS
            ]
        if kind == "reorder":
            self._reorder(torch.tensor([int(share * len(self.ids)) for share in given[0]]))
        else:
            self._truncate(round(given[0] * self.cache.length))
        return []

    def _read(self, size: int, end_rate: float, seed: int) -> Tensor:
        rows = len(self.ids)
        ids = random_ids(rows, size, seed=seed, end_rate=end_rate)
        if seed % 5 and self.settings["model"]["reader"]:
            ids[ids == MARKER] = 1
        new = {name: mask(seed + i, 0.5, rows, size) for i, name in enumerate(self.masks)}
        is_padded = self.settings["padded"] and seed % 3 == 0
        new["valid"] = mask(seed, 0.6, rows, size) if is_padded else torch.ones_like(ids, dtype=torch.bool)
        if "ends" in new:
            new["ends"] = new["ends"] & new["valid"] & mask(seed + 7, 2 * end_rate, rows, size)
        self.ids = torch.cat((self.ids, ids), dim=1)
        self.masks = {name: torch.cat((m, new[name]), dim=1) for name, m in self.masks.items()}
        given = new if is_padded else {name: m for name, m in new.items() if name != "valid"}
        self._poison()
        return self.model(ids, cache=self.cache, **given)

    def _reorder(self, index: Tensor) -> None:
        self.cache.reorder(index)
        self.ids, self.masks = self.ids[index], {name: m[index] for name, m in self.masks.items()}

    def _truncate(self, length: int) -> None:
        self.cache.truncate(length)
        self.ids, self.masks = self.ids[:, :length], {name: m[:, :length] for name, m in self.masks.items()}

    def _poison(self) -> None:
        """Nobody reads what has not been written, or has been forgotten."""
        cache = self.cache
        for store in (*cache.keys, *cache.values, *cache.extras.values()):
            store[:, :, cache.length :] = torch.nan
        for angles in cache.columns.angles:
            angles[:, cache.length :] = torch.nan

    def distance(self, found: Tensor, before: int) -> float:
        """Of the logits of the last columns from those of rows read anew: together, or where there is padding each
        alone and without it."""
        valid = self.masks["valid"]
        if bool(valid.all()):
            return relative(found, self._anew(slice(None), valid[0])[:, before:])
        expected = [self._anew([row], valid[row])[:, int(valid[row, :before].sum()) :] for row in range(len(valid))]
        return max(relative(found[row][valid[row, before:]], there[0]) for row, there in enumerate(expected))

    def _anew(self, rows: slice | list[int], valid: Tensor) -> Tensor:
        masks = {name: m[rows][:, valid] for name, m in self.masks.items() if name != "valid"}
        cache, ids = None, self.ids[rows][:, valid]
        if self.model.config.scheme in DRAW_AT_RANDOM:  # as the rows have drawn
            cache = self.model.new_cache(len(ids), max_tokens=self.settings["room"])
            cache.state.seed.copy_(self.cache.state.seed[rows])
        with torch.no_grad():
            return self.model(ids, cache=cache, **masks)


AREA = Area("caches", draw, run)
