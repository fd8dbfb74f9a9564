"""What each process of tests/parallel does: cases read together and alone, and how far the two are apart.

python -m tests.parallel.program RANK SIZE FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import contentrope as cr
from contentrope import parallel
from contentrope.context import AddressedContext
from contentrope.errors import BackendError, InputError
from tests.support import LEARNED, TERMINATOR, VOCABULARY, WINDOW, lively_model, random_ids
from tests.test_causality import LeakyContext

BATCH, PART = 2, 11
Masks = dict[str, Tensor]


def short_units(length: int) -> tuple[Tensor, Masks]:
    return random_ids(BATCH, length, seed=1), {}


def one_unit_for_all(length: int) -> tuple[Tensor, Masks]:
    """Nobody ends a unit but the very last token: every process holds a part of the same one."""
    ids = torch.randint(1, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(2))
    ids[0, -1] = TERMINATOR
    return ids, {}


def ends_at_the_cut(length: int) -> tuple[Tensor, Masks]:
    ids, _ = short_units(length)
    ids[0, PART - 1] = ids[1, PART] = TERMINATOR
    return ids, {}


def padded(length: int) -> tuple[Tensor, Masks]:
    ids, _ = short_units(length)
    valid = torch.rand(BATCH, length, generator=torch.Generator().manual_seed(3)) < 0.7
    valid[0, -PART - 2 :] = False  # all that the last process was given of a row
    # A unit of few tokens over many columns, of which the first are in another process.
    ids[1, : PART + 3] = 1
    valid[1, : PART + 3] = True
    valid[1, 2 : PART - 1] = False
    return ids, {"valid": valid}


def marked(length: int) -> tuple[Tensor, Masks]:
    ids, _ = short_units(length)
    return ids, {"memory": torch.rand(BATCH, length, generator=torch.Generator().manual_seed(4)) < 0.5}


def given_ends(length: int) -> tuple[Tensor, Masks]:
    ids, _ = short_units(length)
    return ids, {"ends": torch.rand(BATCH, length, generator=torch.Generator().manual_seed(5)) < 0.2}


TEXTS: dict[str, Callable[[int], tuple[Tensor, Masks]]] = {
    "short units": short_units,
    "one unit for all": one_unit_for_all,
    "ends at the cut": ends_at_the_cut,
    "padding": padded,
    "memory": marked,
    "given ends": given_ends,
}
MODELS: dict[str, dict[str, Any]] = {
    "content": {},
    "content, long units": {"max_unit_length": 64},
    "content, units of one token": {"max_unit_length": 1},
    "content, learned": {"options": LEARNED, "kv_heads": 1},
    "content, reference": {"backend": "reference"},
    "local": {"scheme": "local"},
    "content, window": {"options": WINDOW},
    "content, window over several processes": {"options": {**WINDOW, "window": PART + 3}, "kv_heads": 1},
    "local, window": {"scheme": "local", "options": {**LEARNED, "window": 5}, "backend": "reference"},
}
TEXTS_OF = {
    "content": TEXTS,
    "content, long units": TEXTS,
    "content, window": ("short units", "padding", "memory"),
    "local, window": ("padding",),
}
CASES = [(model, text) for model in MODELS for text in TEXTS_OF.get(model, ("short units", "padding"))]


def made(model: str) -> cr.Transformer:
    return lively_model(**{"scheme": "content", **MODELS[model]})


def own_part(x: Tensor) -> Tensor:
    rank = dist.get_rank()
    return x[:, rank * PART : (rank + 1) * PART]


def shared(model: cr.Transformer, ids: Tensor, masks: Masks) -> Tensor:
    given = {name: own_part(mask) for name, mask in masks.items()}
    return model(own_part(ids), group=dist.group.WORLD, **given)


def gradients(model: cr.Transformer, logits: Tensor, weights: Tensor) -> list[Tensor]:
    model.zero_grad()
    (logits * weights).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def compared(model: cr.Transformer, ids: Tensor, masks: Masks) -> dict[str, float]:
    """The largest difference of logits, and of the gradients of weights relative to the largest of each."""
    weights = torch.randn(*ids.shape, VOCABULARY, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    if "valid" in masks:
        weights = weights * masks["valid"][..., None]
    whole = model(ids, **masks)
    expected = gradients(model, whole, weights)
    part = shared(model, ids, masks)
    found = gradients(model, part, own_part(weights))
    for grad in found:
        dist.all_reduce(grad)
    apart = [(a - b).abs().max() / b.abs().max().clamp(min=1) for a, b in zip(found, expected, strict=True)]
    valid = own_part(masks["valid"]) if "valid" in masks else torch.ones(BATCH, PART, dtype=torch.bool)
    return {
        "logits": float(torch.where(valid[..., None], part - own_part(whole), 0.0).detach().abs().max()),
        "gradients": float(torch.stack(apart).max()),
    }


def causal(model: cr.Transformer, ids: Tensor, masks: Masks) -> bool:
    """Whether tokens before a changed one have the same logits to the last bit, on either side of a cut."""
    length, same = ids.shape[1], True
    with torch.no_grad():
        before = shared(model, ids, masks)
        for column in (2, PART - 1, PART + 1, length - 2):
            changed = ids.clone()
            changed[:, column:] = random_ids(BATCH, length - column, seed=column, end_rate=0.4)
            untouched = max(0, min(PART, column - dist.get_rank() * PART))
            # No process may stop early: the others would wait for it.
            same &= torch.equal(shared(model, changed, masks)[:, :untouched], before[:, :untouched])
    return same


def sent(model: cr.Transformer, ids: Tensor) -> list[int]:
    """How many numbers a process sends in each exchange of a call, in order."""
    with mock.patch.object(dist, "all_gather", wraps=dist.all_gather) as gather, torch.no_grad():
        shared(model, ids, {})
    return [call.args[1].numel() for call in gather.call_args_list]


def refused(run: Callable[[], object]) -> str:
    try:
        run()
    except (InputError, BackendError) as error:
        return str(error)
    return ""


def refusals(ids: Tensor) -> dict[str, str]:
    group, part, model = dist.group.WORLD, own_part(ids), made("content")
    other = part[:, : PART - dist.get_rank()]
    valid = {"valid": torch.ones_like(part, dtype=torch.bool)} if dist.get_rank() else {}
    return {
        "unlike lengths": refused(lambda: model(other, group=group)),
        "unlike masks": refused(lambda: model(part, group=group, **valid)),
        "cache": refused(lambda: model(part, group=group, cache=model.new_cache(BATCH))),
        "scheme": refused(lambda: lively_model("rope")(part, group=group)),
        "backend": refused(lambda: lively_model("content", backend="flex")(part, group=group)),
        "no member": refused(lambda: model(part, group=dist.GroupMember.NON_GROUP_MEMBER)),
        "nothing": refused(lambda: model(part, group=group)),
    }


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size)
    length = size * PART
    found: dict[str, Any] = {}
    for model, text in CASES:
        read = made(model), *TEXTS[text](length)
        found[f"{model}, {text}"] = {**compared(*read), "causal": causal(*read)}
    text = short_units(length)
    # Faults that must be found: a cut unit's address made of a part, addresses of units that are open, and a window
    # of which no more is exchanged than of a unit.
    with mock.patch.object(parallel.Share, "whole_units", lambda share, sums, units, slot: sums):
        found["parts for wholes"] = compared(made("content"), *text)
    with mock.patch("contentrope.schemes.addressed.AddressedContext", LeakyContext):
        found["leak"] = causal(made("content"), *text)
    with mock.patch("contentrope.schemes.addressed.WindowedContext._reach", AddressedContext._reach):
        found["near keys that stay"] = compared(made("content, window over several processes"), *text)
    short = lively_model("content", max_unit_length=4, options={"window": 3})
    found |= {"sent": sent(made("content"), text[0]), "sent, window": sent(short, text[0])}
    found["refusals"] = refusals(text[0])
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    while len(list(folder.glob("found-*.json"))) < size:  # who leaves first closes its connections
        time.sleep(0.05)
    os._exit(0)  # at once: now and then a thread of the process group outlives the interpreter, which is then aborted


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
