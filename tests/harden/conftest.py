"""One process that forks runs of ``ch`` serves all tests: to start it takes seconds."""

from collections.abc import Iterator

import pytest

from harden.kill_server import Server


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Server]:
    with Server() as found:
        yield found
