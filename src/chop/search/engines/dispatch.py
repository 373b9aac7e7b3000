"""Trials on their way: evaluated by an engine, recorded in a study, each once."""

import contextlib
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Any

from optuna.trial import FrozenTrial

from chop.search.engines.engine import ATTEMPTS, QUICK, Answer, Lost, TrialEngine
from chop.search.spaces.measure import EvaluationRequest, Measure
from chop.search.study.patience import StorageLost
from chop.search.study.store import Store, keep_unstored
from chop.search.study.trial import Outcome, Point, TrialRequest

BATCH_SECONDS = 0.1
LARGEST_BATCH = 64
LONGEST_ALONE = 5.0
"""Seconds that a process which wants to join a study waits at most for one that is alone."""

Done = list[tuple[TrialRequest, Outcome]]


@dataclass(frozen=True)
class Flight:
    """A trial, or a part of one, in a batch that an engine has.

    Attributes:
        trial: the claim on it; None if it needs none, as this process is alone.
    """

    request: TrialRequest
    trial: FrozenTrial | None
    part: Any = None
    attempt: int = 1

    def evaluation(self, front: tuple[Point, ...]) -> EvaluationRequest:
        """Return what the engine is to evaluate."""
        return EvaluationRequest(self.request.config, self.part, front)


@dataclass
class Landing:
    """The facts of a trial that is finished."""

    flight: Flight
    outcome: Outcome
    times: tuple[datetime, ...] = field(default_factory=lambda: (datetime.now(),))


