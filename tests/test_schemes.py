"""Every scheme against its dense definition in float64, written here from the papers without the library's parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import contentrope as cr
from contentrope import schemes
from contentrope.address import random_angles
from contentrope.schemes.alibi import ladder
from tests.support import TERMINATOR, VOCABULARY, lively_model, random_ids

# Longer than the 256 queries after which plain attention begins a new tile.
LONG = 300
CLOSE = {"rtol": 0, "atol": 1e-10}

Scores = Callable[[int, Tensor, Tensor], Tensor]


def naive_logits(
    model: cr.Transformer,
    ids: Tensor,
    scores: Scores,
    *,
    valid: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """A pre-norm GELU decoder with every pair's score in one dense tensor; the scheme says what the scores are."""
    config = model.config
    x = model.embedding.weight[ids]
    x = x if added is None else x + added
    seq = ids.shape[1]
    visible = torch.ones(seq, seq).tril().bool().expand(len(ids), 1, seq, seq)
    if valid is not None:
        visible = visible & valid[:, None, None]
    for layer, block in enumerate(model.blocks):
        h = layer_norm(x, block.attention_norm) @ block.query_key_value.weight.T + block.query_key_value.bias
        by_head = h.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        query, key, value = by_head.split((config.heads, config.key_heads, config.key_heads), dim=1)
        key, value = (t.repeat_interleave(config.group, dim=1) for t in (key, value))
        masked = scores(layer, query, key).masked_fill(~visible, -torch.inf)
        read = masked.softmax(-1).nan_to_num(0.0) @ value
        if valid is not None:
            read = read * valid[:, None, :, None]
        x = x + read.transpose(1, 2).flatten(2) @ block.attention_out.weight.T + block.attention_out.bias
        h = layer_norm(x, block.feed_norm) @ block.feed_up.weight.T + block.feed_up.bias
        x = x + F.gelu(h) @ block.feed_down.weight.T + block.feed_down.bias
    return layer_norm(x, model.norm) @ model.head.weight.T + model.head.bias


def layer_norm(x: Tensor, norm: Any) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def turned(x: Tensor, angles: Tensor, layout: str = "half") -> Tensor:
    """Rotate (batch, heads, seq, head_dim) by angles (batch, heads or 1, seq, pairs), as complex numbers."""
    pairs = angles.shape[-1]
    rest = x[..., 2 * pairs :]
    real, imaginary = (
        (x[..., :pairs], x[..., pairs : 2 * pairs])
        if layout == "half"
        else (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2])
    )
    number = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)
    if layout == "half":
        return torch.cat((number.real, number.imag, rest), dim=-1)
    return torch.cat((torch.view_as_real(number).flatten(-2), rest), dim=-1)


def series(pairs: int, base: float = 10000.0) -> Tensor:
    return torch.tensor([base ** (-b / pairs) for b in range(pairs)], dtype=torch.float64)


def rotary_scores(positions: Tensor, frequencies: Tensor, *, layout: str = "half", gain: float = 1.0) -> Scores:
    """positions (batch or 1, seq); frequencies (pairs) or (heads, pairs)."""
    angles = positions.double()[:, None, :, None] * frequencies.view(-1, 1, frequencies.shape[-1])

    def scores(_layer: int, query: Tensor, key: Tensor) -> Tensor:
        query, key = turned(query, angles, layout), turned(key, angles, layout)
        return gain * query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])

    return scores


def token_counts(valid: Tensor) -> Tensor:
    """Tokens before each token, padding not counted."""
    return (valid.long().cumsum(1) - 1).clamp(min=0)


