"""One text shared by several processes: each holds a slice, and finds the logits and gradients of one process.

torchrun --nproc_per_node 2 examples/context_parallel.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

import contentrope as cr


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and the same text everywhere
    config = cr.ModelConfig(vocab_size=30, dim=32, layers=2, heads=2, scheme="content", terminators=(0,))
    model = cr.Transformer(config).double()
    text = torch.randint(0, 30, (1, 64 * size + 1))

    ids, targets = (part.chunk(size, dim=1)[rank] for part in (text[:, :-1], text[:, 1:]))
    logits = model(ids, group=dist.group.WORLD)
    (F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (64 * size)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # the sum, not the mean: each has the gradient of its own tokens

    alone = cr.Transformer(config).double()
    alone.load_state_dict(model.state_dict())
    whole = alone(text[:, :-1])
    F.cross_entropy(whole.flatten(0, 1), text[0, 1:]).backward()
    torch.testing.assert_close(logits, whole.chunk(size, dim=1)[rank], rtol=0, atol=1e-12)
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-12)
    print(f"rank {rank}: {ids.shape[1]} of {text.shape[1] - 1} tokens; logits and gradients are those of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
