"""The model card of a converted model: what it is, how it came about, what was measured, how to load it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TEXT = """---
{front}
---

# A model with content-based addresses

{summary}Load it with `contentrope.hf.from_pretrained`, and with nothing else:

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

## Settings

{settings}
{training}{measured}"""
LORA = """The folder holds the addresses and the changes that LoRA made to `{base}`, which must be there too. If it lies
elsewhere: `chf.from_pretrained("{folder}", base="...")`.
"""
WHOLE = "The folder holds all weights and the addresses."
NAMED = {
    "units": "units",
    "max_length": "longest unit, in tokens",
    "window": "near window, in tokens",
    "gate": "positions: 0 local, 1 global",
    "competition": "competition",
    "learn_competition": "competition is learned",
    "reader": "reader",
}
"""Settings of the addresses, in words."""
ON_THE_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
TAGS = ("contentrope", "long-context", "text-generation")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a model card says beside the settings of the addresses; what is left out, the card leaves out."""

    base: str | None = None
    """The model that was converted; None: where this one was loaded from."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """In words: the data by name and hash, steps, tokens, learning rate."""
    measured: Sequence[Mapping[str, Any]] = ()
    """The rows of a table, all with the same columns."""
    scored: str = ""
    """What was measured, in words."""
    summary: str = ""
    """What came of it, in a sentence."""


def card(
    settings: Mapping[str, Any], folder: str, base: str | None, *, lora: bool = False, facts: Facts | None = None
) -> str:
    """The model card of a converted model. ``base``: the model it was made from; ``lora``: and which it needs.

    >>> "base_model" in card({"units": {}}, "mine", "the/base", lora=True)
    True
    >>> "| longest" in card({"max_length": 8}, "mine", None)
    True
    """
    facts, base = facts or Facts(), _on_one_line(base)
    rows = [{"setting": words, "": f"`{settings[name]}`"} for name, words in NAMED.items() if name in settings]
    if base is not None:
        rows.insert(0, {"setting": "made from", "": f"`{base}`"})
    trained = [{"training": _on_one_line(str(name)), "": value} for name, value in facts.training.items()]
    measured = f"{facts.scored}\n\n{table(facts.measured)}" if facts.measured else ""
    return TEXT.format(
        front=_front(base),
        summary=f"{_on_one_line(facts.summary)}\n\n" if facts.summary else "",
        folder=folder,
        contents=LORA.format(base=base, folder=folder) if lora else WHOLE,
        settings=table(rows),
        training=f"\n## Training\n\n{table(trained)}" if trained else "",
        measured=f"\n## Measured\n\n{measured}" if measured else "",
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as Markdown.

    >>> print(table([{"tokens": 512, "before": 3.25}]), end="")
    | tokens | before |
    | --- | --- |
    | 512 | 3.25 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(map(_cell, row.values())) for row in rows)] if rows else []
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return (_on_one_line(shown) or "").replace("|", "\\|")


def _on_one_line(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())


def _front(base: str | None) -> str:
    """What the hub reads, as YAML: each value is JSON, which YAML contains. It knows models by their names there."""
    found: dict[str, Any] = {"library_name": "contentrope", "pipeline_tag": "text-generation", "tags": list(TAGS)}
    if base is not None and ON_THE_HUB.fullmatch(base) and not os.path.exists(base):
        found["base_model"] = base
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in found.items())
