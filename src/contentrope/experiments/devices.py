"""Where to compute."""

from __future__ import annotations

import torch

from contentrope.errors import InputError


def require_device(device: str) -> None:
    """Refuse a device that cannot be used before anything is read or computed."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch built without CUDA
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here ({reason}); use cpu") from error


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
