"""Every example runs to its end; what it asserts inside holds."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ARGUMENTS = {"quickstart": ["--steps", "2"], "lora_conversion": ["--steps", "2"]}
SEVERAL_PROCESSES = {"context_parallel": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]}


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_examples_run(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(EXAMPLES / f"{example}.py")
    monkeypatch.chdir(tmp_path)
    if example in SEVERAL_PROCESSES:
        command = [sys.executable, *SEVERAL_PROCESSES[example], script]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip()
    else:
        monkeypatch.setattr(sys, "argv", [script, *ARGUMENTS.get(example, [])])
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("default")  # as Python has it
            runpy.run_path(script, run_name="__main__")
        assert capsys.readouterr().out.strip()
