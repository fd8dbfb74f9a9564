"""How the training engine calls a model: with a gate between global and local positions for every row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import contentrope.hf as chf
from contentrope.hf.finetune import CausalLM, Gated
from contentrope.training import Windows
from tests.experiments.retrofit.tiny import LINES, TOKENIZER, addressed_reader, lively_reader


def local_and_global(**options: Any) -> tuple[Tensor, Tensor]:
    found = []
    for positions in ("local", "global"):
        reader = addressed_reader(**options)
        chf.set_positions(reader.model, positions)
        found.append(reader(LINES))
    return found[0], found[1]


@torch.no_grad()
def test_the_gate_of_a_call_goes_before_the_models_own() -> None:
    reader = addressed_reader()
    local, everywhere = local_and_global()
    assert not torch.allclose(local, everywhere, atol=1e-2)
    assert torch.equal(reader(LINES), local)
    assert torch.equal(reader(LINES, gate=torch.zeros(2)), local)
    assert torch.equal(reader(LINES, gate=torch.ones(2)), everywhere)
    assert torch.equal(reader(LINES), local), "the gate of an earlier call is forgotten"


@torch.no_grad()
def test_every_row_has_a_gate_of_its_own() -> None:
    reader = addressed_reader()
    local, everywhere = local_and_global()
    mixed = reader(LINES, gate=torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(mixed[0], everywhere[0])
    torch.testing.assert_close(mixed[1], local[1])
    half = reader(LINES, gate=torch.full((2,), 0.5))
    assert not torch.allclose(half, local, atol=1e-3)
    chf.set_positions(reader.model, 0.5)
    torch.testing.assert_close(reader(LINES), half)


@torch.no_grad()
def test_an_open_gate_and_zero_addresses_are_the_original() -> None:
    original = lively_reader()(LINES)
    model = chf.attach(lively_reader().model, TOKENIZER, units="line", max_length=16)
    reader = CausalLM(model).eval()
    assert torch.equal(reader(LINES, gate=torch.ones(2)), original)
    assert not torch.allclose(reader(LINES), original, atol=1e-2)


def test_one_compiled_graph_serves_all_gates() -> None:
    reader = addressed_reader()
    torch._dynamo.reset()
    compiled = torch.compile(lambda ids, gate: reader(ids, gate=gate), fullgraph=True, dynamic=False, backend="eager")
    compiled(LINES, torch.ones(2))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for gate in (0.5, 0.0):
            found = compiled(LINES.flip(0), torch.full((2,), gate))
            torch.testing.assert_close(found, reader(LINES.flip(0), gate=torch.full((2,), gate)), atol=1e-4, rtol=1e-4)


def test_the_gate_falls_with_the_steps_and_the_windows_stay() -> None:
    windows = Windows(torch.arange(100), 8)
    gated = Gated(windows, fall=10)
    for step, gate in ((0, 1.0), (5, 0.5), (10, 0.0), (50, 0.0)):
        batch, plain = gated.at(step, 3, seed=1), windows.at(step, 3, seed=1)
        assert torch.equal(batch.inputs["ids"], plain.inputs["ids"])
        torch.testing.assert_close(batch.inputs["gate"], torch.full((3,), gate))
        assert [len(part.inputs["gate"]) for part in batch.parts(3)] == [1, 1, 1]
