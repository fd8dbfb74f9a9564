"""Whether the kernels are right on this GPU: their tests, several at a time, and the CUDA toolkit's memory checker.

    python -m benchmarks.gpu_checks [--processes 8] [--tiles 5] [--select EXPRESSION] [--out results/checks-gpu.json]

Tests spend their time on compiling, so that several processes share the GPU well. Nothing is timed here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import positive, result_file
from contentrope.results import environment, write_json

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    "tests/attention/test_gpu.py",
    "tests/kernels/attention/test_decode.py",
    "tests/kernels/attention/test_packed.py",
    "tests/kernels/test_rotary.py",
    "tests/kernels/test_rotary_sums.py",
    "tests/kernels/test_address.py",
    "tests/kernels/test_address_projection.py",
]
"""All that run kernels where there is a GPU."""
TOOLS: dict[str, list[str]] = {
    "memcheck": [],
    # cuDNN's attention, which reads far keys, is not ours; the tool reports its backward pass.
    "racecheck": ["--kernel-name-exclude", "kns=cudnn"],
}
"""Of the memory checker, with their options. Kernels that are left out are run as ever."""
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


def collected(tests: Sequence[str], select: str = "") -> list[str]:
    """The names of all their cases, or of those that pytest's ``-k`` selects."""
    plainly = {**os.environ, "PYTEST_ADDOPTS": ""}  # with -v it would draw a tree
    done = subprocess.run(
        [*PYTEST, "--collect-only", "-k", select, *tests],
        cwd=ROOT,
        env=plainly,
        capture_output=True,
        text=True,
        check=False,
    )
    names = [line for line in done.stdout.splitlines() if "::" in line]
    if done.returncode or not names:
        sys.exit(f"error: tests could not be collected:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return names


def tested(names: Sequence[str], processes: int) -> dict[str, Any]:
    """How many cases passed, were skipped or failed, by file; and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, f"{part}.xml") for part in range(min(processes, len(names)))]
        running = [
            # Dealt out in turn, as neighbours take equally long.
            subprocess.Popen([*PYTEST, f"--junitxml={report}", *names[part :: len(reports)]], cwd=ROOT)
            for part, report in enumerate(reports)
        ]
        for process in running:
            process.wait()
        return in_all([report.read_text() for report in reports if report.exists()], expected=len(names))


def in_all(reports: Sequence[str], expected: int) -> dict[str, Any]:
    """Of pytest's reports in XML. Cases that none of them tells of have failed: their process has died. So have files
    of which nothing was run, or this would be in order wherever all is skipped."""
    by_file: dict[str, Counter[str]] = {}
    failed = []
    for case in (case for report in reports for case in ElementTree.fromstring(report).iter("testcase")):
        outcome = "passed"
        if case.find("skipped") is not None:
            outcome = "skipped"
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        by_file.setdefault(str(case.get("classname")), Counter())[outcome] += 1
    failed += [f"{name}, of which nothing was run" for name, counts in by_file.items() if set(counts) == {"skipped"}]
    missing = expected - sum(sum(counts.values()) for counts in by_file.values())
    if missing > 0:
        failed.append(f"{missing} that never ended")
    return {"cases": expected, "by_file": {name: dict(counts) for name, counts in by_file.items()}, "failed": failed}


def looked_at(tool: str, tiles: int) -> dict[str, Any]:
    """What the memory checker finds while all kernels run, with this many tiles one after the other. It must also find
    what is wrong with a kernel that is: whatever it does not look into it calls clean."""
    if shutil.which("compute-sanitizer") is None:
        return {"clean": False, "said": "compute-sanitizer is not installed"}
    begin = time.monotonic()
    status, errors, said = under(tool, "tests.support.all_kernels", str(tiles))
    _, planted, of_planted = under(tool, "tests.support.faulty_kernels", tool)
    return {
        "clean": errors == 0 and status == 0 and bool(planted),
        "said": said,
        "said_of_a_planted_fault": of_planted,
        "exit_status": status,
        "seconds": round(time.monotonic() - begin),
    }


def under(tool: str, program: str, argument: str) -> tuple[int, int | None, str]:
    """The program's exit status, how many errors were found, and the line that says so."""
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, *TOOLS[tool], sys.executable, "-m", program, argument],
        cwd=ROOT,
        # PyTorch's pool of memory would hide what is read beyond the end of a tensor.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-3000:], done.stderr[-1000:], flush=True)
    return done.returncode, *summary(done.stdout)


def summary(printed: str) -> tuple[int | None, str]:
    """The number in the tool's last line; None, if it did not come so far."""
    found = re.search(r"[A-Z]+ SUMMARY: (\d+) .*", printed)
    return (None, "no summary") if found is None else (int(found[1]), found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=positive, default=8)
    parser.add_argument("--tiles", type=positive, default=5)
    parser.add_argument("--select", default="", help="of the tests, as pytest -k does: 'not flex'")
    parser.add_argument("--out", type=result_file, default="results/checks-gpu.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("these checks need a CUDA device; without one, make test runs the kernels in Triton's interpreter")
    names = collected(TESTS, arguments.select)
    with ThreadPoolExecutor() as beside:  # memory checkers are one process each
        looking = {tool: beside.submit(looked_at, tool, arguments.tiles) for tool in TOOLS}
        results: dict[str, Any] = {"tests": tested(names, arguments.processes), "memory": {}}
        data = {
            "benchmark": "checks-gpu",
            "config": {"tests": TESTS, "tools": TOOLS} | {k: v for k, v in vars(arguments).items() if k != "out"},
            "environment": environment("cuda"),
            "results": results,
        }
        write_json(arguments.out, data)  # what is known so far
        for tool, found in looking.items():
            results["memory"][tool] = found.result()
            write_json(arguments.out, data)
    wrong = [*results["tests"]["failed"], *(tool for tool, found in results["memory"].items() if not found["clean"])]
    if wrong:
        sys.exit(f"error: not in order: {', '.join(wrong)}; see {arguments.out}")


if __name__ == "__main__":
    main()
