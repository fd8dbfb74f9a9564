"""``contentrope info``"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console

from contentrope import schemes
from contentrope.attention import backend_status
from contentrope.cli.tables import facts_table
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
        Console().print(facts_table(facts))
