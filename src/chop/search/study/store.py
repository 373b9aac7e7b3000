"""The stored study: what was evaluated, what is under way, and who does it.

Every process that takes part claims a configuration before it evaluates it, by adding a running
trial that carries the key of the configuration. Storages number trials in the order in which they
are added, so of several claims on one configuration the lowest number wins and the others are
void. Void trials stay in the study, marked as failed, and count for nothing.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from chop.search.study.journal import FinishedTrials, Journal
from chop.search.study.patience import is_outage
from chop.search.study.workers import BEAT, is_alive, this_worker

KEY, WORKER, TOKEN, VOID, REASON = "key", "worker", "claim", "void", "reason"
BEATS = "alive:"
ABANDONED: set[str] = set()
"""Claims of this process that it could not give up, as the storage was away."""


@dataclass(frozen=True)
class Wanted:
    """A configuration to be evaluated, as it is stored."""

    key: str
    config: dict[str, Any]
    params: dict[str, Any]
    distributions: dict[str, Any]
    system_attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a trial: objectives and metrics, or the reason why there are none."""

    values: list[float] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What is stored with the trial: software_metrics, hardware_metrics, scaled_metrics."""
    violations: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None

    def stored(self) -> dict[str, Any]:
        """What is stored for users to read."""
        return {**self.metrics} | ({REASON: self.reason} if self.reason is not None else {})

    def constraints(self) -> dict[str, float]:
        """The violations under the names that Optuna has for them."""
        return {f"constraints:{name}": value for name, value in self.violations.items()}


def frozen(
    wanted: Wanted, state: TrialState, begun: datetime, attrs: Mapping[str, Any]
) -> FrozenTrial:
    """A trial to be stored; Optuna's `create_trial` would check what is right by construction."""
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        datetime_start=begun,
        datetime_complete=None,
        params=wanted.params,
        distributions=wanted.distributions,
        system_attrs=dict(wanted.system_attrs),
        user_attrs={KEY: wanted.key, "sampled_config": wanted.config, **attrs},
        intermediate_values={},
    )


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


