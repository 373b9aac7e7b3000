"""Disks that are full or cannot be written to."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harden import kill_search, kill_train
from harden.kill_server import Server
from harden.resource_common import (
    QUIET,
    TRAIN,
    CannotMount,
    ch,
    configured,
    fill,
    forked,
    small_disk,
)

DISK = 4_096
"""KiB of the small disk: room for everything when there is no ballast on it."""
FULL = "cannot be written: "
SEARCH = ["search", "--config", "run.toml", "--project-dir", ".", "--project", "out"]
ACTIONS = {
    "train": TRAIN,
    "test": ["test", "jsc-tiny", "jsc-sim", *QUIET],
    "transform": ["transform", "--config", "run.toml", "--project-dir", ".", "--project", "out"],
    "search": [*SEARCH],
}


def full_disk(server: Server, folder: Path, points: int) -> Iterator[tuple[str, list[str]]]:
    """Training and searching on a disk that is full after so many bytes, then with room again."""
    reference = kill_train.undisturbed(server, folder, "adam")
    for place in range(points):
        free = (place * 640 // points) * 1024
        try:
            with small_disk(DISK) as disk:
                yield f"train, {free >> 10} KiB free", trained(server, disk, free, reference)
            with small_disk(DISK) as disk:
                yield (
                    f"search, {free >> 10} KiB free",
                    searched(server, disk, folder / f"search-{place}", free),
                )
            with small_disk(DISK) as disk:
                yield f"transform, {free >> 13} KiB free", transformed(server, disk, free >> 3)
        except CannotMount as reason:
            work = kill_train.project(folder / f"limit-{place}")
            limit = {"largest_file": 1024 + free // 32}
            wrong = trained_within(server, work, limit, reference)
            yield f"train, {limit['largest_file']} bytes a file, as {reason}", wrong


def trained(server: Server, disk: Path, free: int, reference: kill_train.Reference) -> list[str]:
    """Train until the disk is full, make room, and go on."""
    work = kill_train.project(disk / "work")
    ballast = fill(disk, free)
    wrong = stopped_or_done(server, work, {})
    ballast.unlink()
    return wrong + went_on(server, work, reference)


def trained_within(
    server: Server, work: Path, limit: dict[str, int], reference: kill_train.Reference
) -> list[str]:
    """The same with a limit on the size of a file in place of a full disk."""
    return stopped_or_done(server, work, limit) + went_on(server, work, reference)


def stopped_or_done(server: Server, work: Path, limit: dict[str, int]) -> list[str]:
    """Training must end well, or with one line that names what cannot be written."""
    (done,) = forked(server, [kill_train.arguments("adam")], work, **limit)
    wrong = done.expect(0) if done.code == 0 else done.refused(FULL)
    return wrong + kill_train.saved_epochs(work / kill_train.CHECKPOINTS)[1]


def went_on(server: Server, work: Path, reference: kill_train.Reference) -> list[str]:
    """With room, training goes on and ends as it would have."""
    (done,) = forked(server, [kill_train.arguments("adam", resume=True)], work)
    return done.expect(0) or kill_train.differences(reference.folder, work)


def searched(server: Server, disk: Path, notes: Path, free: int) -> list[str]:
    """Search until the disk is full, make room, and go on."""
    flavour = kill_search.FLAVOURS["quick"]
    work = kill_search.project(disk / "work", flavour)
    study = kill_search.Disturbed(server, work, flavour, notes)
    ballast = fill(disk, free)
    answer, said = study.run()
    wrong = []
    if answer.codes not in ([0], [2]) or (answer.codes == [2] and FULL not in said[0]):
        wrong = [f"ended with {answer.codes}: {said[0][-300:]}"]
    ballast.unlink()
    return wrong + study.looked() + study.finished()


def transformed(server: Server, disk: Path, free: int) -> list[str]:
    """Save a graph on a disk that is full."""
    work = disk / "work"
    work.mkdir()
    configured(work)
    fill(disk, free)
    (done,) = forked(server, [ACTIONS["transform"]], work)
    wrong = done.expect(0) if done.code == 0 else done.refused(FULL)
    return wrong + [f"left behind: {path.name}" for path in work.rglob("*.tmp")]


def full_output(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Standard output that goes to a full disk."""
    for command in (["info"], TRAIN):
        with open("/dev/full", "wb") as full:
            done = ch(command, folder, stdout=full)
        yield f"ch {command[0]} > /dev/full", done.refused("No space left on device")


def full_cache(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A cache of data sets on a full disk."""
    rows = "".join(f"{i},{-i % 7},{i % 2}\n" for i in range(20_000))
    (folder / "rows.csv").write_text("a,b,label\n" + rows)
    command = ["train", "jsc-tiny", "csv", "--dataset-path", "rows.csv", *QUIET]
    try:
        with small_disk(64) as disk:
            done = ch(command, folder, {"CHOP_CACHE": str(disk)})
            left = [path.name for path in disk.rglob(".unfinished*")]
    except CannotMount:
        done, left = ch(command, folder, {"CHOP_CACHE": "/proc/none"}), []
    yield "CHOP_CACHE full", done.refused("CHOP_CACHE") + [f"left behind: {name}" for name in left]


def read_only(server: Server, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Every action with an output folder that nobody can write in."""
    for name, command in ACTIONS.items():
        try:
            with small_disk(64, read_only=True) as disk:
                configured(folder)
                (done,) = forked(server, [[*command, "--project-dir", str(disk)]], folder)
                left = os.listdir(disk)
        except CannotMount:
            elsewhere = [*command, "--project-dir", "/proc/self"]
            (done,), left = forked(server, [elsewhere], folder), []
        yield (
            f"ch {name}, read-only",
            done.refused(FULL) + [f"left behind: {each}" for each in left],
        )


def read_only_resume(server: Server, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A project that has become read-only and is to go on."""
    with small_disk(DISK) as disk:
        work = kill_train.project(disk / "work")
        (done,) = forked(server, [[*kill_train.arguments("adam"), "--max-epochs", "2"]], work)
        before = kill_train.saved_epochs(work / kill_train.CHECKPOINTS)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        (again,) = forked(server, [kill_train.arguments("adam", resume=True)], work)
        wrong = done.expect(0) + again.refused(FULL)
        if kill_train.saved_epochs(work / kill_train.CHECKPOINTS) != before:
            wrong.append("the checkpoint has changed")
    yield "ch train --resume, read-only", wrong
