"""The stored study: claims, the dead, torn files and several storages."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState
from search_cases import StoreMaker

from chop.errors import ChopError, ConfigError, OutputError, SearchError
from chop.search.study import patience
from chop.search.study.journal import FinishedTrials
from chop.search.study.storage import Place, masked_storage, open_store
from chop.search.study.store import Store
from chop.search.study.trial import Outcome, frozen
from chop.search.study.trial import TrialRequest as Wanted
from chop.search.study.workers import is_alive, this_machine, this_worker


def wanted(key: str) -> Wanted:
    return Wanted(key, {"a": key}, {}, {})


DONE = Outcome([1.0, 2.0], {"software_metrics": {"accuracy": 1.0}})


def test_of_two_claims_on_one_configuration_the_first_wins(open_at: StoreMaker) -> None:
    one, other = open_at(), open_at()
    (mine,) = one.claim([wanted("x")], None)
    assert mine is not None
    assert other.claim([wanted("x")], None) == [None]
    one.finish([(mine, DONE)])
    assert other.claim([wanted("x")], None) == [None]
    assert [trial.number for trial in other.frozen_trials()] == [mine.number]


def test_no_more_trials_are_claimed_than_the_study_is_to_have(open_at: StoreMaker) -> None:
    one, other = open_at(), open_at()
    first = one.claim([wanted(f"a{i}") for i in range(3)], 5)
    second = other.claim([wanted(f"b{i}") for i in range(3)], 5)
    assert [trial is not None for trial in (*first, *second)] == [True] * 5 + [False]


def test_what_is_given_up_can_be_claimed_again(open_at: StoreMaker) -> None:
    one, other = open_at(), open_at()
    (mine,) = one.claim([wanted("x")], None)
    assert mine is not None
    one.give_up([mine], "interrupted")
    (theirs,) = other.claim([wanted("x")], None)
    assert theirs is not None
    other.finish([(theirs, DONE)])
    assert [trial.number for trial in one.frozen_trials()] == [theirs.number]


def test_a_failed_trial_keeps_its_reason_and_counts(open_at: StoreMaker) -> None:
    store = open_at()
    (trial,) = store.claim([wanted("x")], None)
    assert trial is not None
    store.finish([(trial, Outcome(reason="SearchError: loss is nan"))])
    (stored,) = open_at().frozen_trials()
    assert stored.state == TrialState.FAIL
    assert stored.user_attrs["reason"] == "SearchError: loss is nan"
    assert open_at().claim([wanted("x")], None) == [None]


def test_who_is_alone_stores_without_claims_and_others_see_it(open_at: StoreMaker) -> None:
    from datetime import datetime

    store = open_at()
    with store.alone() as alone:
        assert alone
        store.add([(wanted("x"), DONE, datetime.now()), (wanted("y"), DONE, datetime.now())])
    other = open_at()
    with other.alone() as alone:
        assert not alone
    assert [(t.number, t.values) for t in other.frozen_trials()] == [
        (0, [1.0, 2.0]),
        (1, [1.0, 2.0]),
    ]
    assert [t.number for t in store.frozen_trials()] == [0, 1]
    assert store.news() == []


CLAIM_AND_DIE = """
import os, signal, sys
from chop.search.study.storage import Place, open_store
from chop.search.study.trial import TrialRequest as Wanted
store = open_store(Place(sys.argv[1], "search"), ["maximize", "minimize"], {})
assert store.claim([Wanted("x", {}, {}, {})], None)[0] is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_trials_of_a_killed_process_are_given_up(open_at: StoreMaker, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM_AND_DIE, str(tmp_path / "study.log")]
    assert subprocess.run(command, check=False).returncode == -9
    store = open_at()
    store.sync()
    assert store.is_taken("x")
    assert store.free_the_dead() == 1
    assert not store.is_taken("x")
    assert store.claim([wanted("x")], None)[0] is not None


