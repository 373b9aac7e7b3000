"""What the kills, the load and the scarce resources have found, each as a small test of its own."""

import errno
import os
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.actions import train
from chop.cli import lacking
from chop.dataset import MaseDataModule
from chop.dataset.data_module import TensorLoader
from chop.errors import OutputError
from chop.files import hold, remove_if_empty, replacing, write_text
from chop.models import get_model, get_model_info
from chop.results.trials import log_json, table_csv
from chop.runs import new_folder, own_suffix, write_new
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store
from chop.search.study.trial import Outcome
from chop.search.study.trial import TrialRequest as Wanted
from chop.training.batches import Epochs, normalisable
from chop.training.fit import TrainingResult

DONE = Outcome([1.0, 2.0], {"software_metrics": {}, "hardware_metrics": {}, "scaled_metrics": {}})


def store_in(folder: Path) -> Store:
    return open_store(Place(str(folder / "study.log"), "search"), ["maximize", "minimize"], {})


def wanted(key: str) -> Wanted:
    return Wanted(key, {"a": key}, {}, {})


CLAIM_AND_DIE = """
import os, signal, sys
from chop.search.study.storage import Place, open_store
from chop.search.study.trial import TrialRequest as Wanted
store = open_store(Place(sys.argv[1], "search"), ["maximize", "minimize"], {})
store.claim([Wanted(key, {"a": key}, {}, {}) for key in "xyz"], None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_processes_give_up_the_trials_of_a_dead_one_at_once(tmp_path: Path) -> None:
    """The second found them finished, and fell over the complaint at its next step."""
    command = [sys.executable, "-c", CLAIM_AND_DIE, str(tmp_path / "study.log")]
    assert subprocess.run(command, check=False).returncode == -9
    one, other = store_in(tmp_path), store_in(tmp_path)
    one.sync()
    other.sync()
    dead = list(other.running.values())
    assert one.free_the_dead() == len(dead) == 3
    other.give_up(dead, "its process ended before it did")  # it does not know yet
    for store, key in ((other, "x"), (one, "y")):
        (trial,) = store.claim([wanted(key)], None)
        assert trial is not None
        store.finish([(trial, DONE)])
    assert len(store_in(tmp_path).counted()) == 2


def test_who_is_alone_again_knows_what_others_did_in_between(tmp_path: Path) -> None:
    """It trusted what it knew from the last time it was alone, and evaluated a trial again."""
    first = store_in(tmp_path)
    with first.alone() as alone:
        assert alone
        first.add([(wanted("a"), DONE, datetime.now())])
    guest = store_in(tmp_path)
    (trial,) = guest.claim([wanted("b")], None)
    assert trial is not None
    guest.finish([(trial, DONE)])
    del guest
    with first.alone() as alone:
        assert alone
        assert first.taken("b")
        first.add([(wanted("c"), DONE, datetime.now())])
    numbers = {trial.user_attrs["key"]: trial.number for trial in store_in(tmp_path).counted()}
    assert numbers == {t.user_attrs["key"]: t.number for t in first.done.values()}
    assert sorted(numbers) == ["a", "b", "c"]


def trained(folder: Path, **given: Any) -> TrainingResult:
    data = MaseDataModule("toy_tiny", 4096)
    torch.manual_seed(0)
    model = get_model("toy", dataset_info=data.dataset_info)
    settings = {"max_epochs": 1, "save_path": folder} | given
    return train(model, get_model_info("toy"), data, data.dataset_info, **settings)


def test_a_kill_between_the_first_best_and_the_first_last_checkpoint(tmp_path: Path) -> None:
    """The run went on under other names, `best-v1` and `last-v1`."""
    result = trained(tmp_path)
    result.last.unlink()
    again = trained(tmp_path, resume=True)
    assert again.last.name == "last.ckpt"
    assert not list(tmp_path.glob("*-v1*"))


def test_a_kill_after_the_last_epoch_and_before_the_curves(tmp_path: Path) -> None:
    """A run that was resumed with nothing left to train never drew them."""
    trained(tmp_path)
    (tmp_path / "learning_curves.png").unlink()
    trained(tmp_path, resume=True)
    assert (tmp_path / "learning_curves.png").exists()


def test_runs_at_work_in_one_folder_have_names_of_their_own(tmp_path: Path) -> None:
    """Both wrote `best.ckpt` and `last.ckpt`, as neither had when the other looked."""
    with own_suffix(tmp_path, None, resume=False) as first:
        assert first == ""
        with pytest.raises(OutputError, match="another run is at work"):
            trained(tmp_path, resume=True)
        assert trained(tmp_path).last.name == "last-v1.ckpt"
    assert not list(tmp_path.glob(".run*"))


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


def test_a_full_disk_is_one_line_for_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    (trial,) = store.claim([wanted("a")], None)
    assert trial is not None
    monkeypatch.setattr("chop.search.study.journal._cut_torn_line", full)
    with pytest.raises(OutputError, match=r"study.log: cannot be written: No space left"):
        store.finish([(trial, DONE)])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "not enough memory (Unable to allocate 9 GiB)"),
        (MemoryError(), "not enough memory (none is left)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 1"), "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "a.txt"), "a.txt: cannot be written: Disk"),
    ],
)
def test_what_the_machine_lacks_is_no_bug(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chop.cli._drop_output", lambda: None)
    assert text in (lacking(error) or "")


def test_any_other_error_is_a_bug() -> None:
    assert lacking(ValueError("x")) is None
    assert lacking(OSError(errno.ENOENT, "No such file")) is None


def test_a_clock_that_is_set_back_makes_no_trial_take_less_than_no_time(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with store.alone():
        store.add([(wanted("a"), DONE, datetime(2100, 1, 1))])
    trials = store.counted()
    assert log_json(trials, 2)["0"]["duration"] == 0
    assert ",0.0," in table_csv(trials)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("rows", [9, 10, 17, 18, 19])
def test_all_processes_leave_out_the_same_lone_row(rows: int) -> None:
    """One process left out a last batch of one row; several fell over it."""
    loader = TensorLoader(torch.zeros(rows, 2), torch.zeros(rows, dtype=torch.int64), 4, True)
    steps = [
        [
            len(x)
            for x, _ in normalisable(Epochs(loader, even=True).batches(1, rank, 2), Normalised())
        ]
        for rank in (0, 1)
    ]
    assert steps[0] == steps[1]
    assert 1 not in steps[0]
