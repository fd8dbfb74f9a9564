"""What every process of test_trainer.py runs: an attached model, sharded by FSDP2, trained, saved and loaded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import contentrope.hf as chf
from contentrope.training.distributed import whole
from tests.hf.models import TERMINATOR, random_ids, tiny

STEPS = 3
ROWS = 4


def losses_of(model: Any, rows: slice, gather: Any = lambda loss: loss) -> list[float]:
    """Train on the same rows at every step; ``gather`` averages over the processes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        ids = random_ids(ROWS, 15, seed=step)[rows]
        optimizer.zero_grad()
        predictions = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(predictions.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(gather(loss.detach())))
    return losses


def new_model() -> Any:
    model = tiny("llama").train()
    chf.attach(model, units={TERMINATOR}, max_length=7, learn_competition=True)
    model.gradient_checkpointing_enable()
    return model


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = new_model()
    mesh = init_device_mesh("cpu", (size,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def mean(loss: Tensor) -> Tensor:
        dist.all_reduce(loss)
        return loss / size

    share = ROWS // size
    losses = losses_of(model, slice(rank * share, (rank + 1) * share), mean)
    weight = whole(model.state_dict()["contentrope.by_turning.0.project.weight"])
    chf.save(model, folder / f"rank{rank}")
    with torch.no_grad():
        for p in model.contentrope.parameters():
            p.zero_()
    chf.load(model, folder / f"rank{rank}")
    again = whole(model.state_dict()["contentrope.by_turning.0.project.weight"])
    result = {"losses": losses, "weight": weight.tolist(), "loaded": bool(torch.equal(again, weight))}
    (folder / f"results-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # The mesh keeps Gloo's threads alive. One that lets go of its last tensor while the interpreter ends aborts the
    # process, on a busy machine now and then; all there is to check has been written by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
