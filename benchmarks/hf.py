"""Cost of addresses in a Hugging Face model, as a ratio to the same model untouched, in the same run.

    python -m benchmarks.hf decode [--device cpu] [--dtype float32] [--size 30m] [--out FILE]
    python -m benchmarks.hf train --device cuda --dtype bfloat16 --size 100m [--precision autocast] [--compile]

Both are random Llamas; ours has random addresses. ``decode``: single tokens after 4,096 cached ones, some of which
complete a unit. ``train``: complete steps, forward, backward and AdamW.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import contentrope.hf as chf
from benchmarks.timing import Work, busy_seconds, paired_seconds, positive, result_file
from contentrope.results import environment, write_json

TERMINATOR = 0
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "30m": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8},
    "100m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3},
}  # fmt: skip
VOCABULARY = {"tiny": 64, "30m": 16384, "100m": 16384, "135m": 49152}


def model_of(options: argparse.Namespace, *, attached: bool) -> Any:
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        **SIZES[options.size],
        vocab_size=VOCABULARY[options.size],
        max_position_embeddings=2 * options.context,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(options.device, getattr(torch, weights_dtype(options)))
    if attached:
        given = {"window": options.window, "competition": options.competition, "backend": options.backend}
        chf.attach(model, units={TERMINATOR}, **given)
        with torch.no_grad():  # a trained model has addresses; zero ones are cheaper
            for weight in model.contentrope.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
    return model


def weights_dtype(options: argparse.Namespace) -> str:
    return "float32" if options.precision == "autocast" else options.dtype


def text(options: argparse.Namespace, batch: int, length: int) -> torch.Tensor:
    """Random ids; a unit ends every so many tokens, so that the few that are decoded complete as many as others."""
    generator = torch.Generator().manual_seed(options.seed)
    ids = torch.randint(1, VOCABULARY[options.size], (batch, length), generator=generator)
    ids[:, options.unit_length - 1 :: options.unit_length] = TERMINATOR
    return ids.to(options.device)


def waited_for(options: argparse.Namespace, run: Callable[[], object]) -> Callable[[], object]:
    """On a GPU a call returns before its work is done."""

    def both() -> None:
        run()
        if options.device.startswith("cuda"):
            torch.cuda.synchronize(options.device)

    return both


def decode_steps(model: Any, ids: torch.Tensor, options: argparse.Namespace) -> Work:
    """Single tokens after a long context, then back."""
    model.eval()
    cache = DynamicCache(config=model.config)

    @torch.no_grad()
    def read(begin: int, end: int) -> None:
        model(ids[:, begin:end], past_key_values=cache, use_cache=True, logits_to_keep=1)

    for begin in range(0, options.context, 1024):
        read(begin, min(begin + 1024, options.context))

    decoded = range(options.context, options.context + options.tokens)
    steps = [waited_for(options, partial(read, t, t + 1)) for t in decoded]
    return Work(steps, lambda: cache.crop(-options.tokens))


def training_step(model: Any, ids: torch.Tensor, options: argparse.Namespace) -> Work:
    model.train()
    fused = {"fused": True} if options.device.startswith("cuda") else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **fused)
    called = torch.compile(model) if options.compile else model
    precise = nullcontext()
    if options.precision == "autocast":
        precise = torch.autocast(options.device.split(":")[0], dtype=getattr(torch, options.dtype))

    def step() -> None:
        optimizer.zero_grad()
        with precise:
            loss = called(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()

    return Work([waited_for(options, step)])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    make = decode_steps if options.what == "decode" else training_step
    length = options.context + options.tokens if options.what == "decode" else options.context
    ids = text(options, options.batch, length)
    models = {side: model_of(options, attached=side == "ours") for side in ("ours", "baseline")}
    parameters = sum(p.numel() for p in models["baseline"].parameters())
    ours, baseline = (make(model, ids, options) for model in models.values())
    row: dict[str, Any] = {"parameters": parameters}
    if options.device.startswith("cuda"):
        row |= {f"{side}_peak_bytes": _peak(work) for side, work in (("ours", ours), ("baseline", baseline))}
    row |= paired_seconds(ours, baseline, repeats=options.repeats, warmup=2)
    if options.device.startswith("cuda"):
        row |= busy_seconds(ours, baseline)
    tokens = options.batch * (options.tokens if options.what == "decode" else options.context)
    for side in ("ours", "baseline"):
        row[f"{side}_tokens_per_second"] = tokens / row[f"{side}_seconds"]
    row["speed"] = 1 / row["ratio"]
    return row


def _peak(work: Work) -> int:
    """Bytes at the peak of one run, after one that allocates what stays."""
    work.run()
    work.reset()
    torch.cuda.reset_peak_memory_stats()
    work.run()
    work.reset()
    return torch.cuda.max_memory_allocated()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "train"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--precision", choices=("weights", "autocast"), default="weights", help="what has the dtype")
    parser.add_argument("--size", choices=SIZES, default="30m")
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--context", type=positive, help="tokens cached, or of a training row (4096, 2048)")
    parser.add_argument("--tokens", type=positive, default=64, help="decoded in one run")
    parser.add_argument("--unit-length", type=positive, default=32, help="a unit ends every so many tokens")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--window", type=int, default=0, help="near window in tokens; 0: none")
    parser.add_argument("--competition", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=positive, default=9)
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=result_file)
    options = parser.parse_args()
    options.context = options.context or (4096 if options.what == "decode" else 2048)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: there is no CUDA device here; use --device cpu")
    return options


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = measure(options)
    config = {name: value for name, value in vars(options).items() if name not in ("what", "out")}
    config["model"] = {**SIZES[options.size], "vocab_size": VOCABULARY[options.size]}
    made_with = {**environment(options.device), "transformers": transformers.__version__}
    name = f"hf-{options.what}" + ("-compiled" if options.compile else "")
    data = {"benchmark": name, "config": config, "environment": made_with, "results": results}
    write_json(options.out or Path(f"results/benchmark-{name}-{options.device.split(':')[0]}.json"), data)
    print(f"{name}: {results['ours_tokens_per_second']:.0f} tokens/s attached, ", end="")
    print(f"{results['baseline_tokens_per_second']:.0f} untouched; speed {results['speed']:.3f}")


if __name__ == "__main__":
    main()
