"""A few kills, and proof that a loss would be noticed."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from chop.export.exporting import move_files
from chop.figures import Measured
from chop.results.sensitivity import LayerAtWidth, Sensitivity
from chop.verbs.sensitivity import layers as one_by_one
from harden import kill_files, kill_search, kill_train, kills
from harden.kill_hook import FileOperations
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


NOT_HERE = (
    "export, predict, quantize or sensitivity, at a moment", "learned search, at a moment",
    "train of two processes, all or one of them",
)  # fmt: skip
"""Kinds whose moments fall into a file operation as a rule only if that is aimed at, and one that
starts six Pythons. `make harden` has them all."""


@pytest.mark.parametrize("what", [what for what in kills.TOTALS if what not in NOT_HERE])
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


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def die_at_each_operation(folder: Path, write: Callable[[], object]) -> Iterator[int]:
    """Run `write` in processes that are killed at one file operation after the other."""
    for number in itertools.count(1):
        child = os.fork()
        if not child:
            FileOperations(str(folder), number).install()
            write()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return
        yield number


def written_export(folder: Path) -> Path:
    (files := folder.parent / "files").mkdir(exist_ok=True)
    for name in ("predict.c", "predict.h", "manifest.json"):
        (files / name).write_text(f"{name}\n" * 100)
    return move_files(files, folder)


def written_sensitivity(folder: Path) -> Path | None:
    start = Measured(value=0.5, rows=100, low=0.4, high=0.6)
    point = LayerAtWidth(
        layer="head", operation="linear", parameters=10, width=4, score=0.5, lost=0.0, low=-0.1,
        high=0.1, bits_saved=280, share_saved=0.9,
    )  # fmt: skip
    found = Sensitivity(start=start, points=(point,), search={"strategy": {"name": "optuna"}})
    return one_by_one.write_sensitivity(found, folder, {}).folder


@pytest.mark.parametrize("write", [written_export, written_sensitivity])
def test_a_folder_is_there_as_a_whole_or_not_at_all(
    write: Callable[[Path], Path | None], tmp_path: Path
) -> None:
    whole = files_of(write(tmp_path / "whole") or tmp_path)
    assert len(whole) == 3
    kills_seen = 0
    for number in die_at_each_operation(tmp_path, lambda: write(tmp_path / "new")):
        kills_seen = number
        if (tmp_path / "new").exists():
            assert files_of(tmp_path / "new") == whole
            shutil.rmtree(tmp_path / "new")
        left = {path.name for path in tmp_path.iterdir()} - {"files", "whole"}
        assert all(name.startswith(".new.") for name in left)
    assert kills_seen > 5
    assert write(tmp_path / "again") == tmp_path / "again"


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path]:
    """A command that ran to its end, and one that was killed when its files were in place."""
    made = kill_files.COMMANDS["export to C"][1]
    for name in ("whole", "killed"):
        (folder := tmp_path / name / made).mkdir(parents=True)
        (folder / "manifest.json").write_text(f'{{"source": "{tmp_path / name}"}}')
        (folder / "predict.c").write_text("int main(void) { return 0; }\n")
    return tmp_path / "whole", tmp_path / "killed"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("manifest.json", '{"source": ', "manifest.json cannot be read"),
        ("predict.c", "int main(", "predict.c is not what the command writes"),
        ("predict.c", None, "export_c is there without predict.c"),
    ],
)
def test_half_a_file_or_folder_is_noticed(
    exported: tuple[Path, Path], name: str, text: str | None, words: str
) -> None:
    assert list(kill_files.half_written(*exported)) == []
    assert list(kill_files.other_files("export to C", *exported)) == []
    path = exported[1] / kill_files.COMMANDS["export to C"][1] / name
    path.unlink() if text is None else path.write_text(text)
    assert words in next(kill_files.half_written(*exported))
    assert list(kill_files.other_files("export to C", *exported)) != []
