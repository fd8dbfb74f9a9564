"""The whole model against one written pair by pair from the definition, and what every scheme's model must do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import contentrope as cr
from contentrope import schemes
from contentrope.rotary import PositionRotations, Rotation, rotation_of
from tests.support import DRAW_AT_RANDOM, KNOW_MEMORY, TERMINATOR, VOCABULARY, lively_model, random_ids

READER = 10
PAPER = {"vocab_size": 65, "dim": 128, "layers": 4, "heads": 4, "terminators": (0,)}


# --- the definition, pair by pair ------------------------------------------------------------------------------


class Token(NamedTuple):
    unit: int
    local: int
    closes: bool
    memory: bool


def tokens_by_hand(ids: list[int], config: cr.ModelConfig, ends: list[bool] | None) -> list[Token]:
    """Units as the definition says: an end belongs to its unit, and a unit of the largest length ends there."""
    tokens: list[Token] = []
    unit = local = 0
    reader_seen = memory = False
    for t, token in enumerate(ids):
        reader_seen = reader_seen or token in config.reader
        if local == 0:
            memory = bool(config.reader) and not reader_seen
        is_end = ends[t] if ends is not None else token in config.terminators
        closes = is_end or local == config.max_unit_length - 1
        tokens.append(Token(unit, local, closes, memory))
        unit, local = (unit + 1, 0) if closes else (unit, local + 1)
    return tokens


def as_numbers(x: Tensor, config: cr.ModelConfig) -> tuple[Tensor, Tensor]:
    """The rotating pairs of one head's vector as complex numbers, and the dimensions that pass through."""
    pairs = config.pair_count
    if config.rotary.pairs == "half":
        return torch.complex(x[:pairs], x[pairs : 2 * pairs]), x[2 * pairs :]
    return torch.complex(x[0 : 2 * pairs : 2], x[1 : 2 * pairs : 2]), x[2 * pairs :]


def as_vector(number: Tensor, rest: Tensor, config: cr.ModelConfig) -> Tensor:
    if config.rotary.pairs == "half":
        return torch.cat((number.real, number.imag, rest))
    return torch.cat((torch.view_as_real(number).flatten(), rest))


def frequencies_by_hand(config: cr.ModelConfig) -> list[Tensor]:
    """One row per key/value head."""
    pairs, heads = config.pair_count, config.key_heads
    if config.rotary.frequencies == "model_wide":
        exponents = [[(h * pairs + b) / (heads * pairs) for b in range(pairs)] for h in range(heads)]
    else:
        exponents = [[b / pairs for b in range(pairs)]] * heads
    return [torch.tensor([config.rotary.base**-e for e in row], dtype=torch.float64) for row in exponents]


