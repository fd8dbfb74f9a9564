"""The text every Python installation carries: the sources of its own standard library.

No download, and lines of ordinary length. The text differs between Python versions, so every result
records its fingerprint.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from contentrope.errors import InputError

# Long, pure-Python, and single files in every version since 3.11. The order is part of the corpus.
MODULES = (
    "argparse", "configparser", "dataclasses", "difflib", "doctest", "enum", "inspect", "ipaddress", "mailbox",
    "optparse", "pdb", "pickle", "pickletools", "pydoc", "shutil", "smtplib", "statistics", "subprocess", "tarfile",
    "threading", "typing", "_pydecimal", "_pyio", "ast", "imaplib", "ssl",
)  # fmt: skip


def standard_library_text(characters: int) -> str:
    """The first ``characters`` characters of the sources of :data:`MODULES`: printable ASCII and newlines.

    >>> text = standard_library_text(1_000)
    >>> len(text), text.isascii(), "\\t" in text
    (1000, True, False)
    """
    if isinstance(characters, bool) or not isinstance(characters, int) or characters < 1:
        raise InputError(f"characters must be a positive integer, got {characters!r}")
    text = ""
    for module in MODULES:
        if len(text) < characters:
            text += _source(module)
    if len(text) < characters:
        raise InputError(f"characters={characters} asked, but the standard library text has {len(text)}; ask for less")
    return text[:characters]


def _source(module: str) -> str:
    # Taken by path: importlib would find a file of the same name in the working directory first.
    path = Path(sysconfig.get_path("stdlib"), f"{module}.py")
    try:
        text = path.read_text(encoding="utf-8")  # universal newlines
    except FileNotFoundError:
        raise InputError(
            f"standard library module {module} has no source at {path}; "
            "use a Python installation that ships its library as .py files"
        ) from None
    ascii_only = text.expandtabs(8).encode("ascii", "replace").decode("ascii")
    return "".join(character for character in ascii_only if character == "\n" or character.isprintable())
