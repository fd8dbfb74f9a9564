"""Cost of projecting descriptors to addresses on a GPU, once for all layers: of the slots that are units, and of all
slots by the library, as a ratio in the same run.

    python -m benchmarks.addresses [--out results/benchmark-addresses-gpu.json]

Rows are those of ``python -m experiments timing``, with units of 40 tokens, and once of one token: the worst case, as
there every slot is a unit. All as CUDA graphs. Errors are against float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu import graphed, milliseconds
from benchmarks.timing import positive, result_file
from contentrope.results import environment, write_json
from experiments.timing.config import Row, parse_row

ROWS = [("0.8M", 40), ("85M", 40), ("302M", 40), ("680M", 40), ("85M at 32768", 40), ("85M at 8192", 1)]


def measure(row: Row, unit: int, repeats: int, device: str = "cuda") -> dict[str, Any]:
    from contentrope.kernels.address import unit_angles  # triton is needed only here

    dim, slots = row.model.dim, (row.batch, row.length)
    slot = (torch.arange(row.length, device=device) // unit).expand(slots).contiguous()
    normed, weight, bias = leaves = [
        torch.randn(*shape, device=device, requires_grad=True)
        for shape in ((*slots, dim), (dim // 2, dim), (dim // 2,))
    ]
    units = int(slot[0, -1]) + 1
    grad = torch.randn(*slots, dim // 2, device=device) * (torch.arange(row.length, device=device) < units)[:, None]
    sides: dict[str, Callable[[], Tensor]] = {
        "baseline": lambda: F.linear(normed, weight, bias),
        "ours": lambda: unit_angles(normed, slot, weight, bias),
    }
    exact = F.linear(*(leaf.detach().double() for leaf in leaves))[:, :units]
    found: dict[str, Any] = {"row": row.name, "batch": row.batch, "length": row.length, "dim": dim, "unit": unit}
    for side, function in sides.items():

        def forward(function: Any = function) -> Tensor:
            with torch.no_grad():
                return function()

        def both(function: Any = function) -> None:
            torch.autograd.grad(function(), leaves, grad)

        found[f"{side}_error"] = float((forward()[:, :units] - exact).norm() / exact.norm())
        for name, work in (("forward", forward), ("both", both)):
            found[f"{side}_graph_{name}_ms"] = milliseconds(graphed(work), repeats)
    for name in ("graph_forward", "graph_both"):
        found[f"{name}_ratio"] = found[f"ours_{name}_ms"] / found[f"baseline_{name}_ms"]
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=20)
    parser.add_argument("--out", type=result_file, default="results/benchmark-addresses-gpu.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device; for the CPU run python -m benchmarks.cpu")
    torch.manual_seed(0)
    data = {
        "benchmark": "addresses-gpu",
        "config": {"rows": ROWS, "repeats": arguments.repeats, "dtype": "float32", "seed": 0},
        "environment": environment("cuda"),
        "results": [measure(parse_row(name), unit, arguments.repeats) for name, unit in ROWS],
    }
    write_json(arguments.out, data)


if __name__ == "__main__":
    main()
