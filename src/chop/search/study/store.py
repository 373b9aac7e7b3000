"""The stored study: what was evaluated, what is under way, and which process does it.

Every process that takes part claims a configuration before it evaluates it, by adding a running
trial that carries the key of the configuration. Storages number trials in the order in which they
are added, so of several claims on one configuration the lowest number wins and the others are
void. Void trials stay in the study, marked as failed, and count for nothing. Trials are Optuna's
here, as a storage returns them; `Store.trials` gives them as values.
"""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from chop.errors import SearchError
from chop.runs import write_new
from chop.search.study.journal import FinishedTrials, Journal
from chop.search.study.memory import KnownTrials
from chop.search.study.patience import is_outage
from chop.search.study.trial import (
    TOKEN,
    VOID,
    WORKER,
    Outcome,
    Trial,
    TrialRequest,
    claim_of,
    frozen,
    request_of,
)
from chop.search.study.workers import BEAT, is_alive, this_worker

UNSTORED = "unstored.json"
BEATS = "alive:"
ABANDONED: set[str] = set()
"""Claims of this process that it could not give up, as the storage was away."""


@contextlib.contextmanager
def _abandoned_if_it_fails(tokens: Sequence[str]) -> Iterator[None]:
    """Let claims be taken over if the block cannot do with them what it wants to."""
    try:
        yield
    except BaseException:
        ABANDONED.update(tokens)
        raise


def close(storage: BaseStorage) -> None:
    """Let go of what a storage holds open; it may be used again."""
    backend: Any = getattr(storage, "_backend", None)
    if hasattr(backend, "engine"):
        backend.remove_session()
        backend.engine.dispose()


