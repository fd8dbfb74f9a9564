"""What a folder with a converted model says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CARD = """---
library_name: contentrope
tags: [contentrope]
---

# A model with content-based addresses

Load it with `contentrope.hf.from_pretrained`, and with nothing else:

```python
import contentrope.hf as chf
from transformers import AutoTokenizer

model = chf.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")
```

On the command line: `contentrope generate --model {folder} --prompt "Once"`. Needs `pip install contentrope[hf]`.

{contents}
`AutoModelForCausalLM`, `pipeline` and PEFT's classes know no addresses: without them this is another model. They refuse
the folder, as `config.json` has a model type of its own.

| setting | |
| --- | --- |
{rows}
"""
LORA = """The folder holds the addresses and the changes that LoRA made to `{base}`, which must be there too. If it lies
elsewhere: `chf.from_pretrained("{folder}", base="...")`.
"""
WHOLE = "The folder holds all weights and the addresses."
SHOWN = {
    "units": "units",
    "max_length": "longest unit, in tokens",
    "gate": "positions: 0 local, 1 global",
    "competition": "competition",
    "learn_competition": "competition is learned",
    "anchors": "anchors",
    "reader": "reader",
}


def card(settings: Mapping[str, Any], folder: str, base: str | None) -> str:
    """The model card of a converted model; ``base``: what LoRA changes, if it does.

    >>> "base" in card({"units": {}}, "mine", "the-base") and "| longest" in card({"max_length": 8}, "mine", None)
    True
    """
    rows = "\n".join(f"| {words} | `{settings[name]}` |" for name, words in SHOWN.items() if name in settings)
    contents = WHOLE if base is None else LORA.format(base=base, folder=folder)
    return CARD.format(folder=folder, contents=contents, rows=rows)
