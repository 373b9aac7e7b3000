"""One process that forks runs of ``ch`` serves all tests: to start it takes seconds.

Trainings that are killed take large batches here, and widths of a small network are learned: as
many epochs, files and moments, but fewer steps.
"""

import re
from collections.abc import Iterator

import pytest

from harden import kill_files, kill_train
from harden.kill_server import Server

LARGE = "--batch-size 4096"


@pytest.fixture(autouse=True, scope="session")
def _few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, said in kill_train.FLAVOURS.items():
            shorter = re.sub(r"--batch-size \d+", LARGE, said)
            assert shorter != said
            patch.setitem(kill_train.FLAVOURS, name, shorter)
        small = kill_files.LEARN.replace("jsc-mlp", "jsc-tiny")
        assert small != kill_files.LEARN
        patch.setattr(kill_files, "LEARN", small)
        yield


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Server]:
    with Server() as found:
        yield found