class Store(KnownTrials):
    """A study in a storage that several processes may share."""

    def __init__(self, storage: BaseStorage, study: optuna.Study, journal: Journal | None) -> None:
        super().__init__()
        self.storage = storage
        self.study = study
        self.study_id = storage.get_study_id_from_name(study.study_name)
        self.worker = this_worker()
        self._journal = journal
        self._records = FinishedTrials(self.study_id, self.worker)
        self._mine: dict[str, list[FrozenTrial]] = {}
        self._last_beat: float | None = None
        self._back = 0.0
        """When this process could last give signs of life again after it could not."""
        self._seen = 0
        self._open: list[int] = []
        self._has_created = False
        self._unread = 0
        self._known = -1
        """The bytes of the journal whose records this process has seen or written itself."""

    def sync(self) -> None:
        """Learn what has happened."""
        known = -1 if self._journal is None else self._journal.size
        trials = self._all_trials()
        self._known = known
        looked_at = [*self._open, *range(self._seen, len(trials))]
        self._seen = len(trials)
        self._unread = 0
        self._open = []
        for number in looked_at:
            trial = trials[number]
            if trial.state.is_finished():
                self._note_finished(trial)
            else:
                self._open.append(number)
                self._note_running(trial)

    def catch_up(self) -> None:
        """Learn what others have done; a process does not read its own trials back."""
        if self._journal is None or self._journal.size != self._known:
            self.sync()

    def _all_trials(self) -> list[FrozenTrial]:
        """All trials, also if records of ours came too late, as another process gave up the same.

        Optuna complains of each such record once, when it reads it, and continues behind it.
        """
        while True:
            with contextlib.suppress(UpdateFinishedTrialError):
                return self.storage.get_all_trials(self.study_id, deepcopy=False)

    def _note_finished(self, trial: FrozenTrial) -> None:
        key, _, _, is_void = claim_of(trial)
        if key is None:
            return
        mine = self.running.get(key)
        if mine is not None and mine.number == trial.number:
            del self.running[key]
        if is_void:
            return
        known = self.done.get(key)
        if known is None:
            self._news.append(trial)
        if known is None or known.number == trial.number:
            self.done[key] = trial

    def _note_running(self, trial: FrozenTrial) -> None:
        key, worker, token, is_void = claim_of(trial)
        if key is None or is_void:
            return
        first = self.running.get(key)
        if first is None or trial.number <= first.number:
            self.running[key] = trial
        if worker == self.worker:
            self._mine.setdefault(token, []).append(trial)

    def claim(
        self, requests: Sequence[TrialRequest], limit: int | None
    ) -> list[FrozenTrial | None]:
        """Claim configurations; None for those that others have claimed before, or beyond `limit`.

        Args:
            limit: how many trials the study is to have.
        """
        tokens = [uuid.uuid4().hex for _ in requests]
        now = datetime.now()
        templates = [
            frozen(each, TrialState.RUNNING, now, {TOKEN: token, WORKER: self.worker})
            for each, token in zip(requests, tokens, strict=True)
        ]
        with _abandoned_if_it_fails(tokens):
            self._create(templates)
            self._mine = {}
            self.sync()
        # A claim was stored twice if the connection broke before we knew of the first time.
        twins = [twin for token in tokens for twin in self._mine[token][1:]]
        trials = [self._mine[token][0] for token in tokens]
        won = [trial if self._is_ours(trial, limit) else None for trial in trials]
        lost = [trial for trial, ours in zip(trials, won, strict=True) if ours is None]
        self.give_up(lost, "another process evaluates this configuration")
        self.give_up(twins, "this process evaluates this configuration already")
        return won

    def _create(self, templates: list[FrozenTrial]) -> None:
        # A journal storage can tell the number of a trial only after it has created one.
        first = templates[: 0 if self._has_created else 1]
        for template in first:
            self.storage.create_new_trial(self.study_id, template)
        self._has_created = True
        with self._together():
            for template in templates[len(first) :]:
                self.storage.create_new_trial(self.study_id, template)

    def _is_ours(self, trial: FrozenTrial, limit: int | None) -> bool:
        key = str(claim_of(trial).key)
        if key in self.done or self.running[key].number != trial.number:
            return False
        if limit is None:
            return True
        before = sum(other.number < trial.number for other in self.running.values())
        return len(self.done) + before < limit

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield whether no other process takes part, so that nothing need be claimed."""
        if self._journal is None:
            yield False
            return
        with self._journal.alone() as is_alone:
            if is_alone:
                self.catch_up()
            yield is_alone

    def add(self, finished: Sequence[tuple[TrialRequest, Outcome, *tuple[datetime, ...]]]) -> None:
        """Store finished trials without claims, because this process is alone.

        Args:
            finished: each with the time at which it began, and at which it ended if not now.
        """
        first = self._seen + self._unread
        trials = [self.put(*each, number=number) for number, each in enumerate(finished, first)]
        assert self._journal is not None, "only in a journal can a process know that it is alone"
        start, end = self._journal.append_lines([self._records.line(each) for each in trials])
        self._known = end if start == self._known else -1
        self._unread += len(trials)

    def finish(self, outcomes: Sequence[tuple[FrozenTrial, Outcome]]) -> None:
        """Store what became of trials of ours."""
        with _abandoned_if_it_fails([claim_of(trial).token for trial, _ in outcomes]):
            with self._together():
                for trial, outcome in outcomes:
                    self._finish(trial._trial_id, outcome)
            self.sync()

    def once(self, request: TrialRequest, work: Callable[[], Outcome]) -> Outcome | None:
        """Store and return the result of `work`; None if another process has done it or does it."""
        if self.is_taken(request.key):
            return None
        (trial,) = self.claim([request], None)
        if trial is None:
            return None
        try:
            outcome = work()
        except BaseException:
            self.give_up([trial], "interrupted")
            raise
        self.finish([(trial, outcome)])
        return outcome

    def _finish(self, trial_id: int, outcome: Outcome) -> None:
        storage = self.storage
        with contextlib.suppress(UpdateFinishedTrialError):  # somebody thought that we were dead
            for name, value in outcome.attributes().items():
                storage.set_trial_user_attr(trial_id, name, value)
            for name, violation in outcome.constraints().items():
                storage.set_trial_system_attr(trial_id, name, violation)
            storage.set_trial_state_values(trial_id, outcome.state, outcome.values)

    def give_up(self, trials: Sequence[FrozenTrial], reason: str) -> None:
        """Mark trials as void: they count for nothing, and others may claim what they claimed."""
        if not trials:
            return
        with _abandoned_if_it_fails([claim_of(trial).token for trial in trials]):
            with self._together():
                for trial in trials:
                    with contextlib.suppress(UpdateFinishedTrialError):
                        self.storage.set_trial_user_attr(trial._trial_id, VOID, True)
                        self._finish(trial._trial_id, Outcome(reason=reason))
            self.sync()

    def free_the_dead(self) -> int:
        """Give up the trials of processes that have ended; how many there were."""
        if not self.running:
            return 0
        if self._last_beat is not None and time.monotonic() - self._last_beat > 2 * BEAT:
            self._beat()
        self.sync()  # a process that has ended since may have finished what it had begun
        beats = {
            name.removeprefix(BEATS): max(beat, self._back)
            for name, beat in self.storage.get_study_user_attrs(self.study_id).items()
            if name.startswith(BEATS)
        }
        dead = [
            trial
            for trial in self.running.values()
            for _, worker, token, _ in [claim_of(trial)]
            if token in ABANDONED or not is_alive(worker, beats.get(worker))
        ]
        self.give_up(dead, "its process ended before it did")
        return len(dead)

    def remove_unfinished(self, folder: Path) -> None:
        """Remove files that a killed process has left half written, if no other is at work here."""
        if self._journal is None:
            return
        with self._journal.alone() as is_alone:
            for path in folder.glob(".*.tmp") if is_alone else ():
                path.unlink(missing_ok=True)

    @property
    def crosses_machines(self) -> bool:
        """Return whether processes of other machines may take part, which need signs of life."""
        return self._journal is None

    @contextlib.contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Tell other machines again and again that this process is there, while the block runs."""
        if not self.crosses_machines:
            yield
            return
        stopped = threading.Event()
        self._beat()
        thread = threading.Thread(target=self._beat_until, args=(stopped,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            self._last_beat = None

    def _beat_until(self, stopped: threading.Event) -> None:
        while not stopped.wait(BEAT):
            try:
                self._beat()
            except Exception as error:
                if not is_outage(error):  # else the next one may arrive
                    raise

    def _beat(self) -> None:
        name = f"{BEATS}{self.worker}"
        self.storage.set_study_user_attr(self.study_id, name, time.time())
        now = time.monotonic()
        if self._last_beat is not None and now - self._last_beat > 2 * BEAT:
            self._back = time.time()  # others could not give signs of life either
        self._last_beat = now

    def trials(self) -> list[Trial]:
        """The trials that count, in the order of their numbers."""
        return list(map(Trial.of, self.frozen_trials()))

    def frozen_trials(self) -> list[FrozenTrial]:
        """The same as Optuna has them."""
        self.catch_up()
        return sorted(self.done.values(), key=lambda trial: trial.number)

    def close(self) -> None:
        """Let go of the connections to a database."""
        close(self.storage)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        with self._journal.together() if self._journal else contextlib.nullcontext():
            yield


def keep_unstored(folder: Path | None, finished: Sequence[tuple[FrozenTrial, Outcome]]) -> None:
    """Write results that a database was away for to a new file in `folder`."""
    rows = []
    for trial, outcome in finished:
        row = vars(request_of(trial)) | {"outcome": vars(outcome)}
        choices = trial.distributions.items()
        rows.append(row | {"distributions": {n: distribution_to_json(each) for n, each in choices}})
    if folder is not None and rows:
        write_new(folder / UNSTORED, json.dumps(rows, indent=1) + "\n")


def store_kept(folder: Path, store: Store) -> None:
    """Store the results that are kept in `folder`, and remove the files of them."""
    for path in sorted(folder.glob(f"{Path(UNSTORED).stem}*.json")):
        for request, outcome in _read_unstored(path):
            if not store.is_taken(request.key):
                (trial,) = store.claim([request], None)
                store.finish([(trial, outcome)] if trial else [])
            if request.key not in store.done:
                break  # another process seems to evaluate it; if not, the file is still needed
        else:
            path.unlink(missing_ok=True)


def _read_unstored(path: Path) -> list[tuple[TrialRequest, Outcome]]:
    try:
        found = []
        for row in json.loads(path.read_text(encoding="utf-8")):
            choices = row["distributions"].items()
            own = {name: row[name] for name in ("key", "config", "params", "system_attrs")}
            known = {name: json_to_distribution(text) for name, text in choices}
            found.append((TrialRequest(**own, distributions=known), Outcome(**row["outcome"])))
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SearchError(
            f"{path}: is damaged ({type(error).__name__}); remove it to evaluate its trials again"
        ) from None
