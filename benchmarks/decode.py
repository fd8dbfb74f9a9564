"""Cost of content addresses when decoding token by token, as a ratio to the same model with plain RoPE.

    python -m benchmarks.decode --device cuda --dtype bfloat16 [--sizes 85m 302m] [--cached 4096 32768]

Complete steps of one token after a long cached text, with random weights and real line lengths. A unit is completed
every forty tokens or so, and its keys are rotated then.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import PAPER, decode_steps, lines_of_text, model_of
from benchmarks.timing import Work, busy_seconds, paired_seconds, positive, result_file
from contentrope.results import environment, write_json

SIZES: dict[str, dict[str, int]] = {
    "0.8m": PAPER,
    "85m": {"vocab_size": 65, "dim": 768, "layers": 12, "heads": 12},
    "302m": {"vocab_size": 65, "dim": 1024, "layers": 24, "heads": 16},
}
SCHEMES: dict[str, dict[str, Any]] = {
    "content": {},
    "content, competition 1": {"competition": 1.0},
    "content, competition learned": {"competition": 1.0, "learn_competition": True},
    "content, window 1024": {"window": 1024, "competition": 1.0},
}


def work(scheme: str, size: str, ids: torch.Tensor, options: argparse.Namespace, **scheme_options: Any) -> Work:
    model = model_of(scheme, SIZES[size], **scheme_options).to(options.device, getattr(torch, options.dtype))
    return decode_steps(model, ids, ids.shape[1] - options.tokens - 1, options.tokens)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for size in options.sizes:
        for cached in options.cached:
            ids = lines_of_text(1, cached + options.tokens + 1).to(options.device)
            plain = work("rope", size, ids, options)
            for name, scheme_options in ((name, SCHEMES[name]) for name in options.schemes):
                ours = work("content", size, ids, options, **scheme_options)
                row = paired_seconds(ours, plain, repeats=options.repeats)
                for side in ("ours", "baseline"):
                    row[f"{side}_tokens_per_second"] = options.tokens / row[f"{side}_seconds"]
                if options.device.startswith("cuda"):
                    row |= busy_seconds(ours, plain)
                rows[f"{name}, {size}, {cached}"] = row
                print(f"{name}, {size}, {cached} cached: {row['ratio']:.3f} of plain", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["85m"])
    parser.add_argument("--cached", nargs="+", type=positive, default=[4096])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--tokens", type=positive, default=64, help="decoded in one run")
    parser.add_argument("--repeats", type=positive, default=9)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: there is no CUDA device here; use --device cpu")
    config = {name: value for name, value in vars(options).items() if name != "out"}
    config |= {"models": {size: SIZES[size] for size in options.sizes}, "seed": 0}
    config["schemes"] = {name: SCHEMES[name] for name in options.schemes}
    device = options.device.split(":")[0]
    data = {"benchmark": f"decode-{device}", "config": config, "environment": environment(options.device)}
    data["results"] = measure(options)
    write_json(options.out or Path(f"results/benchmark-decode-{device}.json"), data)


if __name__ == "__main__":
    main()
