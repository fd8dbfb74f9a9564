"""Experiments: a configuration and one function that runs it and writes its results.

Read ``training.py``, then ``evaluation.py``, then one experiment such as ``growth.py``.
"""
