"""Retrofit: a finished RoPE model gets content addresses, with a tenth of its training at most, and reads on.

``config.py`` has the settings, ``conversions.py`` what is compared, ``presets.py`` the runs that have a name,
``texts.py`` what is read, ``measure.py`` what is done with one variant. All else needs transformers, and is imported
only there: ``original.py`` trains the model to be converted where none is given, ``checkpoints.py`` loads and saves,
``converting.py`` turns it into a variant, ``reader.py`` is what is trained.
"""

from contentrope.experiments.retrofit.config import LlamaSize, RetrofitConfig
from contentrope.experiments.retrofit.measure import Retrofit, run
from contentrope.experiments.retrofit.presets import PRESETS

__all__ = ["PRESETS", "LlamaSize", "Retrofit", "RetrofitConfig", "run"]
