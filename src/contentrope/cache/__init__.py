"""The KV cache: keys and values, and the streaming state of their columns."""

from contentrope.cache.columns import Columns, Rotated, StreamState
from contentrope.cache.keys import Cache, CacheShape, ModelState

__all__ = ["Cache", "CacheShape", "Columns", "ModelState", "Rotated", "StreamState"]
