"""The errors this library raises on purpose. Each message names the offending value and what to do about it."""


class InputError(ValueError):
    """An argument has a wrong shape, dtype, range or combination."""


class BackendError(RuntimeError):
    """A backend was asked for something it cannot do, or its package is missing."""


class CacheError(RuntimeError):
    """A cache does not fit the model, or can no longer be used."""


class CheckpointError(RuntimeError):
    """A saved model is damaged, or its settings are not the ones asked for."""


class WriteError(OSError):
    """Something could not be written: ``errno`` and ``filename`` as ever, and in words what helps."""

    def __str__(self) -> str:
        return str(self.strerror)
