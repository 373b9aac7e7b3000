"""One thread and fixed seeds for every test: small tensors are faster so, and results repeat."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats a traceback each time