class Dispatcher:
    """Sends trials to an engine and records what came of them.

    A trial is claimed before it is sent, so that other processes on the study leave it alone;
    quick trials of a process that is alone need no claim. What an engine loses is sent again, each
    trial alone; one that takes its process with it twice is recorded as failed.

    Args:
        limit: how many trials the study is to have; None for any number.
    """

    def __init__(
        self, engine: TrialEngine, store: Store, measure: Measure, limit: int | None = None
    ) -> None:
        self.engine = engine
        self.store = store
        self.measure = measure
        self.limit = limit
        self.seconds = BATCH_SECONDS
        """The time that a trial takes."""
        self._flights: dict[int, list[Flight]] = {}
        self._parts: dict[str, set[Any]] = {}
        """The parts of trials that are not finished."""
        self._alone: contextlib.ExitStack | None = None
        self._alone_since = 0.0

    def __enter__(self) -> "Dispatcher":
        if self.measure.confidence is not None:
            self.measure.keep_front(map(Outcome.of, self.store.done.values()))
        self.engine.start(self.measure)
        return self

    @property
    def is_idle(self) -> bool:
        """Return whether the engine has nothing to do."""
        return not self._flights

    @property
    def words(self) -> str:
        """Return what the engine is doing, in words; nothing of one that has one slot."""
        if self.engine.slots == 1:
            return ""
        trials = {each.request.key for flights in self._flights.values() for each in flights}
        return f"{self.engine.slots} slots, {len(trials)} in flight"

    @property
    def is_quick(self) -> bool:
        """Return whether trials take so little time that several go together."""
        return self.seconds < QUICK

    def has_room(self, ahead: int = 2) -> bool:
        """Return whether the engine can take another batch.

        Args:
            ahead: batches of quick trials for each slot, so that none waits for the next.
        """
        if self._alone is not None:
            if self.is_idle:
                self._share()  # others may have waited to join
            elif time.monotonic() - self._alone_since > LONGEST_ALONE:
                return False
        return len(self._flights) < self.engine.slots * (ahead if self.is_quick else 1)

    def batch_size(self, room: int) -> int:
        """Return how many trials make a batch, if that is not stated: a tenth of a second."""
        share = -(-room // self.engine.slots)
        if self.engine.batch:
            return max(1, min(self.engine.batch, share))
        return max(1, min(int(BATCH_SECONDS / max(self.seconds, 1e-6)), LARGEST_BATCH, share))

    def send(self, requests: Sequence[TrialRequest]) -> list[TrialRequest]:
        """Have trials evaluated; return those that other processes have taken before."""
        if self._is_alone():
            room = len(requests) if self.limit is None else self.limit - self.store.count
            free = [each for each in requests if not self.store.is_taken(each.key)][: max(room, 0)]
            self.store.reserved |= {each.key for each in free}
            flights = [Flight(each, None) for each in free]
        else:
            claims = self.store.claim(requests, self.limit)
            pairs = zip(requests, claims, strict=True)
            flights = [Flight(each, trial) for each, trial in pairs if trial is not None]
        self._submit(flights)
        ours = {each.request.key for each in flights}
        return [each for each in requests if each.key not in ours]

    def _is_alone(self) -> bool:
        """Return whether no other process takes part, so that nothing need be claimed."""
        if self._alone is None and self.is_quick:
            with contextlib.ExitStack() as stack:
                if stack.enter_context(self.store.alone()):
                    self._alone, self._alone_since = stack.pop_all(), time.monotonic()
        return self._alone is not None

    def _share(self) -> None:
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def _submit(self, flights: Sequence[Flight]) -> None:
        """Give a batch to the engine, and a trial that has parts part by part."""
        whole = []
        for flight in flights:
            parts = self.measure.parts(flight.request.config) if self.engine.slots > 1 else []
            self._parts[flight.request.key] = set(parts)
            for part in parts:
                self._fly([replace(flight, part=part)])
            whole += [] if parts else [flight]
        self._fly(whole)

    def _fly(self, flights: list[Flight]) -> None:
        if flights:
            front = () if self.measure.confidence is None else tuple(self.measure.front)
            ticket = self.engine.submit([each.evaluation(front) for each in flights])
            self._flights[ticket] = flights

    def finished(self, timeout: float) -> Done:
        """Record the trials that are finished, and return them; wait for one if there are none."""
        found: list[Landing] = []
        for ticket, answers in self.engine.finished(timeout):
            flights = self._flights[ticket]
            if isinstance(answers, Lost):
                found += self._send_again(flights, answers)
            else:
                found += self._land(flights, answers)
            del self._flights[ticket]
        self._record(found)
        return [(each.flight.request, each.outcome) for each in found]

    def _land(self, flights: Sequence[Flight], answers: Sequence[Answer]) -> Iterable[Landing]:
        if answers:
            whole = answers[-1].ended - answers[0].begun
            self.seconds = max(whole.total_seconds(), 0.0) / len(answers)
        for flight, answer in zip(flights, answers, strict=False):
            times = (answer.begun, answer.ended)
            if flight.part is None:
                yield Landing(flight, answer.value, times)
            else:
                yield from self._land_part(flight, answer.value)
        self._give_up(flights[len(answers) :])  # of an interrupted batch

    def _land_part(self, flight: Flight, value: Any) -> Iterable[Landing]:
        """Keep a part of a trial; the last one makes it complete, one that failed ends it."""
        key, config = flight.request.key, flight.request.config
        left = self._parts.get(key)
        if left is None:
            return  # another part has failed
        if isinstance(value, Outcome):
            del self._parts[key]
            yield Landing(flight, value)
            return
        self.measure.keep(config, flight.part, value)
        left.discard(flight.part)
        if not left:
            yield Landing(flight, self.measure(config))

    def _send_again(self, flights: Sequence[Flight], lost: Lost) -> list[Landing]:
        """Send lost trials again, each alone, so that one that kills takes no other with it."""
        counts = len(flights) == 1 and not lost.is_innocent
        if counts and flights[0].attempt >= ATTEMPTS:
            reason = f"its process ended {ATTEMPTS} times: {lost.reason}"[:500]
            self._parts.pop(flights[0].request.key, None)
            return [Landing(flights[0], Outcome(reason=reason))]
        for flight in flights:
            self._fly([replace(flight, attempt=flight.attempt + counts)])
        return []

    def _record(self, found: Sequence[Landing]) -> None:
        for each in found:
            self._parts.pop(each.flight.request.key, None)
        unclaimed = [each for each in found if each.flight.trial is None]
        if unclaimed:
            self.store.add([(x.flight.request, x.outcome, *x.times) for x in unclaimed])
        claimed = [(each.flight.trial, each.outcome) for each in found if each.flight.trial]
        try:
            if claimed:
                self.store.finish(claimed)
        except (StorageLost, KeyboardInterrupt):
            keep_unstored(self.measure.space.context.folder, claimed)
            raise
        if self.measure.confidence is not None:
            self.measure.keep_front(each.outcome for each in found)

    def _give_up(self, flights: Iterable[Flight]) -> None:
        """Let others, or a later run, evaluate what was not finished."""
        keys = {each.request.key: each.trial for each in flights}
        self.store.reserved.difference_update(keys)
        self.store.give_up([trial for trial in keys.values() if trial], "interrupted")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        """Record what is finished, give up the rest and end the engine, whatever happens."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._share)
            stack.callback(self.engine.close)
            stack.callback(lambda: self._give_up(itertools.chain(*self._flights.values())))
            if isinstance(error, KeyboardInterrupt | StorageLost):
                while self.finished(0.0):
                    pass
