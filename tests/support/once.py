"""What takes long and is made once, however many workers the tests are spread over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """A folder that all workers of this run share, and the JSON that ``make`` gave when it filled it.

    The first worker that asks makes it, the others wait. Tests may change the folder only where no other test looks.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    result = folder.with_suffix(".json")
    with FileLock(folder.with_suffix(".lock")):
        if not result.exists():
            folder.mkdir(exist_ok=True)
            result.write_text(json.dumps(make(folder)))
    return folder, json.loads(result.read_text())