@pytest.mark.parametrize("room", [1, 60, 200])
def test_a_full_disk_leaves_no_half_of_a_record(
    room: int, open_at: StoreMaker, tmp_path: Path
) -> None:
    """The limit takes a part of what is written and refuses the rest, as a disk does."""
    store, journal = open_at(), tmp_path / "study.log"
    before = journal.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
    try:
        with pytest.raises(OutputError, match=r"study\.log: cannot be written: .*are intact"):
            store.claim([wanted("x" * 300)], None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.read_bytes() == before
    assert open_at().claim([wanted("x" * 300)], None)[0] is not None


def test_what_a_killed_process_left_half_written_goes(open_at: StoreMaker, tmp_path: Path) -> None:
    store, left = open_at(), tmp_path / ".best.json.0123abcd.tmp"
    left.touch()
    other = open_at()  # which may be at work on the file
    store.remove_unfinished(tmp_path)
    assert left.exists()
    other.close()
    del other
    store.remove_unfinished(tmp_path)
    assert not left.exists()


def test_a_process_is_known_by_number_and_start() -> None:
    assert is_alive(this_worker(), None)
    assert not is_alive(f"{this_machine()}/{os.getpid()}/1", None)
    assert not is_alive("elsewhere/1/1", None)
    assert not is_alive("elsewhere/1/1", last_beat=0.0)
    import time

    assert is_alive("elsewhere/1/1", last_beat=time.time() - 30)


@pytest.mark.parametrize("torn", [b'{"op_code": 5, "wor', b"{", b"\x00\x00"])
def test_a_line_that_was_written_in_part_does_no_harm(
    torn: bytes, open_at: StoreMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_at()
    (first,) = store.claim([wanted("x")], None)
    with (tmp_path / "study.log").open("ab") as file:
        file.write(torn)
    assert open_at().claim([wanted("x")], None) == [None]
    assert f"cut off, as by a crash: {len(torn)} bytes of it are taken out" in caplog.text
    (second,) = store.claim([wanted("y")], None)
    assert first is not None
    assert second is not None
    store.finish([(first, DONE), (second, DONE)])
    assert len(open_at().frozen_trials()) == 2


def _swapped(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def _without_one(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], *lines[4:]]


def _one_twice(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], *lines[3:]]


@pytest.mark.parametrize("change", [_swapped, _without_one, _one_twice])
def test_whole_lines_in_another_order_are_damage(
    change: Callable[[list[bytes]], list[bytes]], open_at: StoreMaker, tmp_path: Path
) -> None:
    store = open_at()
    for key in "abcd":
        (trial,) = store.claim([wanted(key)], None)
        assert trial is not None
        store.finish([(trial, DONE)])
    path = tmp_path / "study.log"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(open_at().frozen_trials()) == 4
    path.write_bytes(b"".join(change(lines)))
    with pytest.raises(SearchError, match=r"study\.log: line [45] is damaged"):
        open_at()


def test_optuna_reads_the_journal_as_its_own(open_at: StoreMaker, tmp_path: Path) -> None:
    """What optuna-dashboard does: it opens the file with Optuna's own storage."""
    import optuna

    store = open_at()
    (trial,) = store.claim([wanted("x")], None)
    assert trial is not None
    store.finish([(trial, DONE)])
    backend = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    study = optuna.load_study(study_name="search", storage=backend)
    assert study.trials[0].values == [1.0, 2.0]
    for line in (tmp_path / "study.log").read_text(encoding="utf-8").splitlines():
        json.loads(line)


def test_a_study_of_another_problem_is_refused(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "study.log"), "search")
    open_store(place, ["minimize"], {"data set": "one"})
    with pytest.raises(SearchError, match="another data set"):
        open_store(place, ["minimize"], {"data set": "two"})


def test_a_database_is_a_storage_too(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/study.db", "search")
    one, other = (open_store(place, ["maximize", "minimize"], {}) for _ in range(2))
    (mine,) = one.claim([wanted("x")], None)
    assert mine is not None
    assert other.claim([wanted("x"), wanted("y")], 2)[0] is None
    with one.signs_of_life():
        one.finish([(mine, DONE)])
    other.sync()
    assert other.done["x"].values == [1.0, 2.0]
    _close(one, other)


def _close(*stores: Store) -> None:
    """SQLite complains of connections that are left open."""
    for store in stores:
        storage: Any = store.storage
        storage.remove_session()
        getattr(storage, "_backend", storage).engine.dispose()


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/x", "no-such-database://x"])
def test_a_storage_that_cannot_be_opened_is_one_line(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LONGEST_OUTAGE", 0.1)
    with pytest.raises((ConfigError, patience.StorageLost)) as caught:
        open_store(Place(url, "search"), ["minimize"], {})
    assert "\n" not in str(caught.value)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in masked_storage(Place("postgresql://me:secret@host/db", "search"))


def test_a_study_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ChopError, match="no study 'search'"):
        open_store(Place(str(tmp_path / "x.log"), "search"), ["minimize"], {}, create=False)


def test_a_finished_trial_is_written_as_optuna_would_write_it(tmp_path: Path) -> None:
    choices = {"a": CategoricalDistribution([2, None, "x"]), "b": CategoricalDistribution([1, 2])}
    moment = datetime(2026, 1, 2, 3, 4, 5, 6)
    for values, state in (
        ([0.5, 2.0], TrialState.COMPLETE),
        ([0.5], TrialState.COMPLETE),
        (None, TrialState.FAIL),
    ):
        trial = frozen(
            Wanted("key", {"w": None}, {"a": None, "b": 2}, choices, {"note": 1}), state, moment, {}
        )
        trial.values, trial.datetime_complete = values, moment
        path = tmp_path / f"{state.name}{values}.log"
        storage = JournalStorage(JournalFileBackend(str(path)))
        directions = [StudyDirection.MAXIMIZE] * len(values or [1])
        study_id = storage.create_new_study(directions, "s")
        storage.create_new_trial(study_id, trial)
        theirs = json.loads(path.read_text().splitlines()[-1])
        ours = json.loads(FinishedTrials(study_id, theirs["worker_id"]).line(trial))
        assert ours == theirs
