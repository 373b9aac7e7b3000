import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chop.errors import OutputError
from chop.files import nothing_left_behind, replacing, writable_folder, write_text
from chop.runs import free_version, latest, nth, version_of


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "result.json"
    write_text(target, "old")
    with pytest.raises(RuntimeError, match="half way"), replacing(target) as temporary:
        temporary.write_text("ne")
        raise RuntimeError("half way")
    assert target.read_text() == "old"
    assert list(target.parent.iterdir()) == [target]


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    write_text(target, "old")
    code = (
        "import sys, time; from pathlib import Path; from chop.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('new'); print('writing', flush=True); time.sleep(60)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert target.read_text() == "old"


def test_names_that_are_taken_get_a_version(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = free_version(tmp_path / "best.ckpt")
        path.touch()
        names.append(path.name)
    assert names == ["best.ckpt", "best-v1.ckpt", "best-v2.ckpt"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write in")
def test_a_folder_that_cannot_be_written_leaves_nothing_behind() -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        writable_folder(Path("/proc/self/machop/project"))


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputError, match="taken"):
        writable_folder(tmp_path / "taken" / "project")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_failure_leaves_no_empty_folder_but_every_file(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "project"
    with pytest.raises(RuntimeError), nothing_left_behind(folder):
        (folder / "a" / "b").mkdir(parents=True)
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError), nothing_left_behind(folder):
        (folder / "empty").mkdir(parents=True)
        (folder / "result").touch()
        raise RuntimeError
    assert sorted(path.name for path in folder.iterdir()) == ["result"]


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="is a device or a pipe; name a file to write"):
        write_text(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_the_newest_version_is_found_by_the_rule_that_names_it(tmp_path: Path) -> None:
    for name in ("study", "last.ckpt", "v1.2"):
        path = tmp_path / name
        assert latest(path) == path  # there is none
        for _ in range(11):
            free_version(path).touch()
        (tmp_path / f"{path.stem}-v99-old{path.suffix}").touch()  # no version of it
        assert latest(path) == nth(path, 10)
        assert version_of(latest(path)) == 10
