"""Which files of the library a step walks through, kernels included: what somebody reads who follows it.

    TRITON_INTERPRET=1 python -m tests.support.walked

Run as a program: Triton decides when it is imported whether it interprets its kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import contentrope as cr

PACKAGE = str(Path(cr.__file__).parent) + os.sep


def walked(step: Callable[[], object]) -> list[str]:
    """Files whose functions are called; what is imported on the way does not count."""
    found = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PACKAGE):
            found.add(code.co_filename.removeprefix(PACKAGE))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return sorted(found)


def main() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("error: without a GPU the kernels run in Triton's interpreter: set TRITON_INTERPRET=1")
    config = cr.ModelConfig(vocab_size=11, dim=32, layers=2, heads=2, terminators=(0,))
    model, ids = cr.Transformer(config, backend="fused"), torch.arange(40)[None] % 11

    def train() -> None:
        model(ids).square().mean().backward()

    train()  # tiles are chosen once
    found = {"training": walked(train)}
    model.eval().backend = "auto"
    with torch.no_grad():
        cache = model.new_cache(1, max_tokens=64)
        model(ids, cache=cache)
        found["decoding"] = walked(lambda: model(ids[:, 1:2], cache=cache))
        found["decoding, a unit completed"] = walked(lambda: model(ids[:, :1], cache=cache))
    for name, files in found.items():
        print(f"{name}: {len(files)} files", *files, sep="\n    ")


if __name__ == "__main__":
    main()
