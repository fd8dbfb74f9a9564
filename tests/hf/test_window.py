"""The near window: texts that fit are the untouched model's, far units are read where the rule puts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf.addresses import Addresses
from contentrope.hf.finetune import CausalLM
from tests.hf.models import (
    CHANGING_FREQUENCIES,
    TERMINATOR,
    WINDOWED,
    attached,
    enliven,
    logits,
    padded_dtype,
    random_ids,
    tiny,
)
from tests.hf.test_cache import in_chunks, same
from tests.hf.test_causality import check_causal
from tests.hf.test_competition import NOT_PLAIN, by_own_attention

W = 10
MARKER = 5
every = pytest.mark.parametrize("name", WINDOWED)


def windowed(name: str, **settings: Any) -> PreTrainedModel:
    return attached(name, window=W, competition=1.0, **settings)


# --- texts that fit ------------------------------------------------------------------------------------------------


@every
def test_a_text_that_fits_is_read_to_the_last_bit(name: str) -> None:
    model, untouched = windowed(name), tiny(name)
    for ids in (random_ids(2, 1), random_ids(2, W)):
        assert torch.equal(logits(model, ids, use_cache=False), logits(untouched, ids, use_cache=False))
        for sizes in ((W,), (4, 1, 3), (1,)):
            found, expected = (in_chunks(m, ids, sizes, DynamicCache(config=m.config)) for m in (model, untouched))
            assert torch.equal(found, expected)
        found, expected = (in_chunks(m, ids, (3, 1), StaticCache(m.config, 12)) for m in (model, untouched))
        assert torch.equal(found, expected)
    long = random_ids(2, 3 * W)
    assert float((logits(model, long) - logits(untouched, long)).abs().max()) > 1e-3


@every
@pytest.mark.parametrize("placed", [True, False], ids=["positions", "columns"])
def test_with_padding_on_the_left_too(name: str, placed: bool) -> None:
    model, untouched = (make(name, dtype=padded_dtype(name)) for make in (windowed, tiny))
    ids, mask = random_ids(3, W), torch.arange(W) >= 3 * torch.arange(3)[:, None]
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if placed else {}
    found, expected = (logits(m, ids, attention_mask=mask, **positions) for m in (model, untouched))
    assert torch.equal(found[mask], expected[mask])
    if placed:
        cache = DynamicCache(config=model.config)
        parts = []
        for begin, end in ((0, 4), (4, 5), (5, W)):
            given = {"attention_mask": mask[:, :end], "position_ids": positions["position_ids"][:, begin:end]}
            parts.append(logits(model, ids[:, begin:end], past_key_values=cache, **given))
        same(torch.cat(parts, dim=1)[mask], expected[mask])


def test_a_short_row_beside_a_long_one_is_read_as_before() -> None:
    model, untouched = windowed("llama"), tiny("llama")
    ids, mask = random_ids(2, 25), torch.arange(25) >= torch.tensor([[0], [25 - W]])
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    found, expected = (logits(m, ids, **given) for m in (model, untouched))
    same(found[1, -W:], expected[1, -W:])
    assert float((found[0] - expected[0]).abs().max()) > 1e-3


def test_positions_may_begin_anywhere() -> None:
    model, ids = windowed("llama"), random_ids(2, 25)
    positions = 40 + torch.arange(25)[None].expand(2, -1)
    same(logits(model, ids, position_ids=positions), logits(model, ids))


# --- far units, by an oracle ---------------------------------------------------------------------------------------


class Placed(Addresses):
    """Addresses of so many positions, unit by unit."""

    places: Tensor

    def forward(self, embedded: Tensor, units: Any, slot: Tensor, open_unit: Any) -> list[Tensor]:
        places = self.places[: slot.shape[1]].expand(len(slot), -1)[..., None, None]
        return [places * rotary.frequency.expand(rotary.heads, -1) for rotary in self.rotaries]

    def are_zero(self) -> bool:
        return False


class Story(NamedTuple):
    """A text of units; those before the first reader are memory."""

    lengths: tuple[int, ...]
    first_reader: int = 0

    @property
    def columns(self) -> list[tuple[int, int]]:
        """Unit and place in it, of every column."""
        return [(unit, local) for unit, length in enumerate(self.lengths) for local in range(length)]

    @property
    def ids(self) -> Tensor:
        ids = random_ids(1, sum(self.lengths), end_rate=0.0)
        ids[ids == MARKER] = 6
        ids[0, torch.tensor(self.lengths).cumsum(0) - 1] = TERMINATOR
        if self.first_reader:
            ids[0, sum(self.lengths[: self.first_reader])] = MARKER
        return ids

    def begins(self, unit: int) -> int:
        """At which position, memory not counted."""
        return sum(self.lengths[self.first_reader : unit])

    def is_memory(self, unit: int) -> bool:
        return unit < self.first_reader

    def is_near(self, query: int, key: int) -> bool:
        """The rule, as SPEC 9 has it."""
        if query == key:
            return True
        memory = self.is_memory(query) or self.is_memory(key)
        return not memory and self.begins(key) >= self.begins(query) - W


PLAIN = Story((3, 7, 1, 6, 4, 5, 1, 1, 7))
"""Units that begin exactly a window before another (10 after 0, 21 after 11, 27 after 17), and one token more."""
WITH_MEMORY = Story((3, 5, 2, *PLAIN.lengths[:-1]), first_reader=3)
FAR_FROM_ZERO = 60


def oracle(untouched: PreTrainedModel, story: Story, places: Tensor, alpha: float) -> Tensor:
    """Of one layer: for every unit, the untouched model with all keys where the queries of this unit see them."""
    columns, units = story.columns, range(len(story.lengths))
    positions = torch.zeros(len(units), len(columns), dtype=torch.int64)
    taken = torch.zeros(len(units), 1, 1, len(columns), dtype=torch.float64)
    for query in units:
        far = sum(not story.is_near(query, key) for key in range(query))
        for column, (key, local) in enumerate(columns):
            if story.is_near(query, key):
                positions[query, column] = W + story.begins(key) + local - story.begins(query)
            else:
                positions[query, column] = int(places[key]) + local
                hidden = story.is_memory(query) or key > query
                taken[query, 0, 0, column] = -torch.inf if hidden else -alpha * torch.tensor(max(far, 1)).log()
    later = torch.ones(len(columns), len(columns)).triu(1).bool()
    mask = taken + torch.where(later, -torch.inf, 0.0)
    mask = mask.masked_fill(
        torch.eye(len(columns)).bool(), 0.0
    )  # queries of other units see something, and are not used
    given = {"attention_mask": mask, "position_ids": positions + FAR_FROM_ZERO, "use_cache": False}
    rows = logits(untouched, story.ids.expand(len(units), -1), **given)
    return torch.stack([rows[unit, column] for column, (unit, _) in enumerate(columns)])[None]


def one_layer(name: str) -> PreTrainedModel:
    return tiny(name, num_hidden_layers=1, **({"layer_types": ["full_attention"]} if name in NOT_PLAIN else {}))


def attached_to_one_layer(name: str, story: Story, alpha: float) -> PreTrainedModel:
    model = one_layer(name)
    readers = {"reader": {MARKER}} if story.first_reader else {}
    given = {"window": W, "competition": alpha, "max_length": 7, "check": False, **readers}
    return chf.attach(model, units={TERMINATOR}, **given)


@pytest.mark.parametrize("story", [PLAIN, WITH_MEMORY], ids=["", "memory"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("name", ["llama", "glm", "gpt_neox", "cohere", "nanochat", *NOT_PLAIN])
def test_every_pair_is_read_as_the_rule_has_it(name: str, alpha: float, story: Story) -> None:
    model, plain = attached_to_one_layer(name, story, alpha), one_layer(name)
    zero = torch.zeros(len(story.lengths))
    same(logits(model, story.ids), oracle(plain, story, zero, alpha))
    places = torch.randint(-20, 20, zero.shape, generator=torch.Generator().manual_seed(0))
    adapter = chf.adapter_of(model)
    model.contentrope = Placed(adapter.rotaries, model.config.hidden_size, 7).double()
    model.contentrope.places = places
    found = logits(model, story.ids, use_cache=False)
    same(found, oracle(plain, story, places, alpha))
    assert float((found - oracle(plain, story, zero, alpha)).abs().max()) > 1e-3


@every
def test_addresses_that_stand_for_positions_give_back_the_untouched_model(name: str) -> None:
    """In all layers: only the last unit sees others from beyond the window."""
    starts = torch.tensor([0, 3, 5, 10, 16])
    ids = random_ids(2, 23, end_rate=0.0)
    ids[:, starts[1:] - 1] = TERMINATOR
    model, expected = tiny(name), logits(tiny(name), ids, use_cache=False)
    chf.attach(model, units={TERMINATOR}, window=W, max_length=7, check=False)
    zero = logits(model, ids, use_cache=False)
    model.contentrope = Placed(chf.adapter_of(model).rotaries, model.config.hidden_size, 7).double()
    model.contentrope.places = W - 16 + starts
    same(logits(model, ids, use_cache=False), expected)
    assert float((zero - expected).abs().max()) > 1e-3


@pytest.mark.parametrize("name", WINDOWED)
def test_the_way_through_the_models_own_attention_equals_the_reference(name: str) -> None:
    model, ids = windowed(name, dtype=padded_dtype(name)), random_ids(2, 29)
    padding = torch.arange(29) >= torch.tensor([[0], [4]])
    chf.adapter_of(model).backend = "reference"
    expected = logits(model, ids), logits(model, ids, attention_mask=padding)
    chf.adapter_of(model).backend = "auto"
    same(logits(model, ids), expected[0])
    by_own_attention(model)
    same(logits(model, ids), expected[0])
    same(logits(model, ids, attention_mask=padding)[padding], expected[1][padding])


@pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gemma3", "gpt_oss"])
def test_later_tokens_change_nothing(name: str) -> None:
    check_causal(windowed(name), random_ids(2, 29), times=(7, 17, 24, 27))


# --- memory units --------------------------------------------------------------------------------------------------


@every
def test_readers_do_not_see_the_order_of_memory_units(name: str) -> None:
    """As short as the shortest sliding window, and in it the readers' own window."""
    one = torch.tensor([[7, TERMINATOR, 9, TERMINATOR, 11, TERMINATOR, MARKER, 20, 21]])
    other = torch.tensor([[11, TERMINATOR, 7, TERMINATOR, 9, TERMINATOR, MARKER, 20, 21]])
    model = tiny(name)
    given = {"window": W, "competition": 1.0, "reader": (MARKER,), "max_length": 7, "check": False}
    enliven(chf.attach(model, units={TERMINATOR}, **given))
    found = logits(model, one), logits(model, other)
    same(found[0][:, 6:], found[1][:, 6:])
    same(found[0][:, :2], found[1][:, 2:4])
    for ids, at_once in zip((one, other), found, strict=True):
        same(in_chunks(model, ids, (3, 1), DynamicCache(config=model.config)), at_once)


