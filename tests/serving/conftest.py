"""Skipped as a whole where the packages of a service are not installed."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("transformers", "fastapi", "uvicorn", "prometheus_client", "openai")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["*.py"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted model, in float64."""
    from tests.serving.served import save_model

    return save_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture
def serve(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts services over one store, which end with the test."""
    from tests.serving.served import Served

    running: list[Served] = []

    def start(**options: Any) -> Served:
        running.append(Served(model_folder, tmp_path / "store", **options))
        return running[-1]

    yield start
    for one in running:
        one.end()


@pytest.fixture(scope="module")
def shared(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One service for the tests of a file that leave it as it was."""
    from tests.serving.served import Served

    served = Served(model_folder, tmp_path_factory.mktemp("shared") / "store")
    yield served
    served.end()
