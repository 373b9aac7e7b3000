"""A study under a little load, and proof that a loss would be noticed."""

from pathlib import Path

import pytest

from harden import load, postgres
from harden.kill_server import Server


@pytest.mark.parametrize("by_hand", [False, True])
def test_nothing_is_lost_in_a_journal(fork_server: Server, tmp_path: Path, by_hand: bool) -> None:
    row = load.row(fork_server, tmp_path, load.Load("journal", 0.002, by_hand=by_hand), 40)
    assert (row.lost, row.failures) == (0, ())
    assert "times one process" in row.figure


@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "there")
def test_nothing_is_lost_in_postgresql(fork_server: Server, tmp_path: Path) -> None:
    row = load.in_postgresql(fork_server, tmp_path, 12)
    assert (row.tried, row.lost, row.failures) == (12, 0, ())


def test_losses_are_noticed() -> None:
    assert load.losses(["a", "b"], ["a", "b"], 2) == []
    assert "1 configurations were evaluated twice" in load.losses(["a", "a"], ["a"], 1)[0]
    assert "1 evaluations are not in the study" in load.losses(["a", "b"], ["a"], 1)[0]
    assert "1 trials are stored twice" in load.losses(["a"], ["a", "a"], 2)[0]
    assert "1 trials in place of 2" in load.losses(["a"], ["a"], 2)[0]