def test_that_order_costs_no_more_than_rounding() -> None:
    model = tiny("gpt_neox")  # computes its norms in float64
    given = {"window": W, "competition": 1.0, "reader": (MARKER,), "max_length": 7, "check": False}
    enliven(chf.attach(model, units={TERMINATOR}, **given))
    story = Story((4, 4, 4, *PLAIN.lengths[:-2]), first_reader=3)
    ids = story.ids
    other = torch.cat((ids[:, 8:12], ids[:, 0:8], ids[:, 12:]), dim=1)
    found = logits(model, ids)[:, 12:], logits(model, other)[:, 12:]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


# --- files and refusals --------------------------------------------------------------------------------------------


def test_files_know_of_the_window(tmp_path: Path) -> None:
    model, ids = windowed("llama"), random_ids(2, 29)
    chf.save(model, tmp_path)
    again = attached("llama", window=W, lively=False)
    chf.load(again, tmp_path)
    assert torch.equal(logits(again, ids), logits(model, ids))
    for other in (0, W + 1):
        with pytest.raises(cr.CheckpointError, match=f"window: {other} here, {W} in the file"):
            chf.load(attached("llama", window=other, lively=False), tmp_path)


def test_a_whole_model_comes_back_with_its_window(tmp_path: Path) -> None:
    model, ids = windowed("llama", dtype=torch.float32), random_ids(2, 29)
    chf.save_pretrained(model, tmp_path / "saved")
    again = chf.from_pretrained(tmp_path / "saved")
    assert chf.adapter_of(again).window == W
    assert torch.equal(logits(again, ids), logits(model, ids))


