"""Settings for the whole suite."""

import importlib.util
import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("suite")
# No test asks a hub, not even in vain: that takes as long as its patience. Read when its library is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
# The suite runs one process per core.
torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Kernels run in Python then. Triton must be told before it is imported, by whichever test comes first.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def watched_kernels() -> Iterator[None]:
    """Whatever kernel a test runs in Triton's interpreter, its reads and writes are looked at."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        yield
        return
    from tests.support.quick_interpreter import quick_interpreter
    from tests.support.watched_memory import watched_memory

    with quick_interpreter(), watched_memory():
        yield


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh memory holds NaN: what a kernel forgets to write is noticed."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(1, device="cuda" if torch.cuda.is_available() else "cpu").isnan()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def far_keys_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unit's reach counts, however short the text. Without a GPU the CPU's plain attention stands in for its."""
    from contentrope.kernels.attention import ops  # triton is needed only here

    monkeypatch.setattr(ops, "FAR_WORTH", 2)
    if not torch.cuda.is_available():
        monkeypatch.setattr(ops, "_library_can", lambda query: True)
