"""How reading stored units grows: the time to the first token by their number, and decoding behind them.

    python -m benchmarks.store_growth [--device cpu] [--tokens 1024 4096 16384] [--out FILE]

One store holds the largest set, of which the others are parts; files are in the page cache and checksums seen. Decoding
is that of the cache of a store, with room behind its columns, against the same keys and values in transformers' own
layers, which copy all of them with every token; alternately, token by token.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from benchmarks.command import options_of, parser_of, write_results
from benchmarks.hf import SIZES, VOCABULARY
from benchmarks.store import documents_of, first_token, model_of, seconds, synchronized
from benchmarks.timing import Work, paired_seconds, positive
from contentrope.store import SetCache, UnitStore
from contentrope.store.precision import PRECISIONS


def first_tokens(options: argparse.Namespace, store: UnitStore, keys: list[str]) -> dict[str, Any]:
    """By stored tokens. The sizes take turns, so that what slows the machine slows all of them."""
    question = torch.tensor(documents_of(1, options.question, VOCABULARY[options.size], 2), device=options.device)
    sets = {count: keys[: count // options.unit_length] for count in options.tokens}
    times: dict[int, list[float]] = {count: [] for count in sets}
    for _ in range(options.repeats + 1):
        for count, chosen in sets.items():
            run = lambda chosen=chosen: first_token(store.model, question, store.cache(chosen))  # noqa: E731
            times[count].append(seconds(options, run))
    sizes = {document.key: document.bytes for document in store.list()}
    found = {}
    for count, chosen in sets.items():
        read, median = sum(sizes[key] for key in chosen), statistics.median(times[count][1:])
        found[str(count)] = {"bytes": read, "seconds": median, "nanoseconds_per_byte": 1e9 * median / read}
    return found


def plain_layers(cache: SetCache) -> SetCache:
    """The same keys and values in layers of transformers."""
    layers: list[Any] = []
    for layer in cache.layers[:-1]:
        made: Any = DynamicLayer()
        made.update(layer.keys.contiguous(), layer.values.contiguous())
        layers.append(made)
    cache.layers[:-1], cache.state.layers = layers, layers
    return cache


@torch.no_grad()
def decoding(options: argparse.Namespace, store: UnitStore, keys: list[str]) -> dict[str, Any]:
    """Seconds for a token, behind the largest set."""
    ours, plain = store.cache(keys), plain_layers(store.cache(keys))
    token = torch.tensor([[1]], device=options.device)

    def step(cache: SetCache) -> None:
        store.model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
        synchronized(options)

    works = [Work([lambda cache=cache: step(cache)]) for cache in (ours, plain)]
    found: dict[str, Any] = {"tokens": ours.tokens, **paired_seconds(*works, repeats=options.decoded, warmup=3)}
    for side in ("ours", "baseline"):
        found[f"{side}_tokens_per_second"] = 1 / found[f"{side}_seconds"]
    return found


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, repeats=5)
    parser.add_argument("--size", choices=SIZES, default="135m")
    parser.add_argument("--precision", choices=PRECISIONS, default="model")
    parser.add_argument("--tokens", type=positive, nargs="+", default=[1024, 4096, 16_384], help="stored, in each set")
    parser.add_argument("--unit-length", type=positive, default=64)
    parser.add_argument("--question", type=positive, default=32, help="tokens of the question")
    parser.add_argument("--decoded", type=positive, default=32, help="tokens that are decoded by each side")
    options = options_of(parser)
    if min(options.tokens) < options.unit_length:
        parser.error(f"--tokens {min(options.tokens)}: a set has at least one unit of {options.unit_length} tokens")
    return options


def main() -> None:
    options = arguments()
    largest = argparse.Namespace(**{**vars(options), "tokens": max(options.tokens)})
    model = model_of(largest, options.size)
    count = largest.tokens // options.unit_length
    with tempfile.TemporaryDirectory() as folder:
        store = UnitStore(Path(folder), model, precision=options.precision)
        keys = store.add(documents_of(count, options.unit_length, VOCABULARY[options.size], 1))
        results = {"first_token": first_tokens(options, store, keys), "decoding": decoding(options, store, keys)}
    write_results("store-growth", options, results)
    print(results, flush=True)


if __name__ == "__main__":
    main()
