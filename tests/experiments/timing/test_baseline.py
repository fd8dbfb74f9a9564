"""The baseline with a compiled rotation is the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contentrope.model import Transformer
from experiments.timing.config import TimingConfig, parse_row
from experiments.timing.run import CompiledRotary, rotate_both


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled, and is called as it is: a compiler would take longer than all these tests."""
    compiled: list[Any] = []

    def compile(function: Any, **options: Any) -> Any:
        assert options == {"dynamic": False, "fullgraph": True}
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    return compiled


def test_logits_and_gradients_are_those_of_rope(without_a_compiler: list[Any]) -> None:
    config = TimingConfig().model_of("rope", parse_row("0.8M"))
    torch.manual_seed(0)
    plain, strong = Transformer(config), Transformer(config)
    strong.load_state_dict(plain.state_dict())
    strong.scheme = CompiledRotary(strong.scheme)
    assert without_a_compiler == [rotate_both]
    ids = torch.randint(65, (2, 33))
    found, expected = (model(ids) for model in (strong, plain))
    torch.testing.assert_close(found, expected)
    for logits in (found, expected):
        logits.logsumexp(-1).sum().backward()
    for ours, theirs in zip(strong.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_every_layer_rotates_its_queries_and_keys_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    config, calls = TimingConfig().model_of("rope", parse_row("0.8M")), list[int]()
    model = Transformer(config)
    model.scheme = CompiledRotary(model.scheme)
    rotate = model.scheme.rotate_both
    model.scheme.rotate_both = lambda *arguments: (calls.append(1), rotate(*arguments))[1]
    model(torch.zeros(1, 3, dtype=torch.int64))
    assert len(calls) == config.layers
