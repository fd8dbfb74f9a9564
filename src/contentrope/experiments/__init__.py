"""Experiments: a configuration and one function that runs it and writes its results.

Read ``suite/``, then ``growth/``, then ``evaluation.py`` and ``distant.py``, which measure a trained model.
"""
