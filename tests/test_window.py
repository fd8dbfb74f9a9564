"""The near window of whole models: every pair as the table says, RoPE within it, and what it does to memory units.

Positions count tokens that are neither padding nor memory. A text is read in float64 unless a test says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.address import random_angles
from tests.schemes.dense import drawn_seeds, series
from tests.schemes.test_unit_readers import content_address
from tests.support import LEARNED, TERMINATOR, WINDOWED, in_chunks, lively_model, random_ids
from tests.support.decoder import Scores, dense_logits, padding_everywhere
from tests.support.window_by_hand import Token, delta_of, far_units_of, tokens_by_hand

TOLERANCE = 1e-12
MOVED = 1e-3
SEQ = 30


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def with_weights_of(model: cr.Transformer, scheme: str, **settings: Any) -> cr.Transformer:
    """Another scheme, or other options; addresses are left out where there are none."""
    other = lively_model(scheme, **settings)
    weights = model.state_dict()
    other.load_state_dict({name: weights[name] for name in other.state_dict()})
    return other


def five_units() -> Tensor:
    """Twenty tokens."""
    return torch.tensor([[3, 4, 0, 5, 6, 1, 7, 0, 2, 0, 8, 9, 3, 1, 0, 4, 4, 7, 2, 6]])


# --- The table, pair by pair ---


def table_scores(
    model: cr.Transformer,
    texts: list[list[Token | None]],
    address: Tensor,
    *,
    window: int | None = None,
    deltas: Callable[..., Tensor] = delta_of,
    count: Callable[..., int] = far_units_of,
) -> Scores:
    """``address``: (batch, seq, kv_heads, pairs). The rest is what the controls get wrong."""
    config, width = model.config, model.scheme.reader.window if window is None else window
    pairs, seq = config.pair_count, len(texts[0])
    by_head = address.double().repeat_interleave(config.group, dim=2).transpose(1, 2)
    delta = torch.zeros(len(texts), config.heads, seq, seq, pairs, dtype=torch.float64)
    log_units, hidden = torch.zeros(2, len(texts), 1, seq, seq, dtype=torch.float64)
    for row, text in enumerate(texts):
        for t, query in enumerate(text):
            for s, key in enumerate(text[: t + 1]):
                if query is None or key is None or (query.memory and query.unit != key.unit):
                    hidden[row, 0, t, s] = -math.inf
                    continue
                delta[row, :, t, s] = deltas(query, key, by_head[row, :, s], width, series(pairs))
                far = not query.reads_near(key, width)
                log_units[row, 0, t, s] = far * math.log(max(1, count(text[: t + 1], query, width)))

    def scores(layer: int, hidden_states: Tensor, query: Tensor, key: Tensor) -> Tensor:
        (a, b), (c, d) = (x.split((pairs, pairs), dim=-1) for x in (query, key))
        rotated = torch.complex(a, -b)[:, :, :, None] * torch.complex(c, d)[:, :, None] * torch.exp(1j * delta)
        alpha = torch.as_tensor(model.scheme.reader.competition.of(layer), dtype=torch.float64)
        rivalry = alpha.view(-1, 1, 1) * log_units
        return rotated.real.sum(-1) / math.sqrt(query.shape[-1]) - rivalry + hidden

    return scores


def text_of(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
    memory = torch.rand(3, SEQ, generator=torch.Generator().manual_seed(1)) < 0.5
    masks = {"plain": {}, "padding": {"valid": padding_everywhere(SEQ)}, "memory": {"memory": memory}}
    masks["both"] = masks["padding"] | masks["memory"]
    return random_ids(3, SEQ), masks[kind]


def address_of(model: cr.Transformer, ids: Tensor, texts: list[list[Token | None]]) -> Tensor:
    """Of every token's unit; the draw of ``random`` is repeated by the forward pass that follows."""
    heads, pairs = model.config.key_heads, model.config.pair_count
    valid = torch.tensor([[token is not None for token in text] for text in texts])
    if model.config.scheme == "content":
        return content_address(model, ids, valid)
    if model.config.scheme == "local":
        return torch.zeros(*ids.shape, heads, pairs)
    unit = torch.tensor([[0 if token is None else token.unit for token in text] for text in texts])
    return random_angles(drawn_seeds(4, len(ids)), unit, heads, pairs)


