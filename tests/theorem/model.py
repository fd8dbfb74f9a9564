"""The attention scores of a whole model, and random texts of ids for it."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.context import Projected
from tests.support import TERMINATOR, VOCABULARY


class Weights:
    """Reads the attention weights of a model, of any scheme, by letting it attend to one-hot values."""

    def __init__(self, model: cr.Transformer) -> None:
        self.by_layer: list[Tensor] = []
        make_context = model.scheme.context

        def probed(chunk: Any) -> Any:
            context = make_context(chunk)
            attend = context.attend

            def attend_and_look(layer: int, hidden: Tensor, projected: Projected) -> Tensor:
                query, key, value, _ = projected
                parts = []
                for part in torch.eye(value.shape[1], dtype=value.dtype).split(value.shape[-1], dim=1):
                    one_hot = torch.zeros_like(value)
                    one_hot[..., : part.shape[1]] = part[None, :, None]
                    parts.append(attend(layer, hidden, Projected(query, key, one_hot))[..., : part.shape[1]])
                self.by_layer.append(torch.cat(parts, dim=-1)[0].transpose(0, 1))
                return attend(layer, hidden, projected)

            context.attend = attend_and_look
            return context

        model.scheme.context = probed


def written(units: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
    """A text as ids, and the columns of each unit."""
    lengths = torch.tensor([len(unit) for unit in units])
    columns = torch.arange(int(lengths.sum())).split(lengths.tolist())
    return torch.tensor([[token for unit in units for token in unit]]), list(columns)


def first_layer_scores(model: cr.Transformer, units: list[list[int]], key: int, query: int) -> Tensor:
    """Scores (heads, queries, keys) of one unit's tokens with another's, up to a constant per query."""
    weights = Weights(model)
    ids, columns = written(units)
    with torch.no_grad():
        model(ids)
    logs = weights.by_layer[0][:, columns[query]][:, :, columns[key]].log()
    return logs - logs[..., :1]


some_unit = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=5).map(lambda unit: [*unit, TERMINATOR])
some_units = st.lists(some_unit, min_size=1, max_size=3)
