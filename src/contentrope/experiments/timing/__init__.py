"""Timing: how much longer a whole training step takes with addresses than with plain RoPE.

``config.py`` has the settings, ``rows.py`` the sizes and lengths, ``presets.py`` the runs that have a name,
``batches.py`` what a step sees, ``baseline.py`` RoPE as fast as it can be, ``gauge.py`` clock and memory, ``race.py``
steps in turn, ``measure.py`` what is done with one row.
"""

from contentrope.experiments.timing.config import TimingConfig
from contentrope.experiments.timing.measure import Timing, run
from contentrope.experiments.timing.presets import PRESETS

__all__ = ["PRESETS", "Timing", "TimingConfig", "run"]
