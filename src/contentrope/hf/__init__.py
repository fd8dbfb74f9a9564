"""Addresses for Hugging Face models: attach, fine-tune, generate, save.

import contentrope.hf as chf

chf.attach(model, tokenizer, units="line", positions="global")
model.generate(...)
chf.save_pretrained(model, "converted", tokenizer)
model = chf.from_pretrained("converted")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contentrope.hf.adapter import adapter_of
    from contentrope.hf.api import attach, detach, set_positions
    from contentrope.hf.card import Facts
    from contentrope.hf.finetune import lie_back
    from contentrope.hf.loading import from_pretrained, load
    from contentrope.hf.saving import save, save_pretrained

_MODULES = {
    "adapter": ["adapter_of"],
    "api": ["attach", "detach", "set_positions"],
    "card": ["Facts"],
    "loading": ["from_pretrained", "load"],
    "saving": ["save", "save_pretrained"],
    "finetune": ["lie_back"],
}
__all__ = [
    "Facts",
    "adapter_of",
    "attach",
    "detach",
    "from_pretrained",
    "lie_back",
    "load",
    "save",
    "save_pretrained",
    "set_positions",
]


def __getattr__(name: str) -> Any:
    """A public name, imported on first use: looking at folders must not need transformers."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
