"""The training loop: batches, updates, checkpoints, metrics, several processes.

Read ``loop.py``, then ``steps.py`` (one update, eager or captured) and ``batches.py`` (what an update sees);
``retrieval.py`` makes rows that teach a model to look far back, ``distributed.py`` shares an update among several
processes, ``together.py`` trains several seeds in one update,
``checkpoint.py`` and ``metrics.py`` write its course down.
"""

from contentrope.training.batches import IGNORED, Batch, Batches, Windows
from contentrope.training.config import TrainConfig
from contentrope.training.loop import train
from contentrope.training.metrics import MetricsLog, StepReport, read_metrics
from contentrope.training.retrieval import Mixed, RetrievalRows
from contentrope.training.steps import DivergedError, Stepper, stepper_for
from contentrope.training.team import ProcessError, local_device
from contentrope.training.together import train_together

__all__ = [
    "IGNORED",
    "Batch",
    "Batches",
    "DivergedError",
    "MetricsLog",
    "Mixed",
    "ProcessError",
    "RetrievalRows",
    "StepReport",
    "Stepper",
    "TrainConfig",
    "Windows",
    "local_device",
    "read_metrics",
    "stepper_for",
    "train",
    "train_together",
]