def addresses_by_hand(model: cr.Transformer, ids: list[int], tokens: list[Token]) -> dict[int, Tensor]:
    """theta_e = W LN(mean of R_i x_i), (kv_heads, pairs) for each unit that is completed."""
    config, address = model.config, model.scheme.address
    frequencies = frequencies_by_hand(config)
    found = {}
    for unit in {token.unit for token in tokens if token.closes}:
        members = [t for t, token in enumerate(tokens) if token.unit == unit]
        total = torch.zeros(config.dim, dtype=torch.float64)
        for t in members:
            heads = []
            for head, x in enumerate(model.embedding.weight[ids[t]].split(config.head_dim)):
                number, rest = as_numbers(x, config)
                angle = tokens[t].local * frequencies[head // config.group]
                heads.append(as_vector(number * torch.polar(torch.ones_like(angle), angle), rest, config))
            total = total + torch.cat(heads)
        normed = F.layer_norm(total / len(members), (config.dim,), address.norm.weight, address.norm.bias)
        flat = address.project.weight @ normed + address.project.bias
        found[unit] = flat.view(config.key_heads, config.pair_count)
    return found


def turn_between(query: Token, key: Token, addresses: dict[int, Tensor], head: int, frequency: Tensor) -> Tensor:
    """The angle of the operator between a query and a key: the table of the causal rule, row by row."""
    relative = (key.local - query.local) * frequency
    if key.unit == query.unit:
        return relative
    angle = relative + addresses[key.unit][head]
    return angle - addresses[query.unit][head] if query.closes else angle


def as_list(number: float | Tensor, config: cr.ModelConfig) -> list[Any]:
    """By head."""
    return list(number) if isinstance(number, Tensor) else [number] * config.heads


def attention_by_hand(
    query: Tensor, key: Tensor, value: Tensor, tokens: list[Token], addresses: dict[int, Tensor], model: Any, layer: int
) -> Tensor:
    """query (heads, seq, head_dim), key and value (kv_heads, seq, head_dim)."""
    config = model.config
    frequencies = frequencies_by_hand(config)
    alpha = as_list(model.scheme.reader.competition.of(layer), config)
    beta = as_list(model.scheme.reader.sharpness.of(layer), config)
    rows = []
    for t, reader in enumerate(tokens):
        heads = []
        for head in range(config.heads):
            kv_head = head // config.group
            q, q_rest = as_numbers(query[head, t], config)
            scores, values = [], []
            for s in range(t + 1):
                read = tokens[s]
                if reader.memory and read.unit != reader.unit:
                    continue
                k, k_rest = as_numbers(key[kv_head, s], config)
                angle = turn_between(reader, read, addresses, kv_head, frequencies[kv_head])
                rotated = (q.conj() * torch.polar(torch.ones_like(angle), angle) * k).real.sum()
                score = (rotated + q_rest @ k_rest) / math.sqrt(config.head_dim)
                log_units = 0.0 if reader.memory else math.log(max(reader.unit, 1))
                score = score * (1 + beta[head] * log_units)
                if read.unit != reader.unit:
                    score = score - alpha[head] * log_units
                scores.append(score)
                values.append(value[kv_head, s])
            heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def logits_by_hand(model: cr.Transformer, ids: list[int], ends: list[bool] | None = None) -> Tensor:
    config = model.config
    tokens = tokens_by_hand(ids, config, ends)
    addresses = addresses_by_hand(model, ids, tokens)
    x = model.embedding.weight[torch.tensor(ids)]
    for layer, block in enumerate(model.blocks):
        normed = F.layer_norm(x, (config.dim,), block.attention_norm.weight, block.attention_norm.bias)
        projected = F.linear(normed, block.query_key_value.weight, block.query_key_value.bias)
        by_head = projected.view(len(ids), -1, config.head_dim).transpose(0, 1)
        query, key, value = by_head.split((config.heads, config.key_heads, config.key_heads))
        read = attention_by_hand(query, key, value, tokens, addresses, model, layer)
        x = x + F.linear(read, block.attention_out.weight, block.attention_out.bias)
        normed = F.layer_norm(x, (config.dim,), block.feed_norm.weight, block.feed_norm.bias)
        hidden = F.linear(normed, block.feed_up.weight, block.feed_up.bias)
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + F.linear(hidden, block.feed_down.weight, block.feed_down.bias)
    normed = F.layer_norm(x, (config.dim,), model.norm.weight, model.norm.bias)
    return F.linear(normed, model.head.weight, model.head.bias)


VARIANTS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "competition": {"options": {"competition": 1.0}},
    "learned competition": {"options": {"competition": 0.7, "learn_competition": True}},
    "sharpness": {"options": {"competition": 1.0, "sharpness": 0.6}},
    "learned sharpness": {"options": {"sharpness": 0.6, "learn_sharpness": True}, "reader": (READER,)},
    "grouped": {"heads": 4, "kv_heads": 2},
    "interleaved, partial": {"rotary": cr.RotaryConfig(pairs="interleaved", fraction=0.5)},
    "model-wide": {"rotary": cr.RotaryConfig(frequencies="model_wide"), "heads": 4, "kv_heads": 2},
    "memory": {"reader": (READER,)},
}


def variant(name: str) -> cr.Transformer:
    return lively_model("content", **{"layers": 2, "dim": 16, "max_unit_length": 4, **VARIANTS[name]})


# Units of one, two and three tokens, one cut at the largest length, and one still open; the marker in the middle.
STORY = [3, 0, 7, 0, 0, 5, 2, 9, 1, 4, 10, 6, 0, 8, 2]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_the_whole_model_is_the_definition(name: str, backend: str) -> None:
    model = variant(name)
    model.backend = backend
    found = model(torch.tensor([STORY]))[0]
    torch.testing.assert_close(found, logits_by_hand(model, STORY), rtol=0, atol=1e-10)


