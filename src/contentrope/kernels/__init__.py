"""Triton kernels for whole sequences on a GPU: attention, rotations, addresses.

``launch.py`` starts them, ``ops.py`` makes operators of PyTorch of them, ``tuning.py`` chooses tiles. The numbers are
defined elsewhere, in plain PyTorch: ``attention/reference.py``, ``rotary.py``, ``address.py``.
"""
