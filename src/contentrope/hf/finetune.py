"""Fine-tuning a Hugging Face model with addresses: what the training engine calls, the gate, LoRA.

Shapes: rows, seq (tokens), vocab.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.errors import InputError
from contentrope.hf.adapter import HOME, Adapter, adapter_of
from contentrope.hf.addresses import NAME
from contentrope.hf.losses import token_losses
from contentrope.hf.probe import rotary_modules
from contentrope.training import Batch, Batches

NEW_LEARN_FASTER = 10.0
"""What a conversion adds starts at zero, and has to go far; what the model knew should not be shaken meanwhile."""
GATE_SHARE = 0.25
"""Of the training, in which a gate falls from global to local positions. Longer leaves too little time to learn."""
MOST_DIGITS = 18
"""Of a number that fits into 64 bits; a longer one names no units."""


class CausalLM(nn.Module):
    """A causal language model called as the training engine and the evaluation do: ids in, logits out.

    ``model`` may have addresses or not, and may be wrapped by PEFT.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        adapter: Adapter | None = next((vars(m)[HOME] for m in model.modules() if HOME in vars(m)), None)
        self.segmenter = None if adapter is None else adapter.segmenter
        self.window = 0 if adapter is None else adapter.window
        self._moved: Tensor | None = None
        if adapter is not None:
            # Rules keep tables by device; one that is first made inside a compiled update would have it compiled twice.
            token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
            self._positions(token, gate=torch.zeros(1, device=model.device))
            for module in rotary_modules(model):
                # Behind the adapter's own hook, which knows one gate for all calls.
                module.register_forward_pre_hook(self._place, with_kwargs=True)

    def forward(
        self,
        ids: Int[Tensor, "rows seq"],
        gate: Float[Tensor, "rows"] | None = None,
        **marks: Bool[Tensor, "rows seq"],
    ) -> Float[Tensor, "rows seq vocab"]:
        """``gate``: how far positions are global (1) or local (0), instead of the model's own gate. ``marks``:
        ``unit_ends`` and ``unit_memory``, which a model without addresses has no use for: it reads one text.

        A tensor, as a captured update must not know it by value. Not with a near window, whose positions are global.
        """
        if gate is not None and self.window:
            raise InputError(f"a gate between positions: with window={self.window} they are the model's own")
        self._moved = None if gate is None else self._positions(ids, gate)
        logits = self.model(input_ids=ids, use_cache=False, **self._known(marks)).logits
        self._moved = None
        return logits

    def token_losses(
        self, rows: Int[Tensor, "rows tokens"], **marks: Bool[Tensor, "rows tokens-1"]
    ) -> Float[Tensor, "rows tokens-1"]:
        """Minus the log probability of every token after its row's first, without the logits of all at once."""
        return token_losses(self.model, rows, **self._known(marks))

    def _known(self, marks: dict[str, Tensor]) -> dict[str, Tensor]:
        return {} if self.segmenter is None else marks

    def rate_factor(self, name: str) -> float:
        """How fast a parameter learns, as the training engine asks: addresses and LoRA are new, all else is not."""
        return NEW_LEARN_FASTER if f"{NAME}." in name or ".lora_" in name else 1.0

    def _positions(self, ids: Tensor, gate: Tensor) -> Float[Tensor, "rows seq"]:
        assert self.segmenter is not None, "only a model with units has positions to move"
        units, _ = self.segmenter.advance(self.segmenter.initial(len(ids), ids.device), ids)
        everywhere = torch.arange(ids.shape[1], device=ids.device)
        return units.local + gate[:, None] * (everywhere - units.local)

    def _place(self, rotary: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if self._moved is None:
            return args, kwargs
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": self._moved}
        hidden, _, *rest = args
        return (hidden, self._moved, *rest), kwargs


class Gated:
    """Batches with the gate of their step: it falls from 1 to 0 within the first ``fall`` steps."""

    def __init__(self, batches: Batches, fall: int) -> None:
        self.batches, self.fall = batches, fall

    def at(self, step: int, rows: int, seed: int) -> Batch:
        batch = self.batches.at(step, rows, seed)
        gate = torch.full((rows,), max(0.0, 1.0 - step / self.fall), device=batch.targets.device)
        return replace(batch, inputs={**batch.inputs, "gate": gate})


def with_lora(model: Any, rank: int) -> Any:
    """The model as PEFT wraps it: low-rank changes to all linear layers and the addresses are trained."""
    from peft import LoraConfig, get_peft_model

    changes = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", modules_to_save=[NAME], task_type="CAUSAL_LM"
    )
    return get_peft_model(model, changes)


@torch.no_grad()
def lie_back(model: nn.Module, tokens: int) -> None:
    """Give addresses that put every completed unit so many ``tokens`` before the open one, whatever its content.

    A long unit away, all its tokens come before those of the open unit, at distances that the model was trained with.
    So it reads well before anything is trained, though it cannot tell units apart.
    """
    adapter = adapter_of(model)
    for rotary, address in zip(adapter.rotaries, adapter.addresses.by_turning, strict=True):
        bias = address.project.bias
        bias.copy_((-tokens * rotary.frequency).repeat(rotary.heads).to(bias))


def units_named(name: str) -> str | int:
    """What :func:`contentrope.hf.attach` takes for units named on a command line.

    >>> units_named("line"), units_named("64")
    ('line', 64)
    """
    return int(name) if name.isdecimal() and len(name) <= MOST_DIGITS else name
