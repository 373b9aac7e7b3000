"""One process that forks runs of ``ch`` serves all tests: to start it takes seconds.

Widths that are learned and killed are those of a small network: as many epochs and files.
"""

from collections.abc import Iterator

import pytest

from harden import kill_files
from harden.kill_server import Server


@pytest.fixture(autouse=True, scope="session")
def _small_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small = kill_files.LEARN.replace("jsc-mlp", "jsc-tiny")
        assert small != kill_files.LEARN
        patch.setattr(kill_files, "LEARN", small)
        yield


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Server]:
    with Server() as found:
        yield found