def expected_logits(model: cr.Transformer, ids: Tensor, masks: dict[str, Tensor], **wrong: Any) -> Tensor:
    texts = tokens_by_hand(ids, model.config.max_unit_length, TERMINATOR, **masks)
    scores = table_scores(model, texts, address_of(model, ids, texts), **wrong)
    return dense_logits(model, ids, scores, masks.get("valid"))


MODELS: dict[str, dict[str, Any]] = {
    "content": {"scheme": "content", "options": {"window": 9}},
    "zero addresses": {"scheme": "local", "options": {"window": 5, "competition": 1.0}},
    "random": {"scheme": "random", "options": {"window": 6, "competition": 0.7}},
    "learned, grouped": {
        "scheme": "content", "heads": 4, "kv_heads": 2, "options": {**LEARNED, "sharpness": 0.0, "window": 7},
    },
    "reference": {"scheme": "content", "backend": "reference", "options": {"window": 8, "competition": 1.0}},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "padding", "memory", "both"])
@pytest.mark.parametrize("made_with", MODELS.values(), ids=MODELS)
def test_every_pair_is_scored_as_the_table_says(made_with: dict[str, Any], kind: str) -> None:
    options = {name: value for name, value in made_with["options"].items() if name != "learn_sharpness"}
    model, (ids, masks) = lively_model(**{**made_with, "layers": 2, "options": options}), text_of(kind)
    learned = model.scheme.reader.competition.learned
    if learned is not None:
        with torch.no_grad():
            learned.copy_(torch.linspace(-1, 2, learned.numel()).view_as(learned))
    expected = expected_logits(model, ids, masks)
    valid = masks.get("valid", torch.ones_like(ids).bool())
    with torch.no_grad():
        close(model(ids, **masks)[valid], expected[valid])


def always_w_back(query: Token, key: Token, address: Tensor, window: int, frequency: Tensor) -> Tensor:
    near = query.reads_near(key, window)
    return delta_of(query, key, address, window, frequency) + (0.0 if near else query.local * frequency)