@pytest.mark.parametrize("wrong", [-1, 1.5, 10.0, True, "10", None, 10**12], ids=str)
def test_a_window_is_a_number_of_tokens(wrong: Any) -> None:
    with pytest.raises(cr.InputError, match=f"window.*{str(wrong)[:5]}"):
        chf.attach(tiny("llama"), units={TERMINATOR}, window=wrong)


def test_positions_are_the_models_own() -> None:
    for positions in ("global", 1, 0.5):
        with pytest.raises(cr.InputError, match=rf"{positions}.*window={W}"):
            chf.attach(tiny("llama"), units={TERMINATOR}, window=W, positions=positions)
        with pytest.raises(cr.InputError, match=rf"{positions}.*window={W}"):
            chf.set_positions(windowed("llama"), positions)
    ids = random_ids(2, 29)
    with pytest.raises(cr.InputError, match=f"window={W}"):
        CausalLM(windowed("llama"))(ids, gate=torch.ones(2))
    assert torch.equal(CausalLM(windowed("llama"))(ids), windowed("llama")(ids, use_cache=False).logits)


@pytest.mark.parametrize("name", CHANGING_FREQUENCIES)
def test_frequencies_that_depend_on_the_length_are_refused(name: str) -> None:
    model = tiny(name)
    with pytest.raises(cr.InputError, match=rf"{type(model).__name__}.*window=0"):
        chf.attach(model, units={TERMINATOR}, window=W, max_length=7)
    chf.attach(model, units={TERMINATOR}, max_length=7)
