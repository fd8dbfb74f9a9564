"""Every example runs to its end; what it asserts inside holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ARGUMENTS = {"quickstart": ["--steps", "2"], "lora_conversion": ["--steps", "2"]}
SEVERAL_PROCESSES = {"context_parallel": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]}


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_examples_run(example: str, tmp_path: Path) -> None:
    command = [sys.executable, *SEVERAL_PROCESSES.get(example, []), str(EXAMPLES / f"{example}.py")]
    command += ARGUMENTS.get(example, [])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
