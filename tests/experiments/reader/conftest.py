"""Skipped as a whole where transformers is not installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["*.py"]
