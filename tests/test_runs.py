"""Names of new files and folders, locks, and disks that are full or lack links."""

import errno
import os
import threading
from pathlib import Path

import pytest

from chop.errors import OutputError
from chop.files import hold, remove_if_empty, replacing, write_text
from chop.runs import new_folder, write_new


def test_results_of_two_at_once_are_kept_both(tmp_path: Path) -> None:
    """Who came second overwrote the record of the first."""
    barrier = threading.Barrier(8)
    names: list[str] = []

    def write(number: int) -> None:
        barrier.wait()
        names.append(write_new(tmp_path / "run.json", str(number)).name)
        names.append(new_folder(tmp_path / "study").name)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    expected = {f"{name}{ending}" for name, ending in (("run", ".json"), ("study", ""))}
    expected |= {f"run-v{n}.json" for n in range(1, 8)} | {f"study-v{n}" for n in range(1, 8)}
    assert set(names) == set(os.listdir(tmp_path)) == expected
    assert {(tmp_path / n).read_text() for n in names if n.endswith("json")} == set("01234567")


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert write_new(tmp_path / "a.txt", "1").read_text() == "1"
    assert write_new(tmp_path / "a.txt", "2").name == "a-v1.txt"


def test_a_name_is_held_by_one_and_free_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path) as ours:
        assert ours
        with hold(path) as theirs:
            assert not theirs
    with hold(path) as ours:
        assert ours
    assert not path.exists()


def test_a_folder_that_stays_empty_goes(tmp_path: Path) -> None:
    for name in ("empty", "used"):
        folder = new_folder(tmp_path / name)
        with pytest.raises(RuntimeError), remove_if_empty(folder):
            if name == "used":
                (folder / "file").touch()
            raise RuntimeError
    assert os.listdir(tmp_path) == ["used"]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_wherever_a_file_is_written(tmp_path: Path) -> None:
    """Only training said so; a search or a record ended as a bug of chop."""
    write_text(tmp_path / "a", "old")
    message = "a: cannot be written: No space left"
    with pytest.raises(OutputError, match=message), replacing(tmp_path / "a"):
        full()
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]
