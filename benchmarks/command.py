"""What the benchmarks of stored units share: options, and the result file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.hf import SIZES, VOCABULARY
from benchmarks.timing import positive, result_file
from contentrope.results import environment, write_json


def parser_of(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """``description``: the docstring of the benchmark; ``repeats``: how many by default. ``size`` is left to
    the benchmark: an option, or a default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--window", type=int, default=1024, help="near window in tokens; 0: none")
    parser.add_argument("--repeats", type=positive, default=repeats)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=result_file)
    return parser


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """As given on the command line; a device that is not there is refused."""
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: there is no CUDA device here; use --device cpu")
    return options


def write_results(name: str, options: argparse.Namespace, results: Any, **config: Any) -> None:
    """With the whole configuration, the versions and the device; ``config`` is what the options do not say."""
    asked = {option: value for option, value in vars(options).items() if option != "out"}
    asked["model"] = {**SIZES[options.size], "vocab_size": VOCABULARY[options.size]}
    made_with = {**environment(options.device), "transformers": transformers.__version__}
    data = {"benchmark": name, "config": {**asked, **config}, "environment": made_with, "results": results}
    write_json(options.out or Path(f"results/benchmark-{name}-{options.device.split(':')[0]}.json"), data)
