"""One call of the model as its layers see it: rotations, who sees whom, and the cache; made once per call."""

from contentrope.frames.addressed import AddressedFrame
from contentrope.frames.chunk import Chunk, Frame, Projected
from contentrope.frames.cope import ContextualFrame
from contentrope.frames.path import PathFrame
from contentrope.frames.plain import PlainFrame

__all__ = ["AddressedFrame", "Chunk", "ContextualFrame", "Frame", "PathFrame", "PlainFrame", "Projected"]
