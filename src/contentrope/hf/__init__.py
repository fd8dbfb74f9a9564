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
    from contentrope.hf.checkpoints import from_pretrained
    from contentrope.hf.files import load, save
    from contentrope.hf.starting import lie_back
    from contentrope.hf.writing import save_pretrained

_HOMES = {
    "adapter_of": "adapter",
    "attach": "api",
    "detach": "api",
    "from_pretrained": "checkpoints",
    "lie_back": "starting",
    "load": "files",
    "save": "files",
    "save_pretrained": "writing",
    "set_positions": "api",
}
__all__ = [
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
    """Imported when asked for: what looks at folders alone must not need transformers."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
