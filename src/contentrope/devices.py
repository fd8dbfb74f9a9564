"""Where to compute."""

from __future__ import annotations

import torch

from contentrope.errors import InputError, quoted


def require_device(device: str) -> None:
    """Refuse a device that cannot be used before anything is read or computed."""
    try:
        torch.ones(1, device=device).item()  # "meta" has no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # AssertionError: a torch without CUDA
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(f"device {quoted(device)} cannot be used here ({reason}); use cpu") from error


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
