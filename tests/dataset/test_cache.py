import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jet_files import JetFiles

from chop.dataset import MaseDataModule
from chop.dataset.cache import default_cache_dir, file_sha256
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

    monkeypatch.setattr("numpy.save", full)
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


def test_sums_are_kept_until_the_file_changes(tmp_path: Path, cache: Path) -> None:
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
