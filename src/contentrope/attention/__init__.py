"""Addressed attention: one public function, one definition (`reference`), and backends tested against it."""

from contentrope.attention.api import BACKENDS, addressed_attention, backend_function, backend_name, backend_status
from contentrope.attention.pairs import PairRule

__all__ = ["BACKENDS", "PairRule", "addressed_attention", "backend_function", "backend_name", "backend_status"]
