"""What a store of units saves: stored units against reading them again, alternately, in the same run.

    python -m benchmarks.store [--device cpu] [--dtype float32] [--tokens 4096] [--precision int8] [--out FILE]

CONTENTROPE_SMOLLM2 may name a folder with the weights of SmolLM2-135M; without it the model is a random one of that
shape. Measured are the time to the first token, warm (files in the page cache, checksums seen) and cold (neither);
one of many units replaced, against computing all of them; questions over units drawn from many, the first and the last
of a thousand, by a small model unless told otherwise; and bytes for every unit that is not there yet.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from benchmarks.command import options_of, parser_of, write_results
from benchmarks.hf import SIZES, VOCABULARY
from benchmarks.timing import Work, paired_seconds, positive
from contentrope.store import UnitStore
from contentrope.store.catalog import Catalog
from contentrope.store.precision import PRECISIONS

VARIABLE = "CONTENTROPE_SMOLLM2"
TERMINATOR = 0


def model_of(options: argparse.Namespace, size: str, *, attached: bool = True) -> Any:
    torch.manual_seed(options.seed)
    folder = os.environ.get(VARIABLE) if size == "135m" else None
    if folder:
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    else:
        settings = {**SIZES[size], "vocab_size": VOCABULARY[size], "max_position_embeddings": 4 * options.tokens}
        model = LlamaForCausalLM(LlamaConfig(**settings, tie_word_embeddings=True, attn_implementation="sdpa"))
    model = model.to(options.device, getattr(torch, options.dtype)).eval()
    if attached:
        given = {"window": options.window, "competition": 1.0, "max_length": options.unit_length, "check": False}
        chf.attach(model, units={TERMINATOR}, **given)
        with torch.no_grad():  # as if trained
            for weight in model.contentrope.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
    return model


def documents_of(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (count, length), generator=generator).tolist()


def synchronized(options: argparse.Namespace) -> None:
    if options.device.startswith("cuda"):
        torch.cuda.synchronize(options.device)


def seconds(options: argparse.Namespace, run: Callable[[], object]) -> float:
    synchronized(options)
    begin = time.perf_counter()
    run()
    synchronized(options)
    return time.perf_counter() - begin


@torch.no_grad()
def first_token(model: Any, ids: torch.Tensor, cache: DynamicCache) -> int:
    return int(model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())


def forgotten(store: UnitStore) -> None:
    """As a process that opens the store and has read nothing, from files that the system has not in memory."""
    store.catalog = Catalog(store.place)
    store.place._mapped.clear()  # type: ignore[attr-defined]
    gc.collect()
    for path in Path(str(store.place)).rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def time_to_first_token(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Over stored tokens, against the untouched model that reads the same tokens again."""
    model, plain = model_of(options, options.size), model_of(options, options.size, attached=False)
    documents = documents_of(options.tokens // options.unit_length, options.unit_length, VOCABULARY[options.size], 1)
    store = UnitStore(folder / "first", model, precision=options.precision)
    filled = seconds(options, lambda: store.add(documents))
    keys = store.add(documents)
    question = torch.tensor(documents_of(1, options.question, VOCABULARY[options.size], 2), device=options.device)
    everything = torch.cat((torch.tensor(documents, device=options.device).view(1, -1), question), dim=1)

    def stored() -> None:
        first_token(model, question, store.cache(keys))
        synchronized(options)

    def again() -> None:
        first_token(plain, everything, DynamicCache(config=plain.config))
        synchronized(options)

    found: dict[str, Any] = {"tokens": options.tokens, "units": len(documents), "fill_seconds": filled}
    found["warm"] = paired_seconds(Work([stored]), Work([again]), repeats=options.repeats, warmup=1)
    cold = []
    for _ in range(options.repeats):
        forgotten(store)
        cold.append(seconds(options, stored))
    found["cold_seconds"] = statistics.median(cold)
    found["warm"]["speed"] = 1 / found["warm"]["ratio"]
    found["cold_speed"] = found["warm"]["baseline_seconds"] / found["cold_seconds"]
    found["bytes_per_token"] = store.layout.bytes_per_token
    found["file_bytes_per_token"] = store.stats()["bytes"] / options.tokens
    before = store.stats()["bytes"]
    store.add(documents)
    found["bytes_for_the_same_again"] = store.stats()["bytes"] - before
    return found


def editing(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One unit replaced by a new text, its computing included; against computing all, and against joining all again."""
    model = model_of(options, options.size)
    documents = documents_of(options.edited + options.repeats, options.edited_length, VOCABULARY[options.size], 3)
    store = UnitStore(folder / "edited", model, precision=options.precision)
    first, new = documents[: options.edited], documents[options.edited :]
    rebuilt = seconds(options, lambda: store.cache(store.add(first)))
    cache = store.cache(store.add(first))
    old = store.add(first)
    edits = [
        seconds(options, lambda n=n: cache.replace(old[n], store.add([new[n]])[0])) for n in range(options.repeats)
    ]
    joined = [seconds(options, lambda: store.cache(cache.documents)) for _ in range(options.repeats)]
    edit, join = statistics.median(edits), statistics.median(joined)
    return {
        "units": options.edited,
        "tokens": options.edited * options.edited_length,
        "edit_seconds": edit,
        "rebuild_seconds": rebuilt,
        "join_seconds": join,
        "edit_to_rebuild": edit / rebuilt,
    }


def shuffled(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Each question over some units drawn from many in random order: whether the last takes as long as the first.

    Before the first, others are asked that do not count: a process has to load code and get memory once.
    """
    size = options.many_size
    model = model_of(options, size)
    store = UnitStore(folder / "many", model, precision=options.precision)
    keys = store.add(documents_of(options.many, 8, VOCABULARY[size], 4))
    question = torch.tensor(documents_of(1, 16, VOCABULARY[size], 5), device=options.device)
    generator, times = torch.Generator().manual_seed(6), []
    for _ in range(options.uncounted + options.questions):
        drawn = [keys[n] for n in torch.randperm(len(keys), generator=generator)[:64].tolist()]
        times.append(seconds(options, lambda drawn=drawn: first_token(model, question, store.cache(drawn))))
    times = times[options.uncounted :]
    side = max(1, len(times) // 5)
    early, late = sorted(times[:side]), sorted(times[-side:])
    settings = {"model": SIZES[size], "units": len(keys), "questions": len(times), "units_per_question": 64}
    found: dict[str, Any] = {**settings, "questions_at_each_end": side, "questions_before": options.uncounted}
    for name, side_times in (("early", early), ("late", late)):
        found[f"{name}_seconds"] = statistics.median(side_times)
        found[f"{name}_quartiles"] = [side_times[len(side_times) // 4], side_times[-1 - len(side_times) // 4]]
    found["late_to_early"] = found["late_seconds"] / found["early_seconds"]
    return found


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, repeats=5)
    parser.add_argument("--size", choices=SIZES, default="135m")
    parser.add_argument("--tokens", type=positive, default=4096, help="stored, for the time to the first token")
    parser.add_argument("--unit-length", type=positive, default=64)
    parser.add_argument("--question", type=positive, default=32, help="tokens of the question")
    parser.add_argument("--edited", type=positive, default=1000, help="units of which one is replaced")
    parser.add_argument("--edited-length", type=positive, default=8)
    parser.add_argument("--many", type=positive, default=10_000, help="small units that questions draw from")
    parser.add_argument("--many-size", choices=SIZES, default="tiny", help="of the model that answers over these")
    parser.add_argument("--questions", type=positive, default=1000)
    parser.add_argument("--uncounted", type=int, default=200, help="questions before these, which do not count")
    parser.add_argument("--precision", choices=PRECISIONS, default="model")
    return options_of(parser)


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for measure in (time_to_first_token, editing, shuffled):
            results[measure.__name__] = measure(options, Path(folder))
            print(measure.__name__, results[measure.__name__], flush=True)
    weights = "SmolLM2-135M" if os.environ.get(VARIABLE) and options.size == "135m" else "random"
    write_results("store", options, results, weights=weights)


if __name__ == "__main__":
    main()
