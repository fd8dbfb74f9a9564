"""Processes that share a text find what one finds: logits, gradients, and nothing of later tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parallel import program
from tests.parallel.program import BATCH, CASES, PART
from tests.support import lively_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
]

TOLERANCE = 1e-12


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the processes found."""
    size, folder = request.param, tmp_path_factory.mktemp("processes")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, program.__file__]
    running = [
        subprocess.Popen([*arguments, str(rank), str(size), str(folder)], env=environment) for rank in range(size)
    ]
    try:
        assert [process.wait(timeout=300) for process in running] == [0] * size
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(Path(folder, f"found-{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize(("model", "text"), CASES)
def test_parts_of_a_text_are_read_as_the_whole(found: list[dict[str, Any]], model: str, text: str) -> None:
    for process in found:
        case = process[f"{model}, {text}"]
        assert case["logits"] < TOLERANCE
        assert case["gradients"] < TOLERANCE
        assert case["causal"]


def test_a_cut_unit_needs_all_its_parts(found: list[dict[str, Any]]) -> None:
    assert max(process["parts for wholes"]["logits"] for process in found) > 1e-3


def test_an_address_of_an_open_unit_would_be_found_in_another_process(found: list[dict[str, Any]]) -> None:
    assert not all(process["leak"] for process in found)


def test_a_window_needs_near_keys_of_more_than_a_unit(found: list[dict[str, Any]]) -> None:
    assert max(process["near keys that stay"]["logits"] for process in found) > 1e-3


def test_what_crosses_is_what_the_documents_say(found: list[dict[str, Any]]) -> None:
    config = lively_model("content").config
    heads, dim = config.key_heads * config.head_dim, config.dim
    once = [5, BATCH * PART, BATCH * 2 * (dim + 1), BATCH * 2]
    for process in found:
        for name, local_keys in (("sent", config.max_unit_length), ("sent, window", 4 + 3)):
            layer = [2 * BATCH * PART * heads, BATCH * local_keys * heads]
            assert process[name] == [*once, *config.layers * layer]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("unlike lengths", "ids of shape (2, 11), (2, 10)"),
        ("unlike masks", "masks: none, valid"),
        ("cache", "leave out cache= or group="),
        ("scheme", "no scheme 'rope'; leave out group=, or choose content, local"),
        ("backend", "use auto or tiled, reference"),
        ("no member", "not a member of the group"),
    ],
)
def test_all_processes_refuse_alike(found: list[dict[str, Any]], what: str, said: str) -> None:
    for process in found:
        assert said in process["refusals"][what]
        assert process["refusals"]["nothing"] == ""
