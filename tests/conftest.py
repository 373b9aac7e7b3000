"""One thread and fixed seeds for every test: small tensors are faster so, and results repeat."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator

import pytest
import torch

from chop.logger import get_logger

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell runs in the background ignores Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
logger = get_logger("chop")


STATE = ("handlers", "filters", "level", "disabled", "propagate")
PRISTINE = {name: getattr(logger, name) for name in STATE}


@pytest.fixture(autouse=True)
def _same_messages() -> Iterator[None]:
    """A run inside a test, or in a fixture of several, sets what is shown for all that follow."""
    _restore()
    yield
    _restore()


def _restore() -> None:
    vars(logger).update(PRISTINE)
    logger.setLevel(PRISTINE["level"])  # which forgets what was looked up


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats a traceback each time
