"""Steps per second of training at the paper's size, alone on the device: the addressed schemes beside plain RoPE.

python -m benchmarks.training --out results/benchmark-training-gpu.json [--device cuda] [--precision bf16] ...
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.timing import result_file
from contentrope.corpora import Corpus, load_corpus
from contentrope.errors import InputError
from contentrope.model import Transformer
from contentrope.results import environment, write_json
from contentrope.training import Stepper, TrainConfig, Windows, train
from experiments.growth.config import PRESETS

VARIANTS = ("rope", "content", "content:competition=1,learn_competition=true")
PAPER_STEPS = 5000


def measure(variant: str, config: TrainConfig, corpus: Corpus, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    preset = PRESETS["paper"]
    model = Transformer(preset.model_of(variant, corpus.vocabulary)).to(device)
    stepper = Stepper(model, config)
    report = train(stepper, Windows(corpus.training, preset.length, device))
    first = report.seconds - (report.steps - stepper.reads_every) / report.steps_per_second
    return {
        "steps_per_second": report.steps_per_second,
        "milliseconds_per_step": 1e3 / report.steps_per_second,
        "seconds_for_5000_steps": PAPER_STEPS / report.steps_per_second,
        "seconds_to_compile": first,
        "acceleration": stepper.acceleration,
        "final_loss": report.loss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch-size", type=int, default=PRESETS["paper"].training.batch_size)
    parser.add_argument(
        "--variants", nargs="+", default=VARIANTS, help="the first is what the others are compared with"
    )
    parser.add_argument("--out", type=result_file)
    given = parser.parse_args()
    try:
        config = TrainConfig(steps=given.steps, batch_size=given.batch_size, precision=given.precision)
        corpus = load_corpus("stdlib")
    except InputError as error:
        parser.error(str(error))
    results: dict[str, Any] = {}
    for variant in given.variants:
        found = results[variant] = measure(variant, config, corpus, given.device)
        ratio = found["ratio"] = results[given.variants[0]]["steps_per_second"] / found["steps_per_second"]
        print(
            f"{variant}: {found['steps_per_second']:.0f} steps/s, {found['milliseconds_per_step']:.2f} ms a step, "
            f"{found['seconds_for_5000_steps']:.1f} s for {PAPER_STEPS} steps, {ratio:.2f}x {given.variants[0]} "
            f"(compiled in {found['seconds_to_compile']:.0f} s)",
            flush=True,
        )
        if given.out:
            data = {"config": asdict(config), "environment": environment(given.device), "results": results}
            write_json(given.out, data)


if __name__ == "__main__":
    main()
