"""A few kills, and proof that a loss would be noticed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harden import kill_search, kill_train, kills
from harden.kill_server import Server


@pytest.fixture(scope="module")
def bench() -> Iterator[kills.Bench]:
    with kills.benches(servers=1) as found:
        yield found


@pytest.fixture
def server(bench: kills.Bench) -> Iterator[Server]:
    found = bench.free.get()
    yield found
    bench.free.put(found)


@pytest.mark.parametrize("what", kills.TOTALS)
def test_nothing_is_lost(bench: kills.Bench, what: str) -> None:
    row = kills.run_kind(bench, what, 1)
    assert row.tried >= 1
    assert (row.lost, row.failures) == (0, ())


def test_what_is_written_can_be_read_all_the_time(bench: kills.Bench) -> None:
    row = kills.read_all_the_time(bench, 2)
    assert row.tried > 2
    assert (row.lost, row.failures) == (0, ())


def test_two_hundred_kills_are_planned() -> None:
    assert sum(kills.TOTALS.values()) >= 200


def last_checkpoint(project: kill_train.Disturbed) -> Path:
    return project.folder / kill_train.CHECKPOINTS / "last.ckpt"


@pytest.fixture
def trained(bench: kills.Bench, server: Server, tmp_path: Path) -> kill_train.Disturbed:
    """A run that was killed when it had finished some of its epochs."""
    reference = bench.training(server, "adam")
    work = kill_train.project(tmp_path / "work")
    project = kill_train.Disturbed(server, work, "adam", reference)
    killed, wrong = project.killed(die_at=reference.operations // 2)
    assert (killed, wrong) == (True, [])
    assert 0 < project.done < 5
    return project


def test_a_checkpoint_that_is_half_written_is_noticed(trained: kill_train.Disturbed) -> None:
    last = last_checkpoint(trained)
    last.write_bytes(last.read_bytes()[:-100])
    _, wrong = kill_train.saved_epochs(last.parent)
    assert wrong
    assert "last.ckpt" in wrong[0]


def test_a_lost_epoch_is_noticed(trained: kill_train.Disturbed) -> None:
    last_checkpoint(trained).unlink()
    assert "--resume trained [0, 1, 2, 3, 4]" in trained.finished()[0]


def test_one_other_bit_is_noticed(bench: kills.Bench, server: Server) -> None:
    last = bench.training(server, "adam").folder / kill_train.CHECKPOINTS / "last.ckpt"
    one, other = (torch.load(last, weights_only=True) for _ in range(2))
    assert list(kill_train.unequal(one, other)) == []
    name, weight = next(iter(other["state_dict"].items()))
    weight.view(torch.int32).flatten()[0] ^= 1
    other["chop"]["history"].pop()
    assert {"/chop/history/4", f"/state_dict/{name}"} == set(kill_train.unequal(one, other))


@pytest.fixture
def searched(bench: kills.Bench, server: Server, tmp_path: Path) -> kill_search.Disturbed:
    """A search that was killed as it wrote its results."""
    flavour = kill_search.FLAVOURS["quick"]
    work = kill_search.project(tmp_path / "work", flavour)
    project = kill_search.Disturbed(server, work, flavour)
    killed, wrong = project.killed(die_at=bench.searching(server, "quick").operations - 2)
    assert (killed, wrong) == (True, [])
    return project


def test_a_lost_trial_is_noticed(searched: kill_search.Disturbed) -> None:
    journal = searched.folder / kill_search.RESULTS / "study.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    trials = [number for number, line in enumerate(lines) if b'"op_code":4,' in line]
    del lines[trials[-1] :]
    journal.write_bytes(b"".join(lines))
    assert any("is lost or has changed" in each for each in searched.looked())


def test_a_trial_that_is_evaluated_again_is_noticed(searched: kill_search.Disturbed) -> None:
    with (searched.folder / "seen.txt").open("a") as notes:
        notes.write(f"1 {searched.evaluations()[0]}\n")
    assert any("was evaluated again" in each for each in searched.looked())


def test_a_doubled_trial_is_noticed(searched: kill_search.Disturbed) -> None:
    journal = searched.folder / kill_search.RESULTS / "study.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines, lines[-1]]))
    assert any("stored twice" in each for each in searched.finished())


def test_a_study_that_cannot_be_read_is_noticed(searched: kill_search.Disturbed) -> None:
    journal = searched.folder / kill_search.RESULTS / "study.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], lines[1][:20] + b"\n", *lines[2:]]))
    assert any("study unreadable" in each for each in searched.looked())
