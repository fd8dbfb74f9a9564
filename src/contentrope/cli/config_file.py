"""``--config FILE``: options of a command from a file, as if they had been typed before all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contentrope.errors import InputError, quoted
from contentrope.training import TrainConfig

OPTION = "--config"
INSIDE = "options"
"""What a result file calls the options that it was made with."""


def with_config(words: Sequence[str], command: type) -> list[str]:
    """The words of a command line with those of the file that it names; an option that is typed goes before it.

    Values are checked where typed ones are, so both are refused alike.
    """
    path = _named(words)
    if path is None:
        return list(words)
    known, typed = list(_options_of(command)), {_option(word) for word in words if word.startswith("--")}
    flags = {field.name for field in dataclasses.fields(command) if field.type == "bool"}
    added: list[str] = []
    for key, value in _settings(Path(path)).items():
        name = str(key).replace("-", "_")
        if name not in known or name == "config":
            raise InputError(f"{path} has the key {quoted(key)}, which is no option; there are {', '.join(known)}")
        if isinstance(value, bool) and name in flags:
            added += [f"--{name.replace('_', '-')}"] if value else []  # a typed --no- comes behind it, and counts
        elif value is not None and name not in typed:
            added += [f"--{name.replace('_', '-')}", *_words_of(value, f"{path}: {name}", known)]
    return [*words[:1], *added, *words[1:]]


def _named(words: Sequence[str]) -> str | None:
    for place, word in enumerate(words):
        if word == OPTION:
            return words[place + 1] if place + 1 < len(words) else None
        if word.startswith(f"{OPTION}="):
            return word.partition("=")[2]
    return None


def _option(word: str) -> str:
    return word.removeprefix("--").partition("=")[0].replace("-", "_")


def _options_of(command: type) -> Iterator[str]:
    for field in dataclasses.fields(command):
        if field.name == "training":
            yield from _options_of(TrainConfig)
        else:
            yield field.name


def _settings(path: Path) -> Mapping[str, Any]:
    """Of a YAML file, or of a result file, which is JSON and so YAML too."""
    import yaml  # type: ignore[import-untyped]

    if not path.is_file():
        raise InputError(f"there is no file {quoted(str(path))} with options; check the path")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())}); mend it") from error
    if isinstance(found, Mapping) and isinstance(found.get(INSIDE), Mapping):
        found = found[INSIDE]
    if not isinstance(found, Mapping):
        raise InputError(f"{path} holds no options, one `name: value` on each line; mend it")
    return found


def _words_of(value: Any, where: str, known: Sequence[str]) -> list[str]:
    """A value as it would be typed."""
    several = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool | dict | list) or each is None for each in several):
        raise InputError(
            f"{where} is {quoted(value)}; give a number, a text or a list of them; the options are {', '.join(known)}"
        )
    return [str(each) for each in several]
