"""What all experiments share: variants and seeds, one after the other or several at a time, stopped and taken up again.

``experiment.py`` says what an experiment is, ``run.py`` runs all of one, ``jobs.py`` in several processes,
``models.py`` makes and trains the models.
"""

from contentrope.experiments.suite.experiment import Configured, Evaluated, Experiment, Finished, Tell, Trained
from contentrope.experiments.suite.models import finite_or_none, folder_of, fresh_model, seeded, trained_models
from contentrope.experiments.suite.run import RESULTS, Progress, run

__all__ = [
    "RESULTS",
    "Configured",
    "Evaluated",
    "Experiment",
    "Finished",
    "Progress",
    "Tell",
    "Trained",
    "finite_or_none",
    "folder_of",
    "fresh_model",
    "run",
    "seeded",
    "trained_models",
]
