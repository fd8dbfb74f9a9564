"""Small worlds, and a cache folder of each test's own."""

from pathlib import Path

import pytest
import torch

from experiments.facts.generator.sampler import Sampler
from experiments.facts.generator.world import World


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that does not exist yet."""
    monkeypatch.setenv("CONTENTROPE_CACHE", str(tmp_path / "own-cache"))
    return tmp_path / "own-cache"


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="session")
def paper_world(session_cache: Path) -> World:
    return made(session_cache)


@pytest.fixture(scope="session")
def small_world(session_cache: Path) -> World:
    return made(session_cache, seed=3, training_names=40, test_names=12)


@pytest.fixture(scope="session")
def sampler(small_world: World) -> Sampler:
    return Sampler(small_world)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def made(cache: Path, **settings: int) -> World:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTENTROPE_CACHE", str(cache))
        return World(**settings)
