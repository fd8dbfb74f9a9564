"""Context growth: train on short windows, then read ever longer ones. Units are lines.

Does a prediction get worse when the model is shown more context than it was trained with? ``config.py`` has the
settings, ``presets.py`` the runs that have a name, ``measure.py`` what is done with one variant.
"""

from contentrope.experiments.growth.config import GrowthConfig
from contentrope.experiments.growth.measure import Growth, run
from contentrope.experiments.growth.presets import PRESETS
from contentrope.experiments.sizes import ModelSize

__all__ = ["PRESETS", "Growth", "GrowthConfig", "ModelSize", "run"]
