"""Uploading: asked for before the work, private, and a failure says what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contentrope.errors import BackendError, InputError
from contentrope.hf import hub


class FakeHub:
    """Takes the place of huggingface_hub's HfApi, and remembers what it was asked."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.asked = fails, []

    def __call__(self) -> FakeHub:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.asked.append((name, arguments, options))
            if name == self.fails:
                raise OSError(f"{name} failed")
            return SimpleNamespace(repo_id="me/mine")

        return call


def test_a_model_is_uploaded_as_a_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHub()
    monkeypatch.setattr("huggingface_hub.HfApi", fake)
    hub.require_login("mine")
    hub.upload(tmp_path, "mine")
    names = [name for name, _, _ in fake.asked]
    assert names == ["whoami", "create_repo", "upload_folder"]
    assert fake.asked[1][2]["private"] is True
    assert fake.asked[2][2]["repo_id"] == "me/mine"
    assert fake.asked[2][2]["folder_path"] == tmp_path


@pytest.mark.parametrize("fails", ["create_repo", "upload_folder"])
def test_a_failed_upload_says_how_to_try_again(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub(fails))
    folder = tmp_path / "a b"
    with pytest.raises(BackendError) as caught:
        hub.upload(folder, "me/mine")
    assert f"hf upload me/mine '{folder}' ." in str(caught.value)
    assert f"{fails} failed" in str(caught.value)


def test_whom_the_hub_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub("whoami"))
    with pytest.raises(InputError, match="hf auth login"):
        hub.require_login("me/mine")


@pytest.mark.parametrize("name", ["a/b/c", "", "a b", "-x", "../x"])
def test_a_name_that_is_none_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHub()
    monkeypatch.setattr("huggingface_hub.HfApi", fake)
    with pytest.raises(InputError, match="no name for a model"):
        hub.require_login(name)
    assert not fake.asked
