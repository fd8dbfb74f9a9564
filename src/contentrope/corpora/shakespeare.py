"""Tiny Shakespeare: 1,115,394 characters of 65 kinds, the usual small corpus for character models.

The file is not part of the package. It is taken from the first of these places, and downloaded if in neither:

1. the file that the environment variable ``CONTENTROPE_SHAKESPEARE`` names;
2. ``tinyshakespeare.txt`` in the cache folder: ``CONTENTROPE_CACHE``, else ``$XDG_CACHE_HOME/contentrope``,
   else ``~/.cache/contentrope``. A download is kept there.

Whatever the place, its SHA-256 must be :data:`SHA256`. A variable that is set but empty counts as not set.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

from contentrope.errors import InputError
from contentrope.files import write_whole

ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
BYTES = 1_115_394
FILE_VARIABLE, CACHE_VARIABLE = "CONTENTROPE_SHAKESPEARE", "CONTENTROPE_CACHE"
TIMEOUT_SECONDS = 30.0


def download_bytes(address: str) -> bytes:
    """What lies at an address, cut off where it is longer than the file it should be."""
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as response:
        return response.read(BYTES + 1)


def shakespeare_text(download: Callable[[str], bytes] = download_bytes) -> str:
    """The whole text, from the first place that has it; see the module for the places.

    >>> shakespeare_text()[:14]  # doctest: +SKIP
    'First Citizen:'
    """
    named = os.environ.get(FILE_VARIABLE)
    if named:
        remedy = f"let {FILE_VARIABLE} name the file from {ADDRESS}, or unset it"
        if not os.path.isfile(named):
            raise InputError(f"{FILE_VARIABLE} names {named}, which is not a file; {remedy}")
        return _checked(_read(Path(named)), f"{named} ({FILE_VARIABLE})", remedy)
    cached = cache_folder() / "tinyshakespeare.txt"
    # A dangling link is a file that went missing, not an empty cache.
    if os.path.lexists(cached):
        return _checked(_read(cached), str(cached), "delete it to have it downloaded again")
    return _downloaded(download, cached)


def cache_folder() -> Path:
    """Where downloads are kept; the folder need not exist."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification: a relative path is to be ignored
        return Path(shared, "contentrope")
    try:
        return Path.home() / ".cache" / "contentrope"
    except RuntimeError:
        raise InputError(f"there is no home folder to keep a cache in; set {CACHE_VARIABLE} to a folder") from None


def _downloaded(download: Callable[[str], bytes], cached: Path) -> str:
    remedy = f"fetch {ADDRESS} by other means, then save it as {cached} or let {FILE_VARIABLE} name it"
    try:
        data = download(ADDRESS)
    except (OSError, http.client.HTTPException) as error:  # the latter: a connection that ended too early
        raise InputError(f"Tiny Shakespeare could not be downloaded ({error}); {remedy}") from error
    text = _checked(data, f"the download from {ADDRESS}", remedy)
    try:
        write_whole(cached, data)
    except OSError as error:
        raise InputError(f"{cached} cannot be written ({error}); set {CACHE_VARIABLE} to a folder that can") from error
    return text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); make it a readable file or remove it") from error


def _checked(data: bytes, origin: str, remedy: str) -> str:
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise InputError(
            f"{origin} is not Tiny Shakespeare: found {len(data)} bytes with SHA-256 {found}, "
            f"expected {BYTES} bytes with SHA-256 {SHA256}; {remedy}"
        )
    return data.decode("ascii")
