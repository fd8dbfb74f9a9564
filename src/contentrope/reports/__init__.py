"""Reports of the context-growth experiment, made from its result file alone; no torch, and matplotlib is optional.

Read ``read.py``, then ``document.py``: a report is a list of blocks, which ``markdown.py`` and ``page.py`` write.
"""

from contentrope.reports.read import read_results
from contentrope.reports.write import draw_picture, write_report

__all__ = ["draw_picture", "read_results", "write_report"]
