"""Retrieval from serialized facts: which fact of the prefix does a model read its answer from?

``config.py`` has the settings, ``presets.py`` the runs that have a name, ``batches.py`` what a step of training sees,
``rows.py`` the rows of the table, ``scoring.py`` hit@5 and perplexity, ``measure.py`` what is done with one variant,
``inside.py`` a look into a model.
"""

from contentrope.experiments.facts.config import FactsConfig
from contentrope.experiments.facts.measure import Facts, run
from contentrope.experiments.facts.presets import PRESETS

__all__ = ["PRESETS", "Facts", "FactsConfig", "run"]
