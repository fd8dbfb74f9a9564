"""The version, where code that must not import torch can read it."""

__version__ = "0.2.0"
