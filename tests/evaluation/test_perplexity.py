"""Perplexity equals the plain definition, computed one token at a time in float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from contentrope.errors import InputError
from contentrope.evaluation.perplexity import perplexity, perplexity_of, token_losses, windows_of


class RunningMean(nn.Module):
    """Predicts from the mean of all tokens so far, so that where a window begins matters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 9)

    def forward(self, ids: Tensor) -> Tensor:
        sums = self.embedding(ids).cumsum(1)
        return self.head(self.dropout(sums / torch.arange(1, ids.shape[1] + 1).unsqueeze(-1)))


@torch.no_grad()
def by_hand(model: RunningMean, data: Tensor, length: int, windows: int) -> float:
    losses = []
    for window in range(windows):
        for place in range(length):
            start = window * length
            context = data[start : start + place + 1].unsqueeze(0)
            probabilities = model(context)[0, -1].softmax(-1)
            losses.append(-math.log(probabilities[data[start + place + 1]]))
    return math.exp(math.fsum(losses) / len(losses))


@pytest.fixture
def model() -> RunningMean:
    torch.manual_seed(0)
    return RunningMean().double().eval()


DATA = torch.arange(101) * 31 % 9


@pytest.mark.parametrize(("length", "windows"), [(1, 100), (7, 14), (10, 10), (50, 2), (100, 1)])
@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_it_is_the_mean_over_all_tokens(model: RunningMean, length: int, windows: int, batch_tokens: int) -> None:
    measured = perplexity(model, DATA, length, batch_tokens=batch_tokens)
    assert measured == pytest.approx(by_hand(model, DATA, length, windows), rel=1e-12)


def test_max_tokens_keeps_whole_windows(model: RunningMean) -> None:
    measured = perplexity(model, DATA, 10, max_tokens=39)
    assert measured == pytest.approx(by_hand(model, DATA, 10, windows=3), rel=1e-12)


def test_a_model_that_knows_nothing_has_the_size_of_the_vocabulary(model: RunningMean) -> None:
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert perplexity(model, DATA, 10) == pytest.approx(9.0)
    assert perplexity(model.bfloat16(), DATA, 10) == pytest.approx(9.0)


def test_windows_share_only_the_target_of_the_last_token() -> None:
    assert windows_of(DATA, 10).tolist() == [DATA[start : start + 11].tolist() for start in range(0, 100, 10)]
    assert windows_of(DATA, 10, max_tokens=29).tolist() == windows_of(DATA[:21], 10).tolist()
    with pytest.raises(InputError, match=r"data has shape \(1, 101\)"):
        windows_of(DATA[None], 10)


@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_losses_keep_their_places(model: RunningMean, batch_tokens: int) -> None:
    losses = token_losses(model, windows_of(DATA, 10), batch_tokens)
    assert losses.shape == (10, 10)
    alone = by_hand(model, DATA[40:48], 7, windows=1)
    assert perplexity_of(losses[4, :7]) == pytest.approx(alone, rel=1e-12)


def test_narrow_logits_are_widened_before_the_loss(model: RunningMean) -> None:
    assert token_losses(model, windows_of(DATA, 10)).dtype == torch.float64
    assert token_losses(model.bfloat16(), windows_of(DATA, 10)).dtype == torch.float32


def test_a_hopeless_model_is_infinitely_perplexed() -> None:
    assert perplexity_of(torch.tensor([1e4, 0.0])) == math.inf


def test_modes_and_gradients_are_left_as_they_were(model: RunningMean) -> None:
    model.train()
    model.dropout.eval()
    first, second = perplexity(model, DATA, 10), perplexity(model, DATA, 10)
    assert first == second
    assert (model.training, model.head.training, model.dropout.training) == (True, True, False)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("length", "max_tokens"), [(101, None), (20, 19), (0, None)])
def test_a_window_that_is_too_long_is_refused(model: RunningMean, length: int, max_tokens: int | None) -> None:
    with pytest.raises(InputError, match="length"):
        perplexity(model, DATA, length, max_tokens=max_tokens)
