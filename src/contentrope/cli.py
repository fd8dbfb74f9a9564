"""The command line: ``contentrope reproduce growth`` and ``contentrope info``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from contentrope.errors import BackendError, CacheError, CheckpointError, InputError
from contentrope.experiments.growth import GrowthConfig
from contentrope.experiments.training import DivergedError

EXPECTED_ERRORS = (InputError, BackendError, CacheError, CheckpointError, DivergedError, OSError)


class GrowthOptions(GrowthConfig):
    """Settings of the experiment. The defaults take a few minutes on two CPU cores."""

    def __post_init__(self) -> None:
        """Left to :meth:`checked`: tyro would wrap an error raised while it parses in words of its own."""

    def checked(self) -> GrowthConfig:
        return GrowthConfig(**vars(self))


@dataclass(frozen=True)
class Growth:
    """Train on short windows of text, read longer and longer ones: which scheme keeps its perplexity?"""

    options: GrowthOptions = field(default_factory=GrowthOptions)
    out: Path = Path("runs/growth")
    """Folder for results.json and checkpoints; the same folder again continues where a run stopped."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""


@dataclass(frozen=True)
class Info:
    """Show versions, devices, schemes and attention backends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 refused, 130 stopped with Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        import rich  # noqa: F401
        import tyro  # noqa: F401
    except ImportError as error:
        print(f"the command line needs {error.name}: pip install contentrope[cli]", file=sys.stderr)
        return 2
    try:
        command = _parse(arguments)
        if isinstance(command, Info):
            _show_info()
        else:
            _run_growth(command)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = shlex.join(["contentrope", *arguments])
        print(
            f"\nstopped; what is done is saved. To continue, run the same command again: {again}",
            file=sys.stderr,
        )
        return 130
    return 0


def _parse(arguments: Sequence[str]) -> Growth | Info:
    """Read the command line; a wrong one ends the program with tyro's list of what is allowed."""
    import tyro
    from tyro.conf import OmitArgPrefixes, Suppress, subcommand

    # A union needs two members to become subcommands, hence the hidden None beside the first experiment.
    experiments: Any = Annotated[Growth, subcommand("growth")] | Annotated[None, Suppress]
    reproduce = subcommand(
        "reproduce",
        description="Repeat an experiment and write its results as JSON.",
        constructor_factory=lambda: experiments,
    )
    commands: Any = Annotated[Any, reproduce] | Annotated[Info, subcommand("info")]
    return tyro.cli(
        commands,
        prog="contentrope",
        description="Content-based addressing: RoPE inside a text unit, a content-derived rotation per unit.",
        args=arguments,
        config=(OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _run_growth(command: Growth) -> None:
    from rich.console import Console

    from contentrope.experiments import growth
    from contentrope.experiments.display import perplexity_table, progress_display

    console, config = Console(), command.options.checked()
    with progress_display(console) as progress:
        results = growth.run(config, command.out, progress, command.device)
    rows = {name: results["schemes"][name]["perplexity"] for name in config.schemes}
    console.print(perplexity_table("perplexity by window length, in characters", rows, config.lengths))
    console.print(
        f"Lower is better. Trained on windows of {config.length} characters only: a row that stays level to "
        "the right bears more context than it was trained with, a rising one does not.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"results: {command.out / 'results.json'}", markup=False, highlight=False, soft_wrap=True)


def _show_info() -> None:
    import torch
    from rich.console import Console

    from contentrope import schemes
    from contentrope.attention import backend_status
    from contentrope.experiments.display import facts_table
    from contentrope.results import environment

    here = environment()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    facts = {name: here[name] or "unknown" for name in ("contentrope", "torch", "python", "git", "cpu", "threads")}
    facts["gpu"] = ", ".join(gpus) or "none"
    facts["schemes"] = ", ".join(schemes.names())
    facts |= {f"backend {name}": status for name, status in backend_status().items()}
    Console().print(facts_table(facts))


if __name__ == "__main__":
    sys.exit(main())
