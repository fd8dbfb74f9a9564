"""Reads a long sequence at once on the CPU and notes the memory it took: no tensor of length squared.

python -m benchmarks.long [--tokens 65536] [--out results/evaluation-65536.json]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.cpu import PAPER, lines_of_text, model_of, status_bytes
from benchmarks.timing import positive, result_file
from contentrope.results import environment, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=positive, default=65_536)
    parser.add_argument("--out", type=result_file, default="results/evaluation-65536.json")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model, ids = model_of("content", competition=1.0).eval(), lines_of_text(1, arguments.tokens)
    Path("/proc/self/clear_refs").write_text("5")
    before, began = status_bytes("VmRSS"), time.perf_counter()
    with torch.no_grad():
        finite = bool(torch.isfinite(model(ids)).all())
    results = {
        "seconds": time.perf_counter() - began,
        "added_peak_bytes": status_bytes("VmHWM") - before,
        "one_score_matrix_bytes": 4 * arguments.tokens**2,
        "finite": finite,
    }
    config = {"model": PAPER, "tokens": arguments.tokens, "competition": 1.0, "threads": 2, "seed": 0}
    write_json(arguments.out, {"benchmark": "long", "config": config, "environment": environment(), "results": results})
    print(results)


if __name__ == "__main__":
    main()
