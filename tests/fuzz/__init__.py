"""Programs drawn at random against what must hold: ``python -m tests.fuzz --minutes 10``.

Four areas: ``streams`` (any chunks equal the whole; no token sees a later one), ``caches`` (read, decode, reorder,
truncate, padding, in any order), ``adapters`` (the same with Hugging Face models) and ``files`` (damage is refused).
Read ``engine.py`` first: what a case is, and how one is run again.
"""
