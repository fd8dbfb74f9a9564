"""What lies in a folder with a checkpoint. Asked of the files alone: no optional package is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contentrope.results import read_json

SETTINGS, ADAPTER = "contentrope.json", "adapter_config.json"


def is_checkpoint(folder: str | Path) -> bool:
    """Whether a folder holds a Hugging Face checkpoint, plain or converted."""
    return (Path(folder) / ADAPTER).exists() or "model_type" in _config(Path(folder))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    found = read_json(path) if path.exists() else {}
    return found if isinstance(found, dict) else {}
