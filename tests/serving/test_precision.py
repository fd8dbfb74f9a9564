"""A service keeps its store in the precision it is told, and refuses one of another."""

from __future__ import annotations

from pathlib import Path

import pytest

import contentrope as cr
from contentrope.serving.documents import Documents
from contentrope.serving.limits import Limits
from contentrope.serving.service import Service, Settings
from tests.serving.served import DOCUMENTS, save_model


def test_the_store_has_the_precision_of_the_service(tmp_path: Path) -> None:
    model = str(save_model(tmp_path / "model"))

    def opened(precision: str) -> Documents:
        settings = Settings(model=model, store=str(tmp_path / "store"), name="tiny", precision=precision)
        return Service(settings, Limits())._load().documents

    documents = opened("int8")
    made, _ = documents.compute(DOCUMENTS[0])
    assert documents.store.stats()["precision"] == "int8"
    assert documents.cache((made.key,)).tokens == made.tokens
    with pytest.raises(cr.CheckpointError, match="precision='int8'"):
        opened("model")
