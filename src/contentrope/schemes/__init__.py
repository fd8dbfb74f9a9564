"""Addressing schemes by name, one file each: the method, its controls, and the baselines it is compared with."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.schemes.alibi import Alibi
from contentrope.schemes.base import Scheme
from contentrope.schemes.bipe import Bipe
from contentrope.schemes.content import Content
from contentrope.schemes.cope import Cope
from contentrope.schemes.local import Local
from contentrope.schemes.nope import Nope
from contentrope.schemes.ntk import NtkAware
from contentrope.schemes.path import Path
from contentrope.schemes.pi import PositionInterpolation
from contentrope.schemes.random import Random
from contentrope.schemes.randomized import Randomized
from contentrope.schemes.rope import Rope
from contentrope.schemes.yarn import Yarn

__all__ = ["Scheme", "make", "names"]

_SCHEMES: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "content": Content,
    "random": Random,
    "local": Local,
    "rope": Rope,
    "alibi": Alibi,
    "nope": Nope,
    "pi": PositionInterpolation,
    "ntk": NtkAware,
    "yarn": Yarn,
    "randomized": Randomized,
    "bipe": Bipe,
    "cope": Cope,
    "path": Path,
}

READ_UNITS = ("content", "random", "local", "bipe")
KNOW_MEMORY = ("content", "random", "local")
SHARE_TEXTS = ("content", "local")
"""Whose texts several processes may read together."""
DRAW_AT_RANDOM = ("random", "randomized")


def names() -> tuple[str, ...]:
    """The names a :class:`ModelConfig` may give as its scheme.

    >>> "content" in names()
    True
    """
    return tuple(_SCHEMES)


def make(config: ModelConfig) -> nn.Module:
    """The scheme of a configuration, with fresh parameters."""
    if config.scheme not in _SCHEMES:
        raise InputError(f"unknown scheme {config.scheme!r}; choose one of {', '.join(_SCHEMES)}")
    if config.reader and config.scheme not in KNOW_MEMORY:
        raise InputError(f"scheme {config.scheme!r} has no memory units; leave out reader={config.reader}")
    return _SCHEMES[config.scheme](config)
