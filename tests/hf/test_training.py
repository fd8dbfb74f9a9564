"""Gradients: addresses learn from zero, checkpointing changes nothing, one compiled graph serves all boundaries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from transformers import PreTrainedModel

import contentrope as cr
import contentrope.hf as chf
from contentrope.attention.api import REGISTERED
from contentrope.attention.pairs import PairRule, States
from contentrope.hf import attention
from contentrope.hf.reading import fused_rotations
from contentrope.hf.rotary import LayerRotary
from contentrope.rotary import rotation_of
from tests.hf.models import ARCHITECTURES, TERMINATOR, attached, enliven, logits, random_ids, tiny

every = pytest.mark.parametrize("name", ARCHITECTURES)


def loss_of(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    """In float64, where the model's own loss is float32."""
    predictions = model(ids, **inputs).logits[:, :-1]
    return torch.nn.functional.cross_entropy(predictions.flatten(0, 1), ids[:, 1:].flatten())


def gradients(model: PreTrainedModel, *texts: Tensor, **inputs: Any) -> dict[str, Tensor]:
    """All texts are read before the first gradient is taken."""
    model.zero_grad()
    losses = [loss_of(model, ids, **inputs) for ids in texts]
    sum(losses).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@every
def test_zero_addresses_learn(name: str) -> None:
    model = attached(name, positions="global", lively=False)
    found = gradients(model, random_ids(2, 23))
    weights = [n for n in found if "contentrope" in n and n.endswith("project.weight")]
    assert len(weights) == len(chf.adapter_of(model).rotaries)
    assert all(bool(found[n].any()) for n in weights)


@pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2"])
def test_zero_addresses_learn_beside_dropout(name: str) -> None:
    model = attached(name, positions="global", lively=False, attention_dropout=0.2).train()
    found = gradients(model, random_ids(2, 23))
    assert bool(found["contentrope.by_turning.0.project.weight"].any())


@pytest.mark.parametrize("name", ["llama", "gemma2", "glm"])
def test_the_gradient_at_zero_is_the_slope(name: str) -> None:
    """The value there is the model's own, the gradient that of addressed attention: they belong together."""
    model, ids = attached(name, positions="local", lively=False), random_ids(2, 23)
    weight = model.contentrope.by_turning[0].project.weight
    gradient = gradients(model, ids)["contentrope.by_turning.0.project.weight"]
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            weight.copy_(step * direction)
            losses.append(loss_of(model, ids))
    slope = (losses[0] - losses[1]) / 2e-3
    # Models compute norms in float32.
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("learned", [False, True], ids=["", "exponents"])
def test_a_text_within_the_window_gives_addresses_a_gradient_of_zero(learned: bool, checkpointing: bool) -> None:
    """Processes that train together wait for a gradient of every weight, whatever their own texts need."""
    model = attached("llama", window=20, competition=1.0, learn_competition=learned)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    ids, names = random_ids(2, 40), {name for name, _ in model.named_parameters() if "contentrope" in name}
    short, long = (gradients(model, text, use_cache=False) for text in (ids[:, :20], ids))
    assert not any(bool(short[name].any()) for name in names)
    assert all(bool(long[name].any()) for name in names)
    assert torch.equal(loss_of(model, ids[:, :20]), loss_of(tiny("llama"), ids[:, :20]))


@every
@pytest.mark.parametrize("lively", [True, False], ids=["addresses", "zero"])
def test_checkpointing_gives_equal_gradients(name: str, lively: bool) -> None:
    """Two texts at once: a state kept in a shared place would be the second one's when the first is computed again."""
    model = attached(name, lively=lively).train()
    texts = random_ids(2, 17, seed=1), random_ids(2, 17, seed=2)
    expected = gradients(model, *texts, use_cache=False)
    model.gradient_checkpointing_enable()
    check_equal(gradients(model, *texts, use_cache=False), expected, 1e-8)