class Store:
    """A study in a storage that several processes may share."""

    def __init__(self, storage: BaseStorage, study: optuna.Study, journal: Journal | None) -> None:
        self.storage = storage
        self.study = study
        self.study_id = storage.get_study_id_from_name(study.study_name)
        self.worker = this_worker()
        self.done: dict[str, FrozenTrial] = {}
        """Finished trials by the key of their configuration."""
        self.running: dict[str, FrozenTrial] = {}
        """Trials under way, whosever they are."""
        self._journal = journal
        self._records = FinishedTrials(self.study_id, self.worker)
        self._news: list[FrozenTrial] = []
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
        """Learn what others have done; one's own trials need not be read back for that."""
        if self._journal is None or self._journal.size != self._known:
            self.sync()

    def _all_trials(self) -> list[FrozenTrial]:
        """All trials, also if records of ours came too late, as another process gave up the same.

        Optuna complains of each such record once, when it reads it, and goes on behind it.
        """
        while True:
            with contextlib.suppress(UpdateFinishedTrialError):
                return self.storage.get_all_trials(self.study_id, deepcopy=False)

    def news(self) -> list[FrozenTrial]:
        """The trials that have finished since this was last asked."""
        news, self._news = self._news, []
        return news

    def _note_finished(self, trial: FrozenTrial) -> None:
        key = trial.user_attrs.get(KEY)
        if key is None:  # not a trial of ours: somebody used the study for something else
            return
        mine = self.running.get(key)
        if mine is not None and mine.number == trial.number:
            del self.running[key]
        if VOID in trial.user_attrs:
            return
        known = self.done.get(key)
        if known is None:
            self._news.append(trial)
        if known is None or known.number == trial.number:
            self.done[key] = trial

    def _note_running(self, trial: FrozenTrial) -> None:
        attrs = trial.user_attrs
        if KEY not in attrs or VOID in attrs:
            return
        first = self.running.get(attrs[KEY])
        if first is None or trial.number <= first.number:
            self.running[attrs[KEY]] = trial
        if attrs[WORKER] == self.worker:
            self._mine.setdefault(attrs[TOKEN], []).append(trial)

    def taken(self, key: str) -> bool:
        """Whether a configuration was evaluated or is being evaluated."""
        return key in self.done or key in self.running

    def claim(self, wanted: Sequence[Wanted], limit: int | None) -> list[FrozenTrial | None]:
        """Claim configurations; None for those that others have claimed before, or beyond `limit`.

        Args:
            limit: how many trials the study is to have.
        """
        tokens = [uuid.uuid4().hex for _ in wanted]
        templates = [
            self._template(each, token) for each, token in zip(wanted, tokens, strict=True)
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

    def _template(self, wanted: Wanted, token: str) -> FrozenTrial:
        claim = {TOKEN: token, WORKER: self.worker}
        return frozen(wanted, TrialState.RUNNING, datetime.now(), claim)

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
        key = trial.user_attrs[KEY]
        if key in self.done or self.running[key].number != trial.number:
            return False
        if limit is None:
            return True
        before = sum(other.number < trial.number for other in self.running.values())
        return len(self.done) + before < limit

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process takes part, so that nothing need be claimed in the block."""
        if self._journal is None:
            yield False
            return
        with self._journal.alone() as is_alone:
            if is_alone:
                self.catch_up()
            yield is_alone

    def add(self, finished: Sequence[tuple[Wanted, Outcome, datetime]]) -> None:
        """Store finished trials that nobody has claimed, because this process is alone."""
        templates: list[FrozenTrial] = []
        for wanted, outcome, begun in finished:
            state = TrialState.FAIL if outcome.values is None else TrialState.COMPLETE
            trial = frozen(wanted, state, begun, outcome.stored())
            trial.values = outcome.values
            trial.datetime_complete = datetime.now()
            trial.system_attrs |= outcome.constraints()
            trial.number = self._seen + self._unread + len(templates)
            self.done[wanted.key] = trial
            templates.append(trial)
        assert self._journal is not None, "only in a journal can a process know that it is alone"
        start, end = self._journal.append_lines([self._records.line(each) for each in templates])
        self._known = end if start == self._known else -1
        self._unread += len(templates)

    def finish(self, outcomes: Sequence[tuple[FrozenTrial, Outcome]]) -> None:
        """Store what became of trials of ours."""
        with _abandoned_if_it_fails([trial.user_attrs[TOKEN] for trial, _ in outcomes]):
            with self._together():
                for trial, outcome in outcomes:
                    self._finish(trial._trial_id, outcome)
            self.sync()

    def _finish(self, trial_id: int, outcome: Outcome) -> None:
        storage = self.storage
        with contextlib.suppress(UpdateFinishedTrialError):  # somebody thought that we were dead
            for name, value in outcome.stored().items():
                storage.set_trial_user_attr(trial_id, name, value)
            for name, violation in outcome.constraints().items():
                storage.set_trial_system_attr(trial_id, name, violation)
            state = TrialState.FAIL if outcome.values is None else TrialState.COMPLETE
            storage.set_trial_state_values(trial_id, state, outcome.values)

    def give_up(self, trials: Sequence[FrozenTrial], reason: str) -> None:
        """Mark trials as void: they count for nothing, and others may claim what they claimed."""
        if not trials:
            return
        with _abandoned_if_it_fails([trial.user_attrs[TOKEN] for trial in trials]):
            with self._together():
                for trial in trials:
                    with contextlib.suppress(UpdateFinishedTrialError):
                        self.storage.set_trial_user_attr(trial._trial_id, VOID, True)
                        self._finish(trial._trial_id, Outcome(reason=reason))
            self.sync()

    def free_the_dead(self) -> int:
        """Give up the trials of processes that are no more; how many there were."""
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
            if trial.user_attrs[TOKEN] in ABANDONED
            or not is_alive(trial.user_attrs[WORKER], beats.get(trial.user_attrs[WORKER]))
        ]
        self.give_up(dead, "its process ended before it did")
        return len(dead)

    @property
    def crosses_machines(self) -> bool:
        """Whether processes of other machines may take part, which need signs of life."""
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

    def counted(self) -> list[FrozenTrial]:
        """The trials that count, in the order of their numbers."""
        self.catch_up()
        return sorted(self.done.values(), key=lambda trial: trial.number)

    def close(self) -> None:
        """Let go of the connections to a database."""
        close(self.storage)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        with self._journal.together() if self._journal else contextlib.nullcontext():
            yield
