"""Any split of a text into chunks and single tokens equals reading it at once, and no token sees a later one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

import contentrope as cr
from contentrope.units import FixedLength, Rule, Segmenter, TextRule
from tests.fuzz.engine import Area, Distances, Program
from tests.fuzz.models import DTYPES, MARKER, draw_model, mask, model_of, relative
from tests.support import KNOW_MEMORY, READ_UNITS, VOCABULARY, in_chunks, random_ids
from tests.units.segmentations import TENSORS
from tests.units.segmentations import VOCABULARY as WORDS

LONGEST = 200
BOUND = {0.5: 1e-13, 1.0: 1e-12, 2.0: 1e-11, 4.0: 1e-10, 8.0: 1e-9}
"""In float64, relative to the largest logit, by the scale of the weights: fifty times what was found or more (see
docs/method.md), as rare cases amplify rounding, and still far below any fault."""
TIMES_WORSE = 32
"""In other dtypes: how much further from float64 than the text read at once, or than one rounding of it."""
RULES = {
    **{f"every {n}": FixedLength(n) for n in (1, 2, 3, 6)},
    **{kind: TextRule(kind, WORDS[:VOCABULARY]) for kind in ("line", "sentence", "paragraph")},
    "record": TextRule("record", WORDS[:VOCABULARY], marker=".\nB"),
    "document": TextRule("document", WORDS[:VOCABULARY], marker="||"),
}

Masks = dict[str, Tensor]


def draw(random: Random) -> Program:
    settings = draw_model(random)
    scheme = settings["scheme"]
    has_memory = scheme in KNOW_MEMORY and not settings["reader"]
    text = {
        "rows": random.randint(1, 3),
        "text": random.randrange(10**6),
        "end_rate": random.choice([0.02, 0.1, 0.25, 0.6]),
        "padding": random.choice([None, None, "left", "right", "both", "inside"]),
        "memory": has_memory and random.random() < 0.3,
        "ends": random.choice([None, None, "caller", *RULES]) if scheme in READ_UNITS else None,
        "dtype": random.choice(["float64", "float64", "float32", "bfloat16"]),
    }
    if text["dtype"] == "bfloat16":  # large weights leave nothing of its eight bits
        settings["scale"] = min(settings["scale"], 1.0)
    longest = random.choice([12, 30, 30, 150])
    sizes = [random.choice([1, 1, random.randint(1, 9), random.randint(1, longest)]) for _ in range(12)]
    steps = [("read", size) for i, size in enumerate(sizes) if sum(sizes[: i + 1]) <= longest]
    return Program({"model": settings, **text}, tuple(steps) or (("read", 1),))


def run(program: Program) -> Distances:
    settings, sizes = program.settings, [size for _, size in program.steps]
    if not sizes:
        return {}
    text, length = Text(settings), sum(sizes)
    model = model_of(settings["model"], DTYPES[settings["dtype"]])
    ids, masks = text.upto(length, sizes)
    expected = at_once(model, ids, masks)
    torch.manual_seed(3)
    with torch.no_grad():
        found = in_chunks(model, ids, sizes, **masks)
    name, distance, most = measured(model, settings, (ids, masks), found, expected)
    assert distance <= most, f"chunks are {distance:.1e} from the whole, at most {most:.1e} is allowed ({name})"
    for t in {0, length // 3, sizes[0] - 1, length - 2} & set(range(length)):
        check_causal(model, text, length, t, expected)
    return {name: distance, **order_of_memory_units(settings)}


def at_once(model: cr.Transformer, ids: Tensor, masks: Masks) -> Tensor:
    torch.manual_seed(3)  # schemes that draw at random draw once a call, or once a cache
    with torch.no_grad():
        return model(ids, **masks)


def measured(
    model: cr.Transformer, settings: Mapping[str, Any], text: tuple[Tensor, Masks], found: Tensor, expected: Tensor
) -> tuple[str, float, float]:
    """By what name the distance goes, the distance, and how large it may be."""
    scale, dtype = settings["model"]["scale"], settings["dtype"]
    distance = relative(found, expected)
    if dtype == "float64":
        return f"float64, weights x{scale:g}", distance, BOUND[scale]
    exact = at_once(copy.deepcopy(model).double(), *text)
    rounding = torch.finfo(DTYPES[dtype]).eps
    ratio = relative(found, exact) / max(relative(expected, exact), rounding)
    return f"{dtype}, weights x{scale:g}, times worse than at once", ratio, TIMES_WORSE


def order_of_memory_units(settings: Mapping[str, Any]) -> Distances:
    """How far what a reader says of memory units moves with their order; addresses drawn by number know the order."""
    scale, random = settings["model"]["scale"], Random(settings["text"])
    if not settings["memory"] or settings["model"]["scheme"] == "random":
        return {}
    lengths = [random.randint(1, min(5, settings["model"]["max_unit_length"])) for _ in range(random.randint(2, 6))]
    units = [[random.randrange(1, MARKER) for _ in range(length)] for length in lengths]
    question = [random.randrange(1, MARKER) for _ in range(settings["rows"])]
    model, no_ends = model_of(settings["model"]), [False] * len(question)
    found: list[Tensor] = []
    for order in (units, random.sample(units, len(units))):
        ids = torch.tensor([[token for unit in order for token in unit] + question])
        ends = torch.tensor([[at + 1 == len(unit) for unit in order for at in range(len(unit))] + no_ends])
        memory = torch.arange(ids.shape[1])[None] < ids.shape[1] - len(question)
        found.append(at_once(model, ids, {"ends": ends, "memory": memory})[:, -len(question) :])
    distance = relative(*found)
    assert distance <= BOUND[scale], f"another order of memory units is {distance:.1e} away"
    return {f"order of memory units, float64, weights x{scale:g}": distance}


def check_causal(model: cr.Transformer, text: Text, length: int, t: int, expected: Tensor) -> None:
    for future in ("other tokens", "nothing but ends"):
        found = at_once(model, *text.with_future(t, length, future))
        same = torch.equal(found[:, : t + 1], expected[:, : t + 1])
        assert same, f"{future} after token {t} changed the logits before"


class Text:
    """Ids and masks of a program; a shorter text is the beginning of a longer one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings, self.model = settings, settings["model"]
        rows, seed = settings["rows"], settings["text"]
        self.shape = rows, LONGEST
        self.ids = random_ids(*self.shape, seed=seed, end_rate=settings["end_rate"])
        if self.model["reader"]:  # one marker a row, at most
            self.ids[self.ids == MARKER] = 1
            at = torch.randint(0, 40, (rows,), generator=torch.Generator().manual_seed(seed))
            self.ids[torch.arange(rows), at] = MARKER

    def upto(self, length: int, sizes: Sequence[int] = ()) -> tuple[Tensor, Masks]:
        return self._cut(self.ids, length, sizes, self.settings["text"])

    def with_future(self, t: int, length: int, future: str) -> tuple[Tensor, Masks]:
        """Another text after column t, and other masks there."""
        seed = self.settings["text"] + 1
        after = torch.arange(LONGEST) > t
        ids = torch.where(after, random_ids(*self.shape, seed=seed) if future == "other tokens" else 0, self.ids)
        now, then = (self._masks(s, length) for s in (self.settings["text"], seed))
        masks = {name: torch.where(after[:length], then[name], now[name]) for name in now}
        return ids[:, :length], self._with_ends(ids[:, :length], masks, (), after[:length])

    def _cut(self, ids: Tensor, length: int, sizes: Sequence[int], seed: int) -> tuple[Tensor, Masks]:
        return ids[:, :length], self._with_ends(ids[:, :length], self._masks(seed, length), sizes)

    def _masks(self, seed: int, length: int) -> Masks:
        masks: Masks = {}
        if self.settings["padding"]:
            masks["valid"] = padding(self.settings["padding"], seed, self.settings["rows"], length)
        if self.settings["memory"]:
            masks["memory"] = mask(seed + 2, 0.5, *self.shape)[:, :length]
        return masks

    def _with_ends(self, ids: Tensor, masks: Masks, sizes: Sequence[int], after: Tensor | None = None) -> Masks:
        kind, seed = self.settings["ends"], self.settings["text"]
        if kind is None:
            return masks
        if kind == "caller":
            ends = mask(seed + 3, self.settings["end_rate"], *self.shape)[:, : ids.shape[1]]
            return {**masks, "ends": ends if after is None else ends ^ after}
        return {**masks, "ends": self.ends_of(RULES[kind], ids, masks, sizes)}

    def ends_of(self, rule: Rule, ids: Tensor, masks: Masks, sizes: Sequence[int]) -> Tensor:
        """Those that the rule finds; in chunks of these sizes it must find the same."""
        segmenter = Segmenter(rule, max_length=self.model["max_unit_length"])
        whole, _ = segmenter.advance(segmenter.initial(len(ids)), ids, **masks)
        state, begin = segmenter.initial(len(ids)), 0
        for size in sizes:
            span = slice(begin, begin + size)
            units, state = segmenter.advance(state, ids[:, span], **{k: m[:, span] for k, m in masks.items()})
            for name in TENSORS:
                assert torch.equal(getattr(units, name), getattr(whole, name)[:, span]), f"{name} at {begin}"
            begin += size
        return whole.closes


def padding(kind: str, seed: int, rows: int, length: int) -> Tensor:
    """False where nothing is; rows differ."""
    columns, much = torch.arange(length), max(length // 3, 1)
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randint(0, much + 1, (2, rows, 1), generator=generator)
    if kind == "inside":
        return mask(seed + 1, 0.7, rows, LONGEST)[:, :length]
    is_left, is_right = kind in ("left", "both"), kind in ("right", "both")
    return (columns >= left * is_left) & (columns < length - right * is_right)


AREA = Area("streams", draw, run)