def test_the_ends_of_the_caller_replace_the_terminators() -> None:
    model = variant("competition")
    ends = [i in (2, 5, 6, 12) for i in range(len(STORY))]
    found = model(torch.tensor([STORY]), ends=torch.tensor([ends]))[0]
    torch.testing.assert_close(found, logits_by_hand(model, STORY, ends), rtol=0, atol=1e-10)
    assert (found - model(torch.tensor([STORY]))[0]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["as in the paper", "learned competition", "model-wide", "memory"])
def test_every_gradient_is_that_of_the_definition(name: str) -> None:
    model = variant(name)
    weights = torch.randn(len(STORY), VOCABULARY, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad((model(torch.tensor([STORY]))[0] * weights).sum(), parameters.values())
    expected = torch.autograd.grad((logits_by_hand(model, STORY) * weights).sum(), parameters.values())
    for parameter_name, ours, by_hand in zip(parameters, found, expected, strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-9, atol=1e-9, msg=lambda m, n=parameter_name: f"{n}: {m}")


# --- sizes and initialisation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", schemes.names())
def test_parameter_counts(scheme: str) -> None:
    model = cr.Transformer(cr.ModelConfig(**PAPER, scheme=scheme))
    path = 4 * (128 * 32 + 32 * 128 + 3 * 128 + 128 * 4 + 4)
    extra = {"content": 818_561 - 810_049, "bipe": 256 * 128, "cope": 4 * 64 * 32, "path": path}
    assert sum(p.numel() for p in model.parameters()) == 810_049 + extra.get(scheme, 0)


def test_a_learned_competition_is_one_number_per_layer_and_head() -> None:
    options = {"competition": 1.0, "learn_competition": True}
    model = cr.Transformer(cr.ModelConfig(**PAPER, options=options))
    assert sum(p.numel() for p in model.parameters()) == 818_561 + 16
    assert (model.scheme.reader.competition.learned == 1.0).all()


@pytest.mark.parametrize("scheme", schemes.names())
def test_one_seed_gives_all_schemes_the_same_common_weights(scheme: str) -> None:
    def fresh(name: str) -> dict[str, Tensor]:
        torch.manual_seed(7)
        config = cr.ModelConfig(vocab_size=11, dim=24, layers=2, heads=2, scheme=name, terminators=(TERMINATOR,))
        return cr.Transformer(config).state_dict()

    own = {name: tensor for name, tensor in fresh(scheme).items() if not name.startswith("scheme.")}
    common = fresh("rope")
    assert own.keys() == common.keys()
    assert all(torch.equal(own[name], common[name]) for name in common)


def test_first_weights_are_normal_with_a_spread_of_002_and_biases_are_zero() -> None:
    torch.manual_seed(0)
    for name, parameter in cr.Transformer(cr.ModelConfig(**PAPER)).named_parameters():
        if "norm" in name:
            expected = 1.0 if name.endswith("weight") else 0.0
            assert (parameter == expected).all(), name
        elif name.startswith("scheme.") or name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert 0.019 < parameter.std() < 0.021, name
            assert parameter.mean().abs() < 5 * 0.02 / parameter.numel() ** 0.5, name


def test_tables_of_rotations_are_not_part_of_the_weights() -> None:
    model = lively_model("content")
    model(random_ids(1, 9))
    assert not [name for name in model.state_dict() if "rotation" in name]


def test_the_frequencies_of_a_bfloat16_model_stay_exact() -> None:
    content, rope = (lively_model(scheme, dtype=torch.bfloat16).scheme for scheme in ("content", "rope"))
    for rotations in (content.reader.rotations, rope.rotations):
        assert rotations.inverse_frequency.dtype == torch.float64
        expected = [10000.0 ** (-b / 6) for b in range(6)]
        assert rotations.inverse_frequency.flatten().tolist() == pytest.approx(expected, rel=1e-15)


# --- what holds for every scheme -------------------------------------------------------------------------------


# Those that draw at random take another seed for every row.
@pytest.mark.parametrize("scheme", sorted(set(schemes.names()) - set(DRAW_AT_RANDOM)))
def test_rows_of_a_batch_do_not_see_each_other(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(3, 30)
    alone = torch.cat([model(row[None]) for row in ids])
    torch.testing.assert_close(model(ids), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", schemes.names())
def test_int32_ids_do_as_well_and_one_token_is_enough(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(2, 12)
    torch.manual_seed(0)
    expected = model(ids)
    torch.manual_seed(0)
    assert torch.equal(model(ids.int()), expected)
    assert model(ids[:, :1]).shape == (2, 1, VOCABULARY)


@pytest.mark.parametrize("scheme", schemes.names())
def test_gradients_reach_every_parameter(scheme: str) -> None:
    learned = {"options": {"learn_competition": True}} if scheme in KNOW_MEMORY else {}
    model, ids = lively_model(scheme, **learned), random_ids(2, 60)
    F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        grad = parameter.grad
        if name.endswith("query_key_value.bias"):
            query, key, value = grad.chunk(3)
            if scheme in ("nope", "alibi"):
                # Where keys do not rotate, their bias adds one number to all scores of a query: softmax ignores it.
                assert key.abs().max() < 1e-12, name
                grad = torch.cat((query, value))
        assert grad.flatten(1 if grad.ndim > 1 else 0).abs().amax(-1).min() > 0, name


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("scheme", schemes.names())
def test_dropout_acts_in_training_only(scheme: str, kind: str) -> None:
    model, ids = lively_model(scheme, **{kind: 0.3}), random_ids(2, 30)
    without = lively_model(scheme)
    without.load_state_dict(model.state_dict())

    def run(made: cr.Transformer, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return made(ids)

    assert torch.equal(run(model, 1), run(without, 1))
    model.train()
    dropped = run(model, 1)
    assert not torch.allclose(dropped, run(without, 1))
    assert torch.equal(dropped, run(model, 1)), "torch.manual_seed governs dropout"
    if scheme not in DRAW_AT_RANDOM:
        assert not torch.allclose(dropped, run(model, 2))
    if scheme != "random":  # which draws its angles anew in training
        without.train()
        assert torch.equal(run(without, 1), run(without.eval(), 1))


def test_attention_dropout_hides_whole_positions_from_single_heads() -> None:
    model = lively_model("content", attention_dropout=0.25).train()
    ones = torch.ones(40, 50, 2, 6, dtype=torch.float64)
    torch.manual_seed(0)
    seen = model.blocks[0]._dropout_of_positions(ones)
    assert torch.equal(seen, seen[..., :1].expand_as(seen)), "all of a value, or nothing of it"
    assert set(seen.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(float((seen == 0).double().mean()) - 0.25) < 0.02
    assert not torch.equal(seen[:, :, 0], seen[:, :, 1]), "each head has its own draw"
    assert not torch.equal(seen[0], seen[1]), "each row has its own draw"


def error_by_quarter(scheme: str) -> Tensor:
    """Mean error of a bfloat16 model's logits over 2,000 tokens, in units of their spread."""
    narrow = lively_model(scheme, dtype=torch.bfloat16)
    same_weights_wide = lively_model(scheme, dtype=torch.bfloat16).double()
    ids = random_ids(1, 2000)
    with torch.no_grad():
        found, exact = narrow(ids), same_weights_wide(ids)
    assert found.dtype == torch.bfloat16
    error = (found.double() - exact).abs().mean(-1)
    return torch.stack([part.mean() for part in error.chunk(4, dim=1)]) / exact.std()


@pytest.mark.parametrize("scheme", ["content", "local", "rope", "alibi", "bipe"])
def test_a_bfloat16_model_stays_as_near_at_the_end_as_at_the_beginning(scheme: str) -> None:
    error = error_by_quarter(scheme)
    assert error.max() < 0.01
    assert error[3] < 1.3 * error[0]


def test_angles_in_bfloat16_would_drift_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above."""

    def careless(self: PositionRotations, positions: Tensor, dtype: torch.dtype, *, bound: int) -> Rotation:
        angle_dtype = torch.float64 if dtype == torch.float64 else torch.bfloat16
        angles = positions[..., None, None].to(angle_dtype) * self.inverse_frequency.to(angle_dtype)
        return rotation_of(angles.to(dtype))

    monkeypatch.setattr(PositionRotations, "at", careless)
    error = error_by_quarter("rope")
    assert error[3] > 0.03
    assert error[3] > 1.5 * error[0]
