"""All kernels through the compiler and the assembler of a GPU, on a machine without one: Triton's interpreter takes
what its compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import contentrope

pytest.importorskip("triton")


def test_all_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    outside = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(contentrope.__file__).parents[1])])
    finished = subprocess.run(
        [sys.executable, "-m", "tests.support.compiling", "90"],
        capture_output=True,
        text=True,
        timeout=600,
        env=outside | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": folders},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = Counter(line.split()[0] for line in finished.stdout.splitlines())
    assert found == {
        "kernels.attention.kernels.forward_kernel": 4,
        "kernels.attention.kernels.prepare_kernel": 9,
        "kernels.attention.kernels.backward_kernel": 4,
        "kernels.attention.window.window_forward_kernel": 5,
        "kernels.attention.window.window_backward_kernel": 5,
        "kernels.attention.decode.read_kernel": 3,
        "kernels.attention.decode.next_kernel": 3,
        "kernels.attention.decode.add_kernel": 6,
        "kernels.rotary.rotate_kernel": 4,
        "kernels.rotary.rotate_backward_kernel": 4,
        "kernels.rotary_window.rotate_window_kernel": 5,
        "kernels.rotary_window.rotate_window_backward_kernel": 5,
        "kernels.rotary.sum_by_unit_kernel": 9,
        "kernels.address.describe_kernel": 2,
        "kernels.address.describe_backward_kernel": 2,
        "kernels.address.project_kernel": 4,
        "kernels.address.project_weight_kernel": 2,
    }
    for flag in ("HAS_VALID", "HAS_MEMORY", "HAS_BONUS", "HAS_FAR"):
        assert flag in finished.stdout
