"""The commands of ``contentrope``; ``info``, the shortest of them, stands here, the others have files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import HelptextFromCommentsOff, subcommand

from contentrope import schemes
from contentrope.attention import backend_status
from contentrope.cli import Command
from contentrope.cli.config_file import with_config
from contentrope.cli.evaluate import Evaluate
from contentrope.cli.finetune import Finetune
from contentrope.cli.generate import Generate
from contentrope.cli.index import Index
from contentrope.cli.parsing import parse_words
from contentrope.cli.serve import Serve
from contentrope.cli.train import Train
from contentrope.results import environment


@dataclass(frozen=True)
class Info:
    """Show versions, devices, schemes and attention backends."""

    def run(self) -> None:
        here = environment()
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts = {name: here[name] or "unknown" for name in ("contentrope", "torch", "python", "git", "cpu", "threads")}
        facts["gpu"] = ", ".join(gpus) or "none"
        facts["schemes"] = ", ".join(schemes.names())
        facts |= {f"backend {name}": status for name, status in backend_status().items()}
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        for name, value in facts.items():
            table.add_row(escape(name), escape(str(value)))
        Console().print(table)


COMMANDS: Any = (
    Annotated[HelptextFromCommentsOff[Train], subcommand("train")]
    | Annotated[HelptextFromCommentsOff[Finetune], subcommand("finetune")]
    | Annotated[HelptextFromCommentsOff[Evaluate], subcommand("evaluate")]
    | Annotated[HelptextFromCommentsOff[Generate], subcommand("generate")]
    | Annotated[HelptextFromCommentsOff[Index], subcommand("index")]
    | Annotated[HelptextFromCommentsOff[Serve], subcommand("serve")]
    | Annotated[HelptextFromCommentsOff[Info], subcommand("info")]
)
DESCRIPTION = """Content-based addressing: RoPE inside a text unit, a content-derived rotation per unit.

Example: contentrope train --text stdlib --variant content --out runs/mine"""


def parse(words: Sequence[str]) -> Command:
    """The command that the words ask for; wrong ones are an :class:`InputError` that says what is allowed."""
    if words[:1] == ["finetune"]:
        words = with_config(words, Finetune)
    command: Command = parse_words(COMMANDS, words, "contentrope", DESCRIPTION)
    return command
