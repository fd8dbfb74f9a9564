"""Content-based addressing for long context.

A Transformer reads text in units, uses ordinary RoPE inside a unit, and gives every completed unit a rotation
computed from its content instead of a growing position.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from contentrope.version import __version__ as __version__

if TYPE_CHECKING:
    from contentrope.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """The public names need torch, which takes seconds to import: it is, when the first of them is asked for.

        So the command line can answer Ctrl-C, and say how torch's threads wait, before torch is there.
        """
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec(f"{__name__}.{name}"):  # a module of the package, which may be asked for while others are imported
            return import_module(f"{__name__}.{name}")
        public = import_module(f"{__name__}.public")
        globals().update({each: getattr(public, each) for each in public.__all__})
        globals()["__all__"] = [*public.__all__, "__version__"]
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
