"""The names: the English first names of the package Faker, in lower case, of 2 to 8 letters.

Faker is needed once: the list is kept as ``names.txt`` in the cache folder (see :mod:`contentrope.corpora.shakespeare`
for where that is) and read from there where Faker is missing. Whatever the place, its SHA-256 must be :data:`SHA256`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from contentrope.corpora.shakespeare import cache_folder
from contentrope.errors import InputError
from contentrope.files import write_whole

FAKER = "40.54.0"
"""The version of Faker the checksum was taken with."""
SHA256 = "7228801b9c163990052a8dc580331ed62f4efb024dc63999ac091833a55831e1"
COUNT = 6_548
SHORTEST, LONGEST = 2, 8
INSTALL = "pip install contentrope[facts]"


def first_names() -> tuple[str, ...]:
    """All names, sorted; see the module for where they come from.

    >>> len(first_names())  # doctest: +SKIP
    6548
    """
    found = _from_faker()
    if found is None:
        return _from_cache()
    _keep(found)
    return tuple(found.decode("ascii").split("\n"))


def _from_faker() -> bytes | None:
    """The list as it is stored; None where Faker is not installed."""
    try:
        from faker import VERSION
        from faker.providers.person.en import Provider
    except ImportError:
        return None
    lowered = {name.lower() for name in Provider.first_names}
    # isalpha alone would let letters with accents pass.
    names = [name for name in lowered if name.isascii() and name.isalpha() and SHORTEST <= len(name) <= LONGEST]
    data = "\n".join(sorted(names)).encode("ascii")
    return _checked(data, f"Faker {VERSION}", f"pip install faker=={FAKER}")


def _from_cache() -> tuple[str, ...]:
    path = cache_folder() / "names.txt"
    if not os.path.lexists(path):
        raise InputError(f"the names come from Faker, which is not installed, and {path} is not there: {INSTALL}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); make it a readable file, or {INSTALL}") from error
    data = _checked(data, str(path), f"delete it and {INSTALL}")
    return tuple(data.decode("ascii").split("\n"))


def _keep(data: bytes) -> None:
    # Only a convenience: where there is Faker, a cache that cannot be written is no reason to stop.
    with contextlib.suppress(OSError, InputError):
        path = cache_folder() / "names.txt"
        if not os.path.lexists(path):
            write_whole(path, data)


def _checked(data: bytes, origin: str, remedy: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise InputError(
            f"{origin} has other names: found {len(data.split())} with SHA-256 {found}, "
            f"expected the {COUNT} of Faker {FAKER} with SHA-256 {SHA256}; {remedy}"
        )
    return data
