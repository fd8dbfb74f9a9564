"""What is asked of folders alone needs no optional package."""

from __future__ import annotations

from pathlib import Path

import pytest

import contentrope.hf as chf
from contentrope.errors import BackendError
from contentrope.hf.plain import require_transformers
from tests.test_imports import BLOCK_OPTIONAL, run_fresh


def test_looking_at_folders_imports_no_optional_package(tmp_path: Path) -> None:
    program = f"""
import contentrope.hf
from contentrope.hf.layout import is_checkpoint
from contentrope.hf.plain import require_transformers
assert not is_checkpoint({str(tmp_path)!r})
try:
    require_transformers()
except RuntimeError as error:
    print(error)
"""
    assert "contentrope[hf]" in run_fresh(BLOCK_OPTIONAL + program)


def test_peft_is_asked_for_only_where_it_is_needed() -> None:
    found = run_fresh(
        "import sys, contentrope.hf as chf\nchf.attach, chf.from_pretrained\nprint('peft' in sys.modules)"
    )
    assert found.strip() == "False"


def test_every_public_name_is_there() -> None:
    assert set(chf.__all__) <= set(dir(chf))
    assert all(callable(getattr(chf, name)) for name in chf.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        chf.nothing  # noqa: B018


def test_what_is_installed_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    require_transformers(peft=True)
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    require_transformers()
    with pytest.raises(BackendError, match="peft"):
        require_transformers(peft=True)
