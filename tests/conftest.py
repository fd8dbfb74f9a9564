"""Settings for the whole suite."""

import os

import hypothesis
import torch

hypothesis.settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("suite")
# The suite runs one process per core.
torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Kernels run in Python then. Triton must be told before it is imported, by whichever test comes first.
    os.environ["TRITON_INTERPRET"] = "1"
