"""What a look inside costs: tokens of an answer with and without one, alternately, in the same run.

    python -m benchmarks.look [--device cpu] [--units 10 100 1000] [--out FILE]

A random model of the shape of SmolLM2-135M decodes behind stored units. With a look, each token's shares are read and
written as a service sends them. The bytes are those of a token as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import options_of, parser_of, write_results
from benchmarks.hf import SIZES, VOCABULARY
from benchmarks.store import documents_of, model_of, synchronized
from benchmarks.timing import Work, paired_seconds, positive
from contentrope.serving.looking import Sight, Traces
from contentrope.store import SetCache, UnitStore


@torch.no_grad()
def cost(options: argparse.Namespace, model: Any, store: UnitStore, units: int) -> dict[str, Any]:
    keys = store.add(documents_of(units, options.unit_length, VOCABULARY[options.size], 1))
    joined = store.cache(keys)
    sight, caches = Sight(model, joined), [joined.copied(1) for _ in range(2)]
    token = torch.full((1, 1), 7, device=options.device)
    sizes: list[int] = []

    def call(cache: SetCache) -> None:
        model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
        synchronized(options)

    def looked() -> None:
        with sight.of_next_call():
            call(caches[0])
        assert sight.shares is not None
        told = Traces(sight.units).after(sight.shares[0], 1, "a", is_last=False)
        sizes.append(len(json.dumps(told.described(units=False))))

    def plain() -> None:
        call(caches[1])

    times = paired_seconds(
        Work([looked] * options.tokens, caches[0].rewind),
        Work([plain] * options.tokens, caches[1].rewind),
        repeats=options.repeats,
        warmup=1,
    )
    return {"units": units, "stored_tokens": joined.tokens, "bytes_per_token": max(sizes), **times}


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, repeats=9)
    parser.add_argument("--size", choices=SIZES, default="135m")
    parser.add_argument("--units", type=positive, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--unit-length", type=positive, default=8)
    parser.add_argument("--tokens", type=positive, default=4, help="of an answer, each a step")
    return options_of(parser)


def main() -> None:
    options, results = arguments(), []
    asked = argparse.Namespace(**vars(options))
    asked.tokens = max(options.units) * options.unit_length  # what the model must be able to read
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(asked, options.size)
        store = UnitStore(Path(folder), model)
        for units in options.units:
            results.append(cost(options, model, store, units))
            print(results[-1], flush=True)
    write_results("look", options, results)


if __name__ == "__main__":
    main()