def test_reentrant_checkpointing_is_refused() -> None:
    model = attached("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(cr.InputError, match="use_reentrant"):
        model(random_ids(1, 9))
    logits(model.eval(), random_ids(1, 9))


@every
def test_bfloat16_is_near_float32(name: str) -> None:
    exact, rough = attached(name, dtype=torch.float32), attached(name, dtype=torch.float32)
    rough.to(torch.bfloat16)
    ids = random_ids(2, 23)
    expected, found = logits(exact, ids), logits(rough, ids)
    assert found.dtype == torch.bfloat16
    assert float((found - expected).abs().mean() / expected.abs().mean()) < 0.1
    again = attached(name, dtype=torch.bfloat16, lively=False)
    assert all(p.dtype == torch.float32 for p in again.contentrope.parameters())


def test_autocast_keeps_angles_in_float32() -> None:
    model, ids = attached("llama", dtype=torch.float32), random_ids(2, 23)
    seen: list[torch.dtype] = []
    model.contentrope.register_forward_hook(lambda m, a, out: seen.extend(x.dtype for x in out))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = logits(model, ids)
    assert seen == [torch.float32]
    assert float((found - logits(model, ids)).abs().mean()) < 0.1


@pytest.mark.parametrize(("name", "plain"), [("llama", True), ("gemma3", True), ("gemma2", False), ("gpt_oss", False)])
def test_soft_caps_and_sinks_stay_with_the_attention_of_the_model(name: str, plain: bool) -> None:
    assert {layer.plain for layer in chf.adapter_of(attached(name)).layers.values()} == {plain}


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_a_backend_is_chosen_by_name(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = attached("llama"), random_ids(2, 23)
    expected = logits(model, ids)
    chf.adapter_of(model).backend = backend
    asked = []
    real = attention.backend_function
    monkeypatch.setattr(attention, "backend_function", lambda n, *a, **k: asked.append(n) or real(n, *a, **k))
    torch.testing.assert_close(logits(model, ids), expected, rtol=0, atol=1e-10)
    assert asked == [backend, backend]


def test_under_autocast_a_backend_is_given_one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary embeddings in float32 make queries and keys float32 there, but not values."""
    model, ids = attached("llama", dtype=torch.float32), random_ids(2, 23)
    seen: list[set[torch.dtype]] = []

    def attend(states: States, rule: PairRule, **options: Any) -> Tensor:
        seen.append({x.dtype for x in states if x is not None})
        return REGISTERED["tiled"](states, rule, **options)

    monkeypatch.setattr(attention, "backend_function", lambda *a, **k: attend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits(model, ids)
    assert seen == [{torch.bfloat16}] * 2


@pytest.mark.parametrize("competition", [0.0, 0.5])
def test_own_attention_under_autocast(competition: float) -> None:
    model, ids = tiny("mistral, window", dtype=torch.float32), random_ids(2, 23)
    chf.attach(model, units={TERMINATOR}, max_length=7, competition=competition)
    exact = logits(enliven(model), ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float((logits(model, ids) - exact).abs().mean()) < 0.1


def test_that_addresses_are_not_zero_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = attached("llama").contentrope
    weight = addresses.by_turning[0].project.weight
    asked = []
    real = Tensor.any
    monkeypatch.setattr(Tensor, "any", lambda self, *a: asked.append(self) or real(self, *a))
    assert not addresses.are_zero()
    asked.clear()
    assert not addresses.are_zero()
    assert not asked
    with torch.no_grad():
        for weight in addresses.parameters():
            weight.zero_()
    assert addresses.are_zero()
    weight.data.fill_(1.0)  # unseen by the counter of writes: that they are zero is not remembered
    assert not addresses.are_zero()


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("window", [0, 10])
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_training_on_a_gpu_waits_for_no_value(
    backend: str, window: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without values, said to lie on a GPU: whoever asks for one of theirs is told off."""
    if backend == "fused":
        pytest.importorskip("triton")
    model = attached("llama", window=window, dtype=torch.float32).train()
    chf.adapter_of(model).backend = backend
    assert not model.contentrope.are_zero()
    monkeypatch.setattr(FakeTensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model._apply(torch.empty_like)
        mode.allow_non_fake_inputs = False  # nothing is copied from the host either
        ids = torch.empty(2, 21, dtype=torch.int64)
        with pytest.raises(DataDependentOutputException):
            bool(ids.any())
        mask = {"attention_mask": torch.ones_like(ids)} if padded else {}
        for use_cache in (False, True):
            model(ids, use_cache=use_cache, **mask).logits.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
def test_a_cache_made_by_a_compiled_graph_goes_on() -> None:
    torch._dynamo.reset()
    model, ids = attached("llama"), random_ids(2, 21)
    expected = logits(model, ids)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        first = compiled(ids[:, :17])
        rest = model(ids[:, 17:], past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat((first.logits, rest.logits), dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter, which a GPU turns off")
@pytest.mark.parametrize("backwards", [False, True])
def test_one_kernel_rotates_the_way_the_model_does(backwards: bool) -> None:
    pytest.importorskip("triton")
    rotary = LayerRotary(
        torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), "half", backwards, heads=2, head_dim=8
    )
    units = cr.segment(random_ids(2, 21), cr.Terminators({TERMINATOR}))
    angles, query, key = torch.randn(2, 21, 2, 3), torch.randn(2, 21, 4, 8), torch.randn(2, 21, 2, 8)
    rotated, _, addressed = fused_rotations(angles, rotary, units).of(query, key, rotary.pairs)
    rotation = rotation_of(angles)
    torch.testing.assert_close(rotated, rotary.rotate(query, rotation.only_where(units.closes)), rtol=0, atol=1e-5)
    torch.testing.assert_close(addressed, rotary.rotate(key, rotation), rtol=0, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter, which a GPU turns off")
@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("llama", 0),
        ("gpt_neox", 0),
        ("glm", 0),
        ("gemma3", 0),
        ("mistral, window", 0),
        ("gemma3", 10),
        ("nanochat", 10),
    ],
)
def test_queries_and_keys_are_rotated_by_one_kernel(name: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both layouts of pairs, dimensions that do not rotate, several rotaries, and layers that read by their own."""
    pytest.importorskip("triton")
    from contentrope.kernels import rotary

    calls, real = [], rotary.rotated_states
    monkeypatch.setattr(rotary, "rotated_states", lambda *given: calls.append(1) or real(*given))
    model, ids = attached(name, window=window, dtype=torch.float32).train(), random_ids(2, 21)
    found = {}
    for backend in ("reference", "fused"):
        assert not calls
        chf.adapter_of(model).backend = backend
        out = model(ids, use_cache=False).logits
        weights = [w for w in model.parameters() if w.requires_grad]
        found[backend] = [out.detach(), *torch.autograd.grad(out.square().mean(), weights, allow_unused=True)]
    rotating_layers = [layer for layer in chf.adapter_of(model).layers.values() if layer.rotary is not None]
    assert len(calls) == len(rotating_layers)
    for ours, theirs in zip(found["fused"], found["reference"], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter, which a GPU turns off")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
def test_the_fused_kernels_are_part_of_one_graph() -> None:
    pytest.importorskip("triton")
    torch._dynamo.reset()
    model, ids = attached("llama", dtype=torch.float32, num_hidden_layers=1), random_ids(2, 21)
    weight = model.contentrope.by_turning[0].project.weight
    found = {}
    for backend in ("reference", "fused"):
        chf.adapter_of(model).backend = backend
        called = torch.compile(model, fullgraph=True, backend="aot_eager") if backend == "fused" else model
        out = called(ids, use_cache=False).logits
        found[backend] = out.detach(), *torch.autograd.grad(out.square().sum(), weight)
    torch.testing.assert_close(found["fused"], found["reference"], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
@pytest.mark.parametrize(
    ("name", "layers", "backend"),
    [
        ("llama", 2, "aot_eager"),
        ("mistral, window", 1, "aot_eager"),
        ("gemma2", 1, "aot_eager"),
        ("gemma3", 2, "eager"),  # two kinds of layers: nothing new for autograd, which takes four fifths of the time
        ("glm", 1, "aot_eager"),
        ("stablelm", 1, "aot_eager"),
    ],
)
def test_one_compiled_graph_serves_all_boundaries(name: str, layers: int, backend: str) -> None:
    """Not so where the untouched model's graph breaks: frequencies by the largest position, experts one by one."""
    torch._dynamo.reset()
    model = attached(name, num_hidden_layers=layers)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    weights = [p for p in model.parameters() if p.requires_grad]
    compiled(random_ids(2, 21), use_cache=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, end_rate in ((1, 0.5), (2, 0.0)):
            ids = random_ids(2, 21, seed=seed, end_rate=end_rate)
            found, exact = (m(ids, use_cache=False).logits for m in (compiled, model))
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-10)
            pairs = (torch.autograd.grad(x.square().sum(), weights, allow_unused=True) for x in (found, exact))
            for ours, theirs in zip(*pairs, strict=True):
                if ours is not None:
                    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
