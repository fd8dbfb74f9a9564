"""Addressed attention, forward and backward: ``kernels.py`` is what a GPU runs, ``ops.py`` what starts it and tells
PyTorch of it. ``contentrope.attention.fused`` is where it is called."""
