"""Cost of addressed attention on a GPU, as a ratio to plain causal SDPA in the same run.

    python -m benchmarks.gpu --backend flex|fused [--windows 0 1024] [--out results/benchmark-BACKEND-gpu.json]

Both sides get what a layer's projection gives, queries, keys and values side by side, and rotate queries and keys; ours
also applies the addresses, learns them, and prepares what the backend wants to know of the units. The cosines and sines
of positions and addresses are there before: all layers share them. With a window the fused side rotates near and far
queries, near and addressed keys.

Everything is timed twice: called from Python, where short texts wait for their kernels to be started, and replayed as a
CUDA graph (``graph_``), which is what the GPU takes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import contentrope as cr
from benchmarks.timing import positive, result_file
from contentrope.attention import PairRule, fused
from contentrope.results import environment, write_json
from contentrope.rotary import PositionRotations, Rotation, inverse_frequencies, rotate

HEADS, HEAD_DIM, TOKENS, UNIT, LONGEST = 16, 64, 32768, 40, 256


def rotations(positions: torch.Tensor, bound: int) -> Rotation:
    table = PositionRotations(inverse_frequencies(cr.RotaryConfig(), HEADS, HEAD_DIM)).to(positions.device)
    return table.at(positions, torch.float32, bound=bound)


def rotated(projected: torch.Tensor, rotation: Rotation) -> list[torch.Tensor]:
    q, k, v = projected.split(HEADS, dim=2)
    return [x.transpose(1, 2) for x in (rotate(q, rotation), rotate(k, rotation), v)]


def plain(projected: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    return F.scaled_dot_product_attention(*rotated(projected, rotation), is_causal=True)


def by_flex(projected: torch.Tensor, local: Rotation, angles: torch.Tensor, units: cr.Units) -> torch.Tensor:
    return cr.addressed_attention(*rotated(projected, local), units, angles, backend="flex")


def by_fused(
    projected: torch.Tensor, places: fused.FusedRotations, angles: torch.Tensor, units: cr.Units, window: int
) -> torch.Tensor:
    """As a layer of a model does it."""
    places, rule = places._replace(angles=angles), PairRule.among(units, window)
    return fused.attend_packed(projected, HEADS, places, "half", rule, scale=HEAD_DIM**-0.5)


def graphed(run: Callable[[], object]) -> Callable[[], object]:
    """The same work as one CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    for _ in range(5):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def places_of(
    local: Rotation, by_unit: torch.Tensor, units: cr.Units, by_position: Rotation, window: int
) -> fused.FusedRotations:
    """How the fused side rotates: what all layers share."""
    if not window:
        return fused.rotations_of(local, by_unit, units.unit, units.closes)
    far_query = rotations(window + units.local, window + LONGEST)
    return fused.rotations_of(local, by_unit, units.unit, units.closes, near=by_position, far_query=far_query)


def at_length(seq: int, repeats: int, backend: str, window: int) -> dict[str, Any]:
    batch = max(1, TOKENS // seq)
    projected = torch.randn(batch, seq, 3 * HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(batch, HEADS, seq, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    ids = (torch.rand(batch, seq, device="cuda") > 1 / UNIT).long()
    units = cr.segment(ids, cr.Terminators({0}), max_length=LONGEST)
    by_unit = torch.randn(batch, seq, HEADS, HEAD_DIM // 2, device="cuda")
    by_token = by_unit.gather(1, units.unit[..., None, None].expand_as(by_unit)).requires_grad_()
    by_position = rotations(torch.arange(seq, device="cuda")[None], seq)
    local = rotations(units.local, LONGEST)
    if backend == "fused":
        places = places_of(local, by_unit, units, by_position, window)
        ours = torch.compile(by_fused), (projected, places, by_token, units, window), (projected, by_token)
    else:
        ours = torch.compile(by_flex), (projected, local, by_token, units), (projected, by_token)
    sides = {"baseline": (torch.compile(plain), (projected, by_position), (projected,)), "ours": ours}
    row: dict[str, Any] = {"seq": seq, "window": window, "batch": batch}
    for side, (function, arguments, learned) in sides.items():

        def forward(function: Any = function, arguments: Any = arguments) -> torch.Tensor:
            with torch.no_grad():
                return function(*arguments)

        def both(function: Any = function, arguments: Any = arguments, learned: Any = learned) -> None:
            torch.autograd.grad(function(*arguments), learned, grad)

        for name, work in (("forward", forward), ("both", both)):
            row[f"{side}_{name}_ms"] = milliseconds(work, repeats)
            row[f"{side}_graph_{name}_ms"] = milliseconds(graphed(work), repeats)
    for name in ("forward", "both", "graph_forward", "graph_both"):
        row[f"{name}_ratio"] = row[f"ours_{name}_ms"] / row[f"baseline_{name}_ms"]
    print(row, flush=True)
    torch.compiler.reset()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("flex", "fused"), default="fused")
    parser.add_argument("--out", type=result_file)
    parser.add_argument("--repeats", type=positive, default=20)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--windows", type=int, nargs="+", default=[0], help="near windows in tokens; 0: none")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device; for the CPU run python -m benchmarks.cpu")
    if arguments.backend == "flex" and any(arguments.windows):
        parser.error("windows are timed with --backend fused")
    torch.manual_seed(0)
    lengths = [(window, seq) for window in arguments.windows for seq in arguments.lengths]
    rows = [at_length(seq, arguments.repeats, arguments.backend, window) for window, seq in lengths]
    config = {"heads": HEADS, "head_dim": HEAD_DIM, "tokens": TOKENS, "unit": UNIT, "dtype": "bfloat16", "seed": 0}
    config |= {"longest_unit": LONGEST, "repeats": arguments.repeats}
    data = {
        "benchmark": f"{arguments.backend}-gpu",
        "config": config,
        "environment": environment("cuda"),
        "results": rows,
    }
    write_json(arguments.out or Path(f"results/benchmark-{arguments.backend}-gpu.json"), data)


if __name__ == "__main__":
    main()
