"""Result files: JSON that is either whole or not there, and a note of the machine it was made on.

Reports read these files without torch, so torch is imported only where a version or device is asked for.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from contentrope.errors import InputError
from contentrope.files import write_whole
from contentrope.version import __version__

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""What tells the threads of an OpenMP runtime, GNU's or LLVM's, how to wait."""


def write_json(path: str | Path, data: Any) -> None:
    """Write ``data`` as JSON so that a crash leaves either the old file or the new one, never half of one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder, "run", "results.json"), {"loss": 1.5})
    ...     read_json(Path(folder, "run", "results.json"))
    {'loss': 1.5}
    """
    write_whole(path, json_bytes(data, Path(path).name))


def json_bytes(data: Any, name: str) -> bytes:
    """``data`` as JSON, as a file called ``name`` holds it; refused where JSON would lose or reject something."""
    for where, problem in _unwritable(data, ""):
        raise InputError(f"{name}: {where or 'the value'} {problem}")
    return (json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")


def read_json(path: str | Path) -> Any:
    """The data of a file written by :func:`write_json`; a damaged one is named, with the place where it breaks."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise InputError(f"{path} is nested too deep for a file of ours; restore a whole copy") from error
    except ValueError as error:  # from what is no JSON, no UTF-8, or a number of thousands of digits
        raise InputError(f"{path} is truncated or not JSON ({error}); restore a whole copy") from error


def finite_or_none(value: Any) -> Any:
    """``value`` with None for NaN and infinity, in lists and dictionaries too: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a number depends on besides the settings: versions, machine, commit, time.

    Where the source was copied without its history, the variable CONTENTROPE_COMMIT may name the commit.

    >>> sorted(environment())
    ['contentrope', 'cpu', 'device', 'git', 'python', 'threads', 'time', 'torch', 'waiting']
    """
    import torch

    return {
        "contentrope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
        "waiting": " ".join(f"{name}={os.environ[name]}" for name in WAITING if name in os.environ) or "default",
        "git": _commit(Path(__file__).resolve()) or os.environ.get("CONTENTROPE_COMMIT"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _unwritable(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """(key path, problem) of everything that JSON would lose or reject."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield f"{where}[{key!r}]", "has a key that is not a string; convert it with str()"
            else:
                yield from _unwritable(key, f"the key {key!r} of {where or 'the value'}")
            yield from _unwritable(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _unwritable(inner, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield where, f"is {value}, which JSON cannot hold; leave it out or write None"
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        yield where, f"is {value!r}, with half of a character, which a file cannot hold; leave it out"
    elif not (value is None or isinstance(value, str | int | float)):
        yield where, f"is a {type(value).__name__}, which JSON cannot hold; convert it first"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit(file: Path) -> str | None:
    """The commit ``file`` belongs to, marked if the tree has changes; None outside a checkout.

    A package installed inside somebody else's checkout is not tracked there, hence the first command.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
