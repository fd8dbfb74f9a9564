"""Settings for the whole suite."""

import hypothesis
import torch

hypothesis.settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("suite")
# The suite runs one process per core.
torch.set_num_threads(1)