def padding_in_all_places(seq: int) -> Tensor:
    valid = torch.ones(3, seq, dtype=torch.bool)
    valid[0, : seq // 3] = False
    valid[1, -seq // 4 :] = False
    valid[2, 2::5] = False
    return valid


def assert_equal_where_valid(found: Tensor, expected: Tensor, valid: Tensor) -> None:
    torch.testing.assert_close(found[valid], expected[valid], **CLOSE)
    assert torch.isfinite(found).all()


# --- rotary schemes on one counter -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "frequencies"),
    [
        ({}, series(6)),
        ({"rotary": cr.RotaryConfig(pairs="interleaved")}, series(6)),
        ({"rotary": cr.RotaryConfig(fraction=0.5, base=500.0)}, series(3, 500.0)),
        ({"rotary": cr.RotaryConfig(frequencies="model_wide")}, series(12).view(2, 6)),
        ({"heads": 4, "kv_heads": 2}, series(3)),
        (
            {"heads": 4, "kv_heads": 2, "rotary": cr.RotaryConfig(frequencies="model_wide")},
            series(6).view(2, 3).repeat_interleave(2, dim=0),
        ),
    ],
    ids=["plain", "interleaved", "partial", "model-wide", "grouped", "grouped model-wide"],
)
def test_rope(settings: dict[str, Any], frequencies: Tensor) -> None:
    model, ids = lively_model("rope", **settings), random_ids(2, 40)
    scores = rotary_scores(torch.arange(40)[None], frequencies, layout=model.config.rotary.pairs)
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


@pytest.mark.parametrize("seq", [41, LONG])
def test_rope_with_padding_counts_tokens_not_columns(seq: int) -> None:
    model, ids, valid = lively_model("rope"), random_ids(3, seq), padding_in_all_places(seq)
    expected = naive_logits(model, ids, rotary_scores(token_counts(valid), series(6)), valid=valid)
    assert_equal_where_valid(model(ids, valid=valid), expected, valid)


@pytest.mark.parametrize("factor", [1.0, 2.5, 16.0])
def test_pi_is_rope_at_positions_divided_by_the_factor(factor: float) -> None:
    model, ids = lively_model("pi", options={"factor": factor}), random_ids(2, 40)
    scores = rotary_scores(torch.arange(40).double()[None] / factor, series(6))
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


@pytest.mark.parametrize("layout", ["per_head", "model_wide"])
def test_ntk_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all(layout: str) -> None:
    rotary = cr.RotaryConfig(frequencies=layout)
    made = lively_model("ntk", options={"factor": 8.0}, rotary=rotary).scheme.rotations.inverse_frequency.flatten()
    plain = series(len(made))
    assert made[0] == plain[0] == 1.0
    torch.testing.assert_close(made[-1], plain[-1] / 8, rtol=1e-14, atol=0)
    # Between them the slowing is geometric: the series is still one of powers.
    torch.testing.assert_close(made[1:] / made[:-1], (made[1] / made[0]).expand(len(made) - 1), rtol=1e-13, atol=0)


def test_ntk() -> None:
    model, ids = lively_model("ntk", options={"factor": 8.0}), random_ids(2, 40)
    frequencies = series(6, 10000.0 * 8.0 ** (6 / 5))
    scores = rotary_scores(torch.arange(40)[None], frequencies)
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


def yarn_by_the_paper(pairs: int, scale: float, train_length: float, alpha: float, beta: float) -> tuple[Tensor, float]:
    """Frequencies, and the factor of the scores: Peng et al., equations 17 to 19, 21 and 22, pair by pair."""
    frequencies = []
    for pair in range(pairs):
        theta = 10000.0 ** (-pair / pairs)
        wavelength = 2 * math.pi / theta
        ratio = train_length / wavelength
        if ratio < alpha:
            gamma = 0.0
        elif ratio > beta:
            gamma = 1.0
        else:
            gamma = (ratio - alpha) / (beta - alpha)
        frequencies.append((1 - gamma) * theta / scale + gamma * theta)
    root_of_inverse_temperature = 0.1 * math.log(scale) + 1
    return torch.tensor(frequencies, dtype=torch.float64), root_of_inverse_temperature**2


@pytest.mark.parametrize(
    "options",
    [{}, {"factor": 4.0}, {"train_length": 64, "slow_turns": 0.5, "fast_turns": 4.0}, {"factor": 1.0}],
    ids=["defaults", "factor", "ramp", "factor 1"],
)
def test_yarn(options: dict[str, Any]) -> None:
    model, ids = lively_model("yarn", options=options), random_ids(2, 40)
    told = {"factor": 16.0, "train_length": 256, "slow_turns": 1.0, "fast_turns": 32.0, **options}
    frequencies, gain = yarn_by_the_paper(6, *told.values())
    scores = rotary_scores(torch.arange(40)[None], frequencies, gain=gain)
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


def test_the_yarn_of_these_tests_has_slow_fast_and_mixed_pairs() -> None:
    """Else the three branches of the formula above would not all have been compared."""
    ratio = yarn_by_the_paper(6, 16.0, 256, 1.0, 32.0)[0] / series(6)
    assert ratio[0] == 1
    assert ratio[-1] == 1 / 16
    assert ((ratio > 1 / 16 + 1e-3) & (ratio < 1 - 1e-3)).any()


@pytest.mark.parametrize("scheme", ["pi", "ntk", "yarn"])
def test_factor_one_is_rope(scheme: str) -> None:
    rope, scaled, ids = lively_model("rope"), lively_model(scheme, options={"factor": 1.0}), random_ids(2, 40)
    scaled.load_state_dict(rope.state_dict())
    torch.testing.assert_close(scaled(ids), rope(ids), rtol=0, atol=1e-12)


# --- alibi and nope --------------------------------------------------------------------------------------------


def alibi_scores(slopes: list[float], positions: Tensor) -> Scores:
    """The bias matrix of Press et al., entry by entry: -slope * distance."""
    distance = (positions[:, :, None] - positions[:, None, :]).double()
    bias = torch.stack([-slope * distance for slope in slopes], dim=1)
    return lambda _layer, query, key: query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias


def test_the_slopes_of_four_heads_are_those_of_the_paper() -> None:
    assert ladder(4).tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    assert ladder(8).tolist() == [2.0**-i for i in range(1, 9)]


@pytest.mark.parametrize("seq", [40, LONG])
@pytest.mark.parametrize(
    ("settings", "slopes"),
    [
        ({"heads": 4}, [2**-2, 2**-4, 2**-6, 2**-8]),
        ({"heads": 4, "kv_heads": 2}, [2**-2, 2**-4, 2**-6, 2**-8]),
        ({"options": {"slopes": [0.3, 0.007]}}, [0.3, 0.007]),
    ],
    ids=["ladder", "grouped", "own slopes"],
)
def test_alibi(settings: dict[str, Any], slopes: list[float], seq: int) -> None:
    model, ids = lively_model("alibi", **settings), random_ids(2, seq)
    expected = naive_logits(model, ids, alibi_scores(slopes, torch.arange(seq)[None]))
    torch.testing.assert_close(model(ids), expected, **CLOSE)


@pytest.mark.parametrize("seq", [41, LONG])
def test_alibi_with_padding_measures_distance_in_tokens(seq: int) -> None:
    model, ids, valid = lively_model("alibi"), random_ids(3, seq), padding_in_all_places(seq)
    expected = naive_logits(model, ids, alibi_scores([2**-4, 2**-8], token_counts(valid)), valid=valid)
    assert_equal_where_valid(model(ids, valid=valid), expected, valid)


@pytest.mark.parametrize("seq", [41, LONG])
@pytest.mark.parametrize("padded", [False, True])
def test_nope(seq: int, padded: bool) -> None:
    model, ids = lively_model("nope"), random_ids(3, seq)
    valid = padding_in_all_places(seq) if padded else None
    plain: Scores = lambda _layer, query, key: query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # noqa: E731
    expected = naive_logits(model, ids, plain, valid=valid)
    assert_equal_where_valid(model(ids, valid=valid), expected, torch.ones_like(ids).bool() if valid is None else valid)


def test_nope_with_one_layer_does_not_know_the_order_of_earlier_tokens() -> None:
    ids = torch.arange(1, 10)[None]
    shuffled = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    nope, rope = lively_model("nope", layers=1), lively_model("rope", layers=1)
    torch.testing.assert_close(nope(ids)[:, -1], nope(shuffled)[:, -1], rtol=0, atol=1e-12)
    assert (rope(ids)[:, -1] - rope(shuffled)[:, -1]).abs().max() > 1e-2


# --- randomized positions --------------------------------------------------------------------------------------


def drawn_seeds(torch_seed: int, batch: int) -> Tensor:
    """The seeds a forward pass draws: one call of torch's generator."""
    torch.manual_seed(torch_seed)
    seeds = torch.randint(2**62, (batch,))
    torch.manual_seed(torch_seed)
    return seeds


@pytest.mark.parametrize("padded", [False, True])
def test_randomized_is_rope_at_its_drawn_positions(padded: bool) -> None:
    model, ids = lively_model("randomized", options={"range": 500}), random_ids(3, 40)
    valid = padding_in_all_places(40) if padded else torch.ones_like(ids).bool()
    positions = model.scheme._positions(drawn_seeds(3, 3), 40)
    found = model(ids, valid=valid if padded else None)
    scores = rotary_scores(positions.gather(1, token_counts(valid)), series(6))
    assert_equal_where_valid(found, naive_logits(model, ids, scores, valid=valid), valid)


def test_randomized_positions_increase_and_stay_in_range() -> None:
    scheme = lively_model("randomized", options={"range": 300}).scheme
    for count in (1, 100, 300):
        positions = scheme._positions(torch.arange(20), count)
        assert positions.shape == (20, count)
        assert (positions.diff(dim=1) > 0).all()
        assert positions.min() >= 0
        assert positions.max() < 300
    assert torch.equal(positions, torch.arange(300).expand(20, -1)), "the whole range leaves no choice"


def test_randomized_draws_every_subset_equally_often() -> None:
    scheme = lively_model("randomized", options={"range": 5}).scheme
    draws = 4000
    counts = Counter(tuple(row) for row in scheme._positions(torch.arange(draws), 2).tolist())
    assert len(counts) == 10
    # Chi-square with 9 degrees of freedom: beyond 40 once in 100,000.
    expected = draws / 10
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 40


def test_randomized_draws_anew_for_every_call_and_again_with_the_same_seed() -> None:
    model, ids = lively_model("randomized"), random_ids(1, 20)
    torch.manual_seed(1)
    first, second = model(ids), model(ids)
    torch.manual_seed(1)
    assert torch.equal(first, model(ids))
    assert not torch.allclose(first, second)


def test_randomized_refuses_more_tokens_than_positions() -> None:
    model = lively_model("randomized", options={"range": 10})
    model(random_ids(1, 10))
    with pytest.raises(cr.InputError, match="11 tokens need as many positions, the range has 10; raise option 'range'"):
        model(random_ids(1, 11))


# --- schemes that read units -----------------------------------------------------------------------------------


def units_by_hand(ids: Tensor, max_length: int, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit, local position and whether it closes, token by token; unit -1 for padding."""
    unit, local, closes = torch.full_like(ids, -1), torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        current = position = 0
        for column in range(ids.shape[1]):
            if not valid[row, column]:
                continue
            unit[row, column], local[row, column] = current, position
            position += 1
            if ids[row, column] == TERMINATOR or position == max_length:
                closes[row, column] = True
                current, position = current + 1, 0
    return unit, local, closes


@pytest.mark.parametrize(("seq", "padded"), [(41, False), (41, True), (LONG, True)])
def test_bipe_adds_the_place_in_the_unit_and_rotates_by_unit(seq: int, padded: bool) -> None:
    model, ids = lively_model("bipe"), random_ids(3, seq)
    valid = padding_in_all_places(seq) if padded else torch.ones_like(ids).bool()
    unit, local, _ = units_by_hand(ids, 7, valid)
    scores = rotary_scores(unit, series(6))
    expected = naive_logits(model, ids, scores, valid=valid, added=model.scheme.inside_unit.weight[local])
    assert_equal_where_valid(model(ids, valid=valid if padded else None), expected, valid)


def test_the_learned_positions_of_bipe_start_as_small_as_the_token_embeddings() -> None:
    torch.manual_seed(0)
    config = cr.ModelConfig(vocab_size=65, dim=128, layers=1, heads=4, scheme="bipe", terminators=(TERMINATOR,))
    model = cr.Transformer(config)
    assert 0.019 < model.embedding.weight.std() < 0.021
    assert 0.019 < model.scheme.inside_unit.weight.std() < 0.021


def addressed_scores(
    model: cr.Transformer, ids: Tensor, valid: Tensor, address: Tensor, alpha: Callable[[int], Any]
) -> Scores:
    """The table of pairs, both versions of every score dense. address: (batch, seq, kv_heads, pairs) by token."""
    config = model.config
    unit, local, closes = units_by_hand(ids, config.max_unit_length, valid)
    same_unit = (unit[:, :, None] == unit[:, None, :])[:, None]
    inside = local.double()[:, None, :, None] * series(config.pair_count, config.rotary.base)
    address = address.double().transpose(1, 2).repeat_interleave(config.group, dim=1)
    query_angles = inside + address * closes[:, None, :, None]
    log_units = unit.clamp(min=1).double().log()[:, None, :, None]

    def scores(layer: int, query: Tensor, key: Tensor) -> Tensor:
        query = turned(query, query_angles)
        local_score = query @ turned(key, inside.expand_as(address)).transpose(-1, -2)
        addressed_score = query @ turned(key, inside + address).transpose(-1, -2)
        chosen = torch.where(same_unit & ~closes[:, None, :, None], local_score, addressed_score)
        rivalry = torch.as_tensor(alpha(layer)).view(-1, 1, 1) * log_units
        return chosen / math.sqrt(query.shape[-1]) - torch.where(same_unit, 0.0, rivalry)

    return scores


def content_address(model: cr.Transformer, ids: Tensor, valid: Tensor) -> Tensor:
    """W LN(mean of R_i x_i), unit by unit, given to every token of the unit."""
    config, address = model.config, model.scheme.address
    unit, local, _ = units_by_hand(ids, config.max_unit_length, valid)
    inside = local.double()[:, None, :, None] * series(config.pair_count)
    by_head = model.embedding.weight[ids].unflatten(-1, (config.heads, -1)).transpose(1, 2)
    rotated = turned(by_head, inside.expand(-1, config.heads, -1, -1)).transpose(1, 2).flatten(2)
    out = torch.zeros(*ids.shape, config.key_heads * config.pair_count, dtype=torch.float64)
    for row in range(len(ids)):
        for number in range(int(unit[row].max()) + 1):
            of_unit = unit[row] == number
            normed = layer_norm(rotated[row, of_unit].mean(0), address.norm)
            out[row, of_unit] = address.project.weight @ normed + address.project.bias
    return out.unflatten(-1, (config.key_heads, config.pair_count))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"options": {"competition": 1.0}},
        {"options": {"competition": 0.7, "learn_competition": True}},
        {"heads": 4, "kv_heads": 2, "options": {"competition": 1}},
    ],
    ids=["as in the paper", "competition", "learned competition", "grouped"],
)
@pytest.mark.parametrize("padded", [False, True])
def test_content(settings: dict[str, Any], padded: bool) -> None:
    model, ids = lively_model("content", **settings), random_ids(3, 90)
    competition = model.scheme.reader.competition
    if competition.learned is not None:
        with torch.no_grad():
            competition.learned.copy_(torch.rand(3, 2))
    valid = padding_in_all_places(90) if padded else torch.ones_like(ids).bool()
    scores = addressed_scores(model, ids, valid, content_address(model, ids, valid), competition.of)
    expected = naive_logits(model, ids, scores, valid=valid)
    assert_equal_where_valid(model(ids, valid=valid if padded else None), expected, valid)


def test_competition_matters_from_the_second_completed_unit_on() -> None:
    paper, extended = lively_model("content"), lively_model("content", options={"competition": 1.0})
    ids = torch.tensor([[3, 4, 0, 5, 6, 0, 7, 8]])
    changed = (paper(ids) - extended(ids)).abs().amax(-1)[0]
    assert (changed[:6] < 1e-12).all()
    assert (changed[6:] > 1e-4).all()


@pytest.mark.parametrize("padded", [False, True])
def test_random_is_content_at_drawn_addresses(padded: bool) -> None:
    model, ids = lively_model("random", options={"competition": 0.5}), random_ids(3, 60)
    valid = padding_in_all_places(60) if padded else torch.ones_like(ids).bool()
    unit, _, _ = units_by_hand(ids, 7, valid)
    address = random_angles(drawn_seeds(4, 3), unit.clamp(min=0), 2, 6)
    found = model(ids, valid=valid if padded else None)
    scores = addressed_scores(model, ids, valid, address, lambda _: 0.5)
    assert_equal_where_valid(found, naive_logits(model, ids, scores, valid=valid), valid)


@pytest.mark.parametrize("options", [{}, {"competition": 1.0}], ids=["as in the paper", "competition"])
def test_local_is_content_without_addresses(options: dict[str, Any]) -> None:
    content, local = lively_model("content", options=options), lively_model("local", options=options)
    ids = random_ids(2, 70)
    with torch.no_grad():
        content.scheme.address.project.weight.zero_()
        content.scheme.address.project.bias.zero_()
    common = {name: tensor for name, tensor in content.state_dict().items() if "address" not in name}
    local.load_state_dict(common)
    torch.testing.assert_close(local(ids), content(ids), rtol=0, atol=1e-12)
    valid = torch.ones_like(ids).bool()
    nothing = torch.zeros(*ids.shape, 2, 6)
    scores = addressed_scores(local, ids, valid, nothing, lambda _: options.get("competition", 0.0))
    torch.testing.assert_close(local(ids), naive_logits(local, ids, scores), **CLOSE)


# --- options ---------------------------------------------------------------------------------------------------


def small_config(scheme: str, **options: Any) -> cr.ModelConfig:
    return cr.ModelConfig(vocab_size=VOCABULARY, dim=24, layers=1, heads=2, scheme=scheme, options=options)


OPTIONS = {
    "content": "anchors, competition, learn_competition, noise",
    "random": "anchors, competition, learn_competition",
    "local": "competition, learn_competition",
    "rope": "none",
    "alibi": "slopes",
    "nope": "none",
    "pi": "factor",
    "ntk": "factor",
    "yarn": "factor, fast_turns, slow_turns, train_length",
    "randomized": "range",
    "bipe": "none",
    "cope": "positions",
    "path": "none",
}


def test_every_scheme_is_covered_here() -> None:
    assert set(OPTIONS) == set(schemes.names())


@pytest.mark.parametrize("scheme", OPTIONS)
def test_an_unknown_option_is_refused_with_the_known_ones(scheme: str) -> None:
    with pytest.raises(cr.InputError, match=f"scheme '{scheme}' has no option colour; it takes: {OPTIONS[scheme]}$"):
        cr.Transformer(small_config(scheme, colour=1))


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("pi", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("ntk", {"factor": float("nan")}, "'factor' of scheme 'ntk' must be a finite number, .* got nan"),
        ("pi", {"factor": float("inf")}, "'factor' of scheme 'pi' must be a finite number, .* got inf"),
        ("pi", {"factor": "16"}, "'factor' of scheme 'pi' must be a finite number, e.g. 16.0; got '16'"),
        ("yarn", {"slow_turns": 40}, r"0 < slow_turns < fast_turns, got .*slow_turns=40, fast_turns=32.0"),
        ("yarn", {"train_length": 0}, "train_length >= 1 .*got .*train_length=0"),
        ("yarn", {"train_length": 99.5}, "'train_length' of scheme 'yarn' must be an integer, .* got 99.5"),
        ("randomized", {"range": 0}, "range must be positive, got 0"),
        ("cope", {"positions": 0}, "positions must be positive, got 0"),
        ("randomized", {"range": 10.5}, "'range' of scheme 'randomized' must be an integer, e.g. 16384; got 10.5"),
        ("alibi", {"slopes": [0.5]}, r"slopes \(0.5,\) are 1, heads 2: give one slope per head"),
        ("alibi", {"slopes": 0.5}, "'slopes' of scheme 'alibi' must be a list of finite numbers, .* got 0.5"),
        ("alibi", {"slopes": ["a", "b"]}, r"'slopes' .* must be a list of finite numbers, .* got \('a', 'b'\)"),
        ("content", {"competition": "learned"}, "'competition' .* must be a finite number, e.g. 0.0; got 'learned'"),
        ("local", {"competition": True}, "'competition' of scheme 'local' must be a finite number, .* got True"),
        ("random", {"learn_competition": "no"}, "'learn_competition' .* must be True or False, .* got 'no'"),
    ],
)
def test_a_wrong_value_is_refused(scheme: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(cr.InputError, match=message):
        cr.Transformer(small_config(scheme, **options))


def test_ntk_needs_two_pairs() -> None:
    one_pair = cr.ModelConfig(vocab_size=11, dim=4, layers=1, heads=2, scheme="ntk")
    with pytest.raises(cr.InputError, match="ntk needs at least 2 rotary pairs"):
        cr.Transformer(one_pair)


def test_whole_numbers_and_lists_are_taken_as_options() -> None:
    """What the command line and JSON give."""
    assert cr.Transformer(small_config("content", competition=1)).scheme.reader.competition.of(0) == 1.0
    alibi = cr.Transformer(small_config("alibi", slopes=[1, 0.5])).scheme
    assert alibi.slope_bits.view(torch.float64).tolist() == [1.0, 0.5]
