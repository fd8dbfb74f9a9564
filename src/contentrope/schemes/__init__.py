"""Addressing schemes by name, one file each: the method, its controls, and the baselines it is compared with."""

from __future__ import annotations

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

__all__ = ["Scheme", "kind", "make", "names"]

_SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        Content, Random, Local, Rope, Alibi, Nope, PositionInterpolation, NtkAware, Yarn, Randomized, Bipe, Cope, Path,
    )
}  # fmt: skip


def names(**abilities: bool) -> tuple[str, ...]:
    """The names a :class:`ModelConfig` may give as its scheme; with ``abilities``, of the schemes that have those.

    >>> names(reads_units=True)
    ('content', 'random', 'local', 'bipe')
    """
    wanted = abilities.items()
    return tuple(name for name, scheme in _SCHEMES.items() if all(getattr(scheme, a) is has for a, has in wanted))


def kind(name: str) -> type[Scheme]:
    """The class of a scheme, which says what it can do."""
    if name not in _SCHEMES:
        raise InputError(f"unknown scheme {name!r}; choose one of {', '.join(_SCHEMES)}")
    return _SCHEMES[name]


def make(config: ModelConfig) -> Scheme:
    """The scheme of a configuration, with fresh parameters."""
    scheme = kind(config.scheme)
    if config.reader and not scheme.knows_memory_units:
        raise InputError(f"scheme {config.scheme!r} has no memory units; leave out reader={config.reader}")
    return scheme(config)
