import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jet_files import JetFiles

from chop.dataset import MaseDataModule
from chop.dataset.cache import file_sha256
from chop.dataset.rows import default_cache_dir
from chop.errors import DataError, OutputError

KILLED = """
import os, signal
from pathlib import Path
replace = Path.replace
def dying(self, target):
    if self.name.startswith(".unfinished"):
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = dying
"""
PREPARE = """
import sys
from chop.dataset import MaseDataModule
module = MaseDataModule("jsc", batch_size=8, path=sys.argv[1])
module.prepare_data()
sys.stdout.write(module.fingerprint)
"""


def test_the_folder_is_chosen_by_the_environment(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_cache_dir() == cache
    monkeypatch.delenv("CHOP_CACHE")
    assert default_cache_dir().name == "chop"


def test_an_own_folder_for_one_module(jets: JetFiles, tmp_path: Path, cache: Path) -> None:
    own = tmp_path / "own"
    MaseDataModule("jsc", 8, path=jets.hdf5(), cache_dir=own).setup()
    assert list(own.glob("preprocessed/jsc/*/about.json"))
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_is_one_line(jets: JetFiles, cache: Path) -> None:
    cache.write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be written.*CHOP_CACHE"):
        MaseDataModule("jsc", 8, path=jets.hdf5()).setup()


def test_a_write_that_fails_leaves_nothing_behind(
    jets: JetFiles, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.write_array_header_1_0", full)
    with pytest.raises(OutputError, match="No space left on device"):
        MaseDataModule("jsc", 8, path=jets.hdf5()).setup()
    assert not list(cache.glob("preprocessed/jsc/*/"))
    assert not list(cache.glob("preprocessed/jsc/.unfinished*"))


def test_a_run_killed_while_it_writes_leaves_no_half(jets: JetFiles, cache: Path) -> None:
    path = jets.hdf5()
    killed = subprocess.run([sys.executable, "-c", KILLED + PREPARE, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = cache.glob("preprocessed/jsc/.unfinished*")
    assert (left / "train_x.npy").exists()
    data = MaseDataModule("jsc", 8, path=path)
    assert len(data.train_dataset) == 720
    assert not left.exists()


def test_another_process_opens_the_rows_itself(jets: JetFiles) -> None:
    data = MaseDataModule("jsc", 8, path=jets.hdf5())
    data.setup()
    sent = pickle.dumps(data)
    assert len(sent) < 2_000
    assert pickle.loads(sent).fingerprint == data.fingerprint


def test_sums_are_kept_until_the_file_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chop.dataset.cache.SETTLED_NS", 0)
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = file_sha256(path, cache)
    (memo,) = (cache / "checksums").iterdir()
    memo.write_text(json.dumps(json.loads(memo.read_text()) | {"sha256": "kept"}))
    assert file_sha256(path, cache) == "kept"
    path.write_bytes(b"other")
    assert file_sha256(path, cache) not in ("kept", first)
    with pytest.raises(DataError, match="cannot be read"):
        file_sha256(tmp_path / "none", cache)


def test_two_processes_that_start_together(jets: JetFiles, cache: Path) -> None:
    path = str(jets.hdf5())
    runs = [
        subprocess.Popen([sys.executable, "-c", PREPARE, path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(found) == 1
    assert len(list(cache.glob("preprocessed/jsc/*/about.json"))) == 1


def in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def by_rename(path: Path, content: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


REPLACED = pytest.mark.parametrize("replace", [in_place, by_rename])


def with_the_old_time(path: Path, replace: Callable[[Path, bytes], None], content: bytes) -> None:
    """Put other contents in the place of a file, of the same size and modification time."""
    before = path.stat()
    assert len(content) == before.st_size
    replace(path, content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@REPLACED
@pytest.mark.parametrize("settled", [True, False])
def test_a_replaced_file_of_equal_size_and_time_is_another(
    replace: Callable[[Path, bytes], None],
    settled: bool,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    if settled:
        monkeypatch.setattr("chop.dataset.cache.SETTLED_NS", 0)
    first = file_sha256(path, cache)
    if settled:
        time.sleep(0.02)  # more than a tick of the clock that the kernel dates changes by
    with_the_old_time(path, replace, b"two")
    assert file_sha256(path, cache) == hashlib.sha256(b"two").hexdigest() != first


@REPLACED
def test_rows_of_a_replaced_file_are_the_new_ones(
    replace: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    text = "a,label\n" + "".join(f"{n % 7}.5,{n % 2}\n" for n in range(40))
    path.write_text(text, encoding="utf-8")
    before = MaseDataModule("csv", 8, path=path)
    before.setup()
    with_the_old_time(path, replace, text.replace("3.5", "9.5").encode())
    after = MaseDataModule("csv", 8, path=path)
    assert after.fingerprint != before.fingerprint


def test_a_file_that_changes_while_it_is_read_is_not_taken(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    text = "a,label\n" + "".join(f"{n % 7}.5,{n % 2}\n" for n in range(40))
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr("chop.dataset.own.file_sha256", lambda path, cache: "of something else")
    with pytest.raises(DataError, match=r"rows\.csv: has changed while it was read"):
        MaseDataModule("csv", 8, path=path).setup()
    assert not list(cache.glob("preprocessed/csv/*/"))
