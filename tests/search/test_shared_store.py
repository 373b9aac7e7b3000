"""A study that several processes share: dead ones, full disks, clocks that are set back."""

import errno
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from chop.errors import OutputError
from chop.results.trials import log_json, table_csv
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store
from chop.search.study.trial import Outcome
from chop.search.study.trial import TrialRequest as Wanted

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
    assert len(store_in(tmp_path).frozen_trials()) == 2


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
        assert first.is_taken("b")
        first.add([(wanted("c"), DONE, datetime.now())])
    numbers = {
        trial.user_attrs["key"]: trial.number for trial in store_in(tmp_path).frozen_trials()
    }
    assert numbers == {t.user_attrs["key"]: t.number for t in first.done.values()}
    assert sorted(numbers) == ["a", "b", "c"]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_for_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    (trial,) = store.claim([wanted("a")], None)
    assert trial is not None
    monkeypatch.setattr("chop.search.study.journal._cut_torn_line", full)
    with pytest.raises(OutputError, match=r"study.log: cannot be written: No space left"):
        store.finish([(trial, DONE)])


def test_a_clock_that_is_set_back_makes_no_trial_take_less_than_no_time(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with store.alone():
        store.add([(wanted("a"), DONE, datetime(2100, 1, 1))])
    trials = store.frozen_trials()
    assert log_json(trials, 2)["0"]["duration"] == 0
    assert ",0.0," in table_csv(trials)
