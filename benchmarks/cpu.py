"""Cost of content addresses on the CPU, as a ratio to the same model with plain RoPE and PyTorch's SDPA.

python -m benchmarks.cpu [--out results/benchmark-cpu.json] [--repeats 11]
"""

from __future__ import annotations

import argparse
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import contentrope as cr
from benchmarks.timing import Work, paired_seconds, positive, result_file
from contentrope.corpora.stdlib import standard_library_text
from contentrope.results import environment, write_json

PAPER = {"vocab_size": 65, "dim": 128, "layers": 4, "heads": 4}
SCHEMES: dict[str, dict[str, Any]] = {
    "content": {},
    "content, competition 1": {"competition": 1.0},
    "content, window 128": {"window": 128, "competition": 1.0},
}
TARGETS: dict[str, dict[str, float]] = {
    "content": {"train_256": 1.25, "train_1024": 1.5, "decode_4096": 1.10, "memory_256": 1.3, "memory_1024": 1.3},
    "content, window 128": {"train_256": 1.25, "train_1024": 1.25, "decode_4096": 1.05},
}


def lines_of_text(batch: int, length: int) -> torch.Tensor:
    """Real line lengths: ids of the standard library's source, newline as 0, the rest folded into 64 symbols."""
    text = standard_library_text(batch * length)
    ids = torch.tensor([0 if c == "\n" else 1 + ord(c) % 64 for c in text])
    return ids.view(batch, length)


def model_of(scheme: str, size: dict[str, int] = PAPER, **options: Any) -> cr.Transformer:
    torch.manual_seed(0)
    model = cr.Transformer(cr.ModelConfig(**size, scheme=scheme, terminators=(0,), options=options))
    if scheme == "content":
        # A trained model has addresses; zero ones might be cheaper somewhere.
        torch.nn.init.normal_(model.scheme.address.project.weight, std=0.1)
    return model


def training_step(model: cr.Transformer, ids: torch.Tensor) -> Work:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return Work([step])


def decode_steps(model: cr.Transformer, ids: torch.Tensor, cached: int, steps: int) -> Work:
    """``steps`` single tokens after ``cached`` ones, then back; about two units are completed on the way."""
    model.eval()
    cache = model.new_cache(len(ids), max_tokens=cached + steps + 1)
    for begin in range(0, cached, 1024):
        model(ids[:, begin : min(begin + 1024, cached)], cache=cache)

    def decode(i: int) -> None:
        model(ids[:, i : i + 1], cache=cache)
        if ids.is_cuda:
            torch.cuda.synchronize()

    def roll_back() -> None:
        # One token more than remains: it sums the open unit's descriptor again, which decoding never has to.
        cache.truncate(cached)
        model(ids[:, cached : cached + 1], cache=cache)

    roll_back()
    return Work([partial(decode, i) for i in range(cached + 1, cached + 1 + steps)], roll_back)


def peak_memory(scheme: str, batch: int, length: int) -> int:
    """Bytes that training steps take at their peak, above what a fresh process with the model holds. Linux."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_added_peak, (scheme, batch, length))


def _added_peak(scheme: str, batch: int, length: int) -> int:
    torch.set_num_threads(2)
    model, ids = model_of(scheme), lines_of_text(batch, length + 1)
    training_step(model, ids[:1, :17]).run()
    step = training_step(model, ids)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
    before = status_bytes("VmRSS")
    for _ in range(3):
        step.run()
    return status_bytes("VmHWM") - before


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def measure(repeats: int, schemes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, options in schemes.items():
        rows = results[name] = {}
        for length in (256, 1024):
            ids = lines_of_text(16, length + 1)
            ours = training_step(model_of("content", **options), ids)
            plain = training_step(model_of("rope"), ids)
            rows[f"train_{length}"] = paired_seconds(ours, plain, repeats=repeats)
            print(name, f"train_{length}", rows[f"train_{length}"], flush=True)
        for batch, cached in ((1, 1024), (1, 4096), (1, 16384), (8, 4096)):
            ids = lines_of_text(batch, cached + 65)
            ours = decode_steps(model_of("content", **options), ids, cached, 64)
            plain = decode_steps(model_of("rope"), ids, cached, 64)
            key = f"decode_{cached}" + (f"_batch{batch}" if batch > 1 else "")
            rows[key] = paired_seconds(ours, plain, repeats=repeats)
            print(name, key, rows[key], flush=True)
    for length in (256, 1024):
        ours_bytes, plain_bytes = (peak_memory(s, 16, length) for s in ("content", "rope"))
        row = {"ours_bytes": ours_bytes, "baseline_bytes": plain_bytes, "ratio": ours_bytes / plain_bytes}
        results["content"][f"memory_{length}"] = row
        print(f"memory_{length}", row, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=result_file, default="results/benchmark-cpu.json")
    parser.add_argument("--repeats", type=positive, default=11)
    parser.add_argument("--threads", type=positive, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = measure(arguments.repeats, SCHEMES)
    config = {
        "model": PAPER,
        "schemes": SCHEMES,
        "batch": 16,
        "repeats": arguments.repeats,
        "threads": arguments.threads,
        "seed": 0,
    }
    write_json(
        arguments.out,
        {
            "benchmark": "cpu",
            "config": config,
            "targets": TARGETS,
            "environment": environment(),
            "results": results,
        },
    )
    for scheme, name, target in ((scheme, *each) for scheme, of_it in TARGETS.items() for each in of_it.items()):
        ratio = results[scheme][name]["ratio"]
        verdict = "met" if ratio <= target else "MISSED"
        print(f"{scheme}: {name:14} {ratio:5.2f}x of plain RoPE, target {target:.2f}x: {verdict}")


if __name__ == "__main__":
    main()
