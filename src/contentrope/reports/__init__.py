"""Reports of experiments, each made from its result file alone; no torch, and matplotlib is optional.

Read ``known.py``: what the folder of an experiment offers (``growth/``, ``facts/``). Everything beside it is shared: a
report is a list of blocks (``blocks.py``), which ``markdown.py`` and ``page.py`` write.
"""

from contentrope.reports.checked import read_results
from contentrope.reports.write import draw_picture, write_report

__all__ = ["draw_picture", "read_results", "write_report"]
