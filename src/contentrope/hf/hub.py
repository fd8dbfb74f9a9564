"""A converted model on the hub: asked for before the work begins, uploaded when it is done."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from contentrope.errors import BackendError, InputError, quoted


def require_login(name: str) -> None:
    """Refuse a name that is none, or a hub that does not know who we are, before hours of training."""
    from huggingface_hub import errors, utils

    try:
        utils.validate_repo_id(name)  # type: ignore[attr-defined]
    except errors.HFValidationError as error:
        raise InputError(f"{quoted(name)} is no name for a model on the hub; give one like me/my-model") from error
    try:
        _api().whoami()
    except Exception as error:  # no token, a wrong one, no network
        raise InputError(
            f"nothing can be uploaded as {name!r}: the hub does not know who you are ({_reason(error)}); log in with "
            "`hf auth login`, or leave --push-to-hub out and upload the folder later"
        ) from error


def upload(folder: Path, name: str) -> str:
    """The address of the model: a private one, unless it was there before. If it fails, nothing is lost."""
    try:
        made = _api().create_repo(name, private=True, exist_ok=True)
        _api().upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Upload a model with addresses")
    except Exception as error:  # of the hub, of the network, of the disk
        command = f"hf upload {shlex.quote(name)} {shlex.quote(str(folder))} . --private"
        raise BackendError(f"{folder} is written and not uploaded ({_reason(error)}); upload it: {command}") from error
    return str(made)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


def _reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
