"""Each scarce resource a little, and proof that a wrong answer would be noticed."""

from pathlib import Path

import pytest

from harden import resource_clock, resource_disk, resource_memory, resource_places, resource_two
from harden.common import Row
from harden.kill_server import Server
from harden.resource_common import Done
from harden.resources import Cases, kinds, row

ONE = "Traceback (most recent call last):\nOSError: no space\n"


def clean(cases: Cases) -> None:
    found: Row = row("tried", cases)
    assert (found.lost, found.failures) == (0, ())
    assert found.tried or found.figure


def test_a_full_disk(fork_server: Server, tmp_path: Path) -> None:
    clean(resource_disk.full_disk(fork_server, tmp_path, 2))


def test_a_full_output(tmp_path: Path) -> None:
    clean(iter([next(resource_disk.full_output(tmp_path))]))


def test_a_read_only_project(fork_server: Server, tmp_path: Path) -> None:
    clean(resource_disk.read_only_resume(fork_server, tmp_path))


def test_closed_streams(tmp_path: Path) -> None:
    clean(resource_places.closed_streams(tmp_path, ["info"], *resource_places.CLOSED))


def test_a_locale_without_utf8(tmp_path: Path) -> None:
    clean(resource_places.messages_without_utf8(tmp_path))


def test_little_memory(
    fork_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean(resource_memory.little_memory(fork_server, tmp_path, [("npz", 8, True)]))
    monkeypatch.setattr(resource_memory, "LIMIT", 160 << 20)  # a smaller file is too large, too
    clean(resource_memory.little_memory(fork_server, tmp_path, [("npz", 168, False)]))


def test_two_runs(fork_server: Server, tmp_path: Path) -> None:
    clean(resource_two.two_runs(fork_server, tmp_path, 1))


def test_a_clock_that_goes_backwards(tmp_path: Path) -> None:
    variables, _ = resource_clock.backwards(tmp_path)
    first, second = resource_clock.two_looks(variables)
    assert second < first


def test_every_resource_is_tried(fork_server: Server) -> None:
    assert len(kinds(fork_server, 1.0)) == 11


@pytest.mark.parametrize(
    "done",
    [
        Done(1, "", "ch: OSError: full (a bug in chop; --debug shows where)\n"),
        Done(2, "", "ch: cannot be written\nand more\n"),
        Done(2, "", "ch: something else\n"),
        Done(0, "", ""),
        Done(None, "", "did not end"),
        Done(2, ONE, "ch: cannot be written\n"),
    ],
)
def test_a_wrong_refusal_is_noticed(done: Done) -> None:
    assert done.refused("cannot be written")
    assert not Done(2, "", "ch: x: cannot be written: full\n").refused("cannot be written")


def test_a_wrong_success_is_noticed() -> None:
    assert not Done(0, "done\n", "").worked("done")
    assert Done(0, "done\n", "a warning\n").worked("done")
    assert Done(0, "", "").worked("done")
    assert Done(2, "done\n", "").worked("done")


def test_lost_cases_are_counted() -> None:
    found = row("x", iter([("a", []), ("b", ["wrong", "very wrong"])]))
    assert (found.tried, found.lost, found.failures) == (2, 1, ("b: wrong", "b: very wrong"))
