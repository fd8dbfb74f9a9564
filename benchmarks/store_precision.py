"""What 8 bits lose: a book read on over its own stored paragraphs, from a store in 8 bits and from one in full.

    CONTENTROPE_SMOLLM2=DIR python -m benchmarks.store_precision [--tokens 2048] [--continuation 256] [--out FILE]

CONTENTROPE_SMOLLM2 names a folder with the weights of SmolLM2-135M, and the books are those of the long-context archive
(CONTENTROPE_DATA). Of each book the paragraphs before a place are stored, as many as have so many tokens, each one
document; the text from there on is read behind them. Measured are its perplexity, how far logits differ, whether the
likeliest tokens are the same, bytes for a stored token, and the time to the first token, alternately.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers import AutoTokenizer

import contentrope.hf as chf
from benchmarks.command import options_of, parser_of, write_results
from benchmarks.store import VARIABLE, first_token, model_of
from benchmarks.timing import Work, paired_seconds, positive
from contentrope.corpora.long_context import long_context
from contentrope.errors import InputError
from contentrope.store import UnitStore

SHORTEST = 24
"""Tokens of a paragraph that counts as one; headings and exclamations are left out."""


def cut(text: str, tokenizer: Any, options: argparse.Namespace) -> tuple[list[list[int]], list[int]]:
    """Paragraphs in the middle of a book, and its text behind them."""
    found = (tokenizer(part.strip() + "\n", add_special_tokens=False)["input_ids"] for part in text.split("\n\n"))
    paragraphs = [ids for ids in found if len(ids) >= SHORTEST]
    first, count, stored = len(paragraphs) // 3, 0, list[list[int]]()
    for ids in paragraphs[first:]:
        if count >= options.tokens:
            break
        stored.append(ids)
        count += len(ids)
    behind = [number for ids in paragraphs[first + len(stored) :] for number in ids][: options.continuation]
    if count < options.tokens or len(behind) < options.continuation:
        raise InputError(f"a book has too few paragraphs for --tokens {options.tokens}; pass fewer")
    return stored, behind


@torch.no_grad()
def logits_of(store: UnitStore, stored: list[list[int]], behind: Tensor) -> Float[Tensor, "tokens vocab"]:
    cache = store.cache(store.add(stored))
    return store.model(behind, past_key_values=cache).logits[0].float()


@torch.no_grad()
def written(store: UnitStore, stored: list[list[int]], behind: list[int], count: int) -> list[int]:
    """Greedily."""
    asked = store.ask([behind], [store.add(stored)])
    given = asked["input_ids"].shape[1]
    out = store.model.generate(**asked, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return [int(number) for number in out[0, given:]]


def perplexity(logits: Tensor, behind: Tensor) -> float:
    return float(F.cross_entropy(logits[:-1], behind[0, 1:].to(logits.device)).exp())


def compared(stores: dict[str, UnitStore], stored: list[list[int]], behind: list[int], greedy: int) -> dict[str, Any]:
    ids = torch.tensor([behind], device=stores["model"].adapter.embedding.device)
    full, coded = (logits_of(store, stored, ids) for store in stores.values())
    apart = (full - coded).abs()
    halves = behind[: len(behind) // 2]
    texts = [written(store, stored, halves, greedy) for store in stores.values()]
    same = [a == b for a, b in zip(*texts, strict=True)]
    divergence = F.kl_div(coded.log_softmax(-1), full.log_softmax(-1), log_target=True, reduction="batchmean")
    return {
        "documents": len(stored),
        "tokens": sum(map(len, stored)),
        "perplexity": {name: perplexity(x, ids) for name, x in (("model", full), ("int8", coded))},
        "largest_difference": float(apart.max()),
        "mean_difference": float(apart.mean()),
        "logits_deviation": float(full.std(-1).mean()),
        "divergence": float(divergence),
        "likeliest_agree": float((full.argmax(-1) == coded.argmax(-1)).float().mean()),
        "greedy_agree_until": same.index(False) if False in same else greedy,
        "greedy": greedy,
    }


def first_tokens(stores: dict[str, UnitStore], stored: list[list[int]], behind: list[int], repeats: int) -> Any:
    """Warm: int8 against the model's own numbers."""
    question = torch.tensor([behind[:32]], device=stores["model"].adapter.embedding.device)
    keys = {name: store.add(stored) for name, store in stores.items()}
    ours, plain = (
        Work([lambda store=store, own=keys[name]: first_token(store.model, question, store.cache(own))])
        for name, store in reversed(stores.items())
    )
    return paired_seconds(ours, plain, repeats=repeats, warmup=1)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, repeats=5)
    parser.set_defaults(size="135m")
    parser.add_argument("--tokens", type=positive, default=2048, help="stored, of each book")
    parser.add_argument("--continuation", type=positive, default=256, help="tokens that are read behind them")
    parser.add_argument("--greedy", type=positive, default=16, help="tokens that are written")
    parser.add_argument("--unit-length", type=positive, default=512, help="most tokens of a unit")
    options = options_of(parser)
    if VARIABLE not in os.environ:
        parser.error(f"set {VARIABLE} to a folder with the weights and the tokenizer of SmolLM2-135M")
    return options


def main() -> int:
    options = arguments()
    try:
        books = long_context().books("validation")
    except (InputError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Not trained: addresses are those that attach() begins with.
    model, tokenizer = (
        model_of(options, options.size, attached=False),
        AutoTokenizer.from_pretrained(os.environ[VARIABLE]),
    )
    given = {"window": options.window, "max_length": options.unit_length, "check": False}
    chf.attach(model, tokenizer, units="document", marker="\n", competition=1.0, **given)
    results: dict[str, Any] = {"books": {}}
    with tempfile.TemporaryDirectory() as folder:
        stores = {name: UnitStore(Path(folder) / name, model, precision=name) for name in ("model", "int8")}
        for name, text in sorted(books.items()):
            stored, behind = cut(text, tokenizer, options)
            results["books"][name] = compared(stores, stored, behind, options.greedy)
            print(name, results["books"][name], flush=True)
        results["first_token"] = first_tokens(stores, stored, behind, options.repeats)
        stats = {name: store.stats() for name, store in stores.items()}
        results["bytes_per_token"] = {name: found["bytes"] / found["tokens"] for name, found in stats.items()}
    write_results("store-precision", options, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
