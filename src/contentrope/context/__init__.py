"""What one forward pass knows, for all layers alike: rotations, who sees whom, and the cache; made once per call."""

from contentrope.context.addressed import AddressedContext
from contentrope.context.chunk import Chunk, Context, PlainContext, Projected
from contentrope.context.windowed import WindowedContext

__all__ = ["AddressedContext", "Chunk", "Context", "PlainContext", "Projected", "WindowedContext"]
