"""Triton kernels for whole sequences on a GPU: attention, rotations, addresses.

``ops.py`` starts them and makes operators of PyTorch of them, ``tuning.py`` chooses their tiles. What they compute is
defined in plain PyTorch by ``attention/reference.py``, ``rotary.py`` and ``address.py`` above this folder.
"""
