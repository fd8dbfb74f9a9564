"""What every process of test_processes.py runs: the experiment's command, on a few books."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from experiments.__main__ import main
from experiments.open_model import models
from experiments.open_model.config import PRESETS
from tests.experiments.open_model.tiny import FewBooks, tiny

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    models.long_context = FewBooks  # type: ignore[assignment]
    PRESETS["tiny"] = tiny(folder / "model", measures=("perplexity",))
    status = main(["open_model", "--preset", "tiny", "--device", "cpu", "--out", str(folder / "out"), *sys.argv[2:]])
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads may abort a process that lets go of its last tensor while the interpreter ends.
    os._exit(status)
