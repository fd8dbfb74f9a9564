"""Addressed attention in one kernel, forward and backward. Read ``forward.py``, then ``backward.py`` with
``to_queries.py`` and ``to_keys.py``; ``contentrope.attention.fused`` is where it is called."""
