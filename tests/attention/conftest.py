"""Settings that several tests of the kernels share."""

import pytest
import torch

from contentrope.attention.fused import far


@pytest.fixture
def far_keys_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unit's reach counts, however short the text. Without a GPU the CPU's plain attention stands in for its."""
    monkeypatch.setattr(far, "WORTH", 2)
    if not torch.cuda.is_available():
        monkeypatch.setattr(far, "_library_can", lambda query: True)