WRONG: dict[str, dict[str, Any]] = {
    "a window that is one token wider": {"window": 10},
    "far queries that forget their place in the unit": {"deltas": always_w_back},
    "competition that counts near units too": {"count": lambda text, query, window: query.unit},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_another_table_gives_other_logits(wrong: dict[str, Any]) -> None:
    model, (ids, masks) = lively_model("content", options={"window": 9, "competition": 1.0}), text_of("plain")
    assert apart(model(ids), expected_logits(model, ids, masks, **wrong)) > MOVED


# --- Short texts ---


@pytest.mark.parametrize("scheme", ["content", "random", "local"])
@pytest.mark.parametrize("sizes", [(20,), (1,), (6, 1, 3)], ids=["whole", "single", "mixed"])
def test_texts_within_the_window_are_read_by_plain_rope(scheme: str, sizes: tuple[int, ...]) -> None:
    """Whatever the addresses and the competition."""
    ids = five_units()
    model = lively_model(scheme, options={"window": 20, "competition": 1.0})
    rope = with_weights_of(model, "rope")
    close(in_chunks(model, ids, sizes), rope(ids))
    close(model(ids), rope(ids))


def test_the_first_unit_is_far_once_one_begins_more_than_a_window_later() -> None:
    model = lively_model("content", options={"window": 19})
    rope = with_weights_of(model, "rope")
    for begin in (19, 20):  # of the last unit
        ids = torch.cat((five_units()[:, :19], torch.full((1, begin - 18), 6)), dim=1)
        ends = torch.isin(torch.arange(begin + 1), torch.tensor([2, 9, begin - 1]))
        found = model(ids, ends=ends[None])
        is_rope = apart(found[:, -1], rope(ids)[:, -1]) < TOLERANCE
        assert is_rope is (begin == 19)
        close(found[:, :-1], rope(ids)[:, :-1])


def test_no_window_is_no_option() -> None:
    """Bit for bit, at once and in chunks."""
    ids = random_ids(2, SEQ)
    plain = lively_model("content", options={"competition": 1.0})
    for window in (0, 1):
        model = with_weights_of(plain, "content", options={"competition": 1.0, "window": window})
        assert torch.equal(model(ids), plain(ids)) is (window == 0)
        assert torch.equal(in_chunks(model, ids, (1, 4)), in_chunks(plain, ids, (1, 4))) is (window == 0)


# --- Competition ---


def test_a_far_unit_alone_has_no_competition() -> None:
    """Nor have near units, however many there are."""
    ids, window = torch.tensor([[3, 0, 5, 0, 7, 0, 2, 0, 4, 0, 6, 1, 8]]), 4
    model = lively_model("content", options={"window": window, "competition": 1.0})
    free = with_weights_of(model, "content", options={"window": window})
    changed = (model(ids) - free(ids)).abs().amax(-1)[0]
    # The unit that begins at 8 is the first of which two units are far: those that began at 0 and 2.
    assert (changed[:8] < TOLERANCE).all()
    assert (changed[8:] > 1e-5).all()


# --- Memory units ---

MEMORY = [[1, 2, 0], [3, 4, 5, 0], [6, 0]]
READERS = [[7, 8, 0], [9, 1, 2, 0], [3, 5, 0], [4, 6, 0], [8, 2]]


def held(units: list[tuple[list[int], bool]]) -> tuple[Tensor, cr.Cache]:
    """Logits and the cache; each unit comes with its mark."""
    ids = torch.tensor([[token for unit, _ in units for token in unit]])
    mask = torch.tensor([[mark for unit, mark in units for _ in unit]])
    model = lively_model(WINDOWED)
    cache = model.new_cache(1)
    spans = zip(ids.split(7, dim=1), mask.split(7, dim=1), strict=True)
    return torch.cat([model(part, memory=marks, cache=cache) for part, marks in spans], dim=1), cache


@pytest.mark.parametrize("marked", [True, False])
def test_readers_do_not_see_the_order_of_memory_units_around_them(marked: bool) -> None:
    """Nor do they where memory stands between readers."""
    shuffled = [[*READERS[:1], *(MEMORY[n] for n in order), *READERS[1:]] for order in ((0, 1, 2), (2, 0, 1))]
    found = [held([(unit, marked and unit in MEMORY) for unit in units])[0] for units in shuffled]
    readers = sum(map(len, READERS[1:]))
    assert (apart(*(x[:, -readers:] for x in found)) < TOLERANCE) is marked


@pytest.mark.parametrize("marked", [True, False])
def test_an_inserted_memory_unit_moves_nobody(marked: bool) -> None:
    """Readers keep their positions, and with them their window; of other memory units keys and values stay."""
    readers = [(unit, False) for unit in READERS]
    before = [(MEMORY[0], True), *readers[:2], (MEMORY[1], True), *readers[2:]]
    after = [*before[:2], (MEMORY[2], marked), *before[2:]]
    (_, old), (_, new) = held(before), held(after)
    kept = torch.tensor([at for at in range(new.length) if not 6 <= at < 6 + len(MEMORY[2])])
    assert torch.equal(new.fact("begins")[:, kept], old.fact("begins")) is marked
    is_memory = old.fact("memory")[0].bool()
    for name in ("keys", "values"):
        for ours, theirs in zip(getattr(new, name), getattr(old, name), strict=True):
            close(ours[:, :, kept][:, :, is_memory], theirs[:, :, : old.length][:, :, is_memory])
    # In the first layer keys know nothing of other units but their place.
    first_new, first_old = new.keys[0][:, :, kept], old.keys[0][:, :, : old.length]
    assert (apart(first_new, first_old) < TOLERANCE) is marked


# --- Bad input ---


@pytest.mark.parametrize("window", [-1, 2.0, True, 2**40, "4", None], ids=repr)
@pytest.mark.parametrize("scheme", ["content", "random", "local"])
def test_a_window_that_is_none_is_refused_by_its_value(scheme: str, window: Any) -> None:
    with pytest.raises(cr.InputError, match=f"window.* got .*{window}"):
        lively_model(scheme, options={"window": window})


def test_a_window_wider_than_any_text_costs_nothing() -> None:
    model = lively_model("content", options={"window": 10**9})
    close(model(five_units()), with_weights_of(model, "rope")(five_units()))
