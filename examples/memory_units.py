"""Memory units: pieces of context that see only themselves, so a reader does not notice their order.

python examples/memory_units.py
"""

import torch

import contentrope as cr

NEWLINE, READ = 0, 1
"""A newline ends a unit; everything before the first READ is memory."""


def main() -> None:
    torch.manual_seed(0)
    config = cr.ModelConfig(
        vocab_size=40, dim=32, layers=3, heads=2, scheme="content", terminators=(NEWLINE,), reader=(READ,)
    )
    model = cr.Transformer(config).double().eval()
    for parameter in model.parameters():  # an untrained model has no addresses: give it some
        torch.nn.init.normal_(parameter, std=0.2)

    units = [[*torch.randint(2, 40, (n,)).tolist(), NEWLINE] for n in (5, 8, 3, 6)]
    question = [READ, *torch.randint(2, 40, (7,)).tolist()]

    def answer(order: list[int]) -> torch.Tensor:
        ids = [token for i in order for token in units[i]] + question
        with torch.no_grad():
            return model(torch.tensor([ids]))[0, -len(question) :]

    written, shuffled, edited = answer([0, 1, 2, 3]), answer([2, 0, 3, 1]), answer([0, 1, 3])
    print(f"units in another order: logits move by {(written - shuffled).abs().max():.1e}")
    print(f"a unit left out:        logits move by {(written - edited).abs().max():.1e}")
    assert torch.allclose(written, shuffled, rtol=0, atol=1e-10)
    assert not torch.allclose(written, edited, rtol=0, atol=1e-4)


if __name__ == "__main__":
    main()
