"""The errors this library raises on purpose. Each message names the offending value and what to do about it."""

MOST_QUOTED = 100
"""Characters of a value that a message repeats."""


def quoted(value: object) -> str:
    """A value as an error message repeats it: in one line, cut where it is long.

    >>> quoted("half"), quoted([0] * 1000)[-14:]
    ("'half'", '0, 0, 0, 0 ...')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 4].rstrip(' ,')} ..."


class InputError(ValueError):
    """An argument has a wrong shape, dtype, range or combination."""


class BackendError(RuntimeError):
    """A backend cannot do this, or its package is missing."""


class CacheError(RuntimeError):
    """A cache does not fit the model, or can no longer be used."""


class CheckpointError(RuntimeError):
    """A saved model is damaged, or its settings are not the ones asked for."""


class WriteError(OSError):
    """Something could not be written: ``errno`` and ``filename`` as ever, and in words what helps."""

    def __str__(self) -> str:
        return str(self.strerror)
