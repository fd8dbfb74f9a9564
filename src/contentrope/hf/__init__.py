"""Addresses for Hugging Face models: attach, fine-tune, generate, save.

import contentrope.hf as chf

chf.attach(model, tokenizer, units="line", positions="global")
model.generate(...)
chf.detach(model)
"""

from contentrope.hf.adapter import adapter_of
from contentrope.hf.api import attach, detach, set_positions
from contentrope.hf.files import load, save

__all__ = ["adapter_of", "attach", "detach", "load", "save", "set_positions"]
