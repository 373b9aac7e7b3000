"""The runs of a comparison: every sampler with every seed, shared by processes and kept on disk.

One journal file holds two studies: the configurations that were measured, and the runs that are
finished. A process claims what it does in either, so nothing is done twice, another process takes
over what one that died has left, and a comparison that was stopped can be resumed. A run is a
sequence: several are under way at the same time, as many as the engine has slots.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from chop.runs import JOURNAL
from chop.search.config import SearchConfig
from chop.search.engines.dispatch import Dispatcher
from chop.search.engines.engine import TrialEngine
from chop.search.proposals import PendingTrial, Proposals, check_size
from chop.search.samplers import SAMPLERS
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchSpace, every, key_of
from chop.search.study.memory import KnownTrials
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store
from chop.search.study.trial import Outcome, Trial, TrialRequest, claim_of
from chop.search.study.workers import at_any_moment, held_back, raise_if_interrupted

ENUMERATED = 2_000
"""The largest space all of which is measured only to know the true front."""
PAUSE = 0.02
"""Seconds between two looks at what other processes have done."""


@dataclass(frozen=True)
class Plan:
    """One sampler with one seed, to be run."""

    sampler: str
    seed: int
    n_trials: int

    @property
    def key(self) -> str:
        """The name under which the finished run is kept."""
        return f"{self.sampler}/{self.seed}/{self.n_trials}"


@dataclass(frozen=True)
class Run:
    """One sampler with one seed: the configurations in the order of their evaluation."""

    sampler: str
    seed: int
    keys: tuple[str, ...]
    repeats: int
    """Proposals that the run knew already."""


def plans_of(config: SearchConfig, samplers: Sequence[str], seeds: Sequence[int]) -> list[Plan]:
    """Every sampler with every seed, or with one if the seed makes no difference."""
    return [
        Plan(sampler, seed, config.sampling.n_trials)
        for sampler in dict.fromkeys(name.lower() for name in samplers)
        for seed in (seeds if SAMPLERS[sampler].seeded else seeds[:1])
    ]


class SamplerRun:
    """A run under way: what its sampler has asked for, and what it knows."""

    def __init__(self, space: SearchSpace, config: SearchConfig, seed: int) -> None:
        self.known = KnownTrials()
        self.proposals = Proposals(space, config, self.known, seed)
        self.timeout = config.sampling.timeout
        self._begun = time.monotonic()
        self._asked: PendingTrial | None = None

    def ask(self) -> TrialRequest | None:
        """Return the configuration that the run waits for; None if it is over."""
        if self._asked is None:
            is_late = self.timeout is not None and time.monotonic() - self._begun > self.timeout
            is_over = is_late or len(self.known.done) >= self.proposals.limit
            self._asked = next(iter([] if is_over else self.proposals.batch(1)), None)
        return None if self._asked is None else self.proposals.request(self._asked)

    def tell(self, request: TrialRequest, outcome: Outcome) -> None:
        """Take note of what became of the configuration that the run waits for."""
        assert self._asked is not None
        self.known.put(request, outcome, datetime.now(), number=len(self.known.done))
        self.proposals.learn([self._asked], {request.key: outcome})
        self._asked = None

    def outcome(self) -> Outcome:
        """Return the run as it is stored."""
        keys = list(self.known.done)
        found = {"keys": keys, "repeats": self.proposals.repeats}
        return Outcome([float(len(keys))], found)


class Contest:
    """One process that takes part in a comparison.

    A configuration is measured once, whichever run asks first; others may take part.

    Args:
        folder: of the comparison, with the journal of what was done before.
        problem: what is searched and measured; a comparison of another problem is refused.
        engine: what measures; it has as many runs under way as slots.
        report: is called with every run that is finished, in any process.
    """

    def __init__(
        self,
        space: SearchSpace,
        config: SearchConfig,
        folder: Path,
        problem: Mapping[str, Any],
        engine: TrialEngine,
        report: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.space = space
        self.config = config
        self.report = report
        journal = str(folder / JOURNAL)
        self.measured = open_store(Place(journal, "measured"), list(config.directions), problem)
        self.trials = Dispatcher(engine, self.measured, Measure(space, config, in_full=True))
        self.finished = open_store(Place(journal, "runs"), ["maximize"], {})
        self._runs: dict[str, tuple[FrozenTrial, SamplerRun]] = {}
        """The runs that this process has under way, with its claims on them."""

    def check(self, plans: Sequence[Plan]) -> None:
        """Refuse a sampler that could not be run on this space."""
        for plan in plans:
            check_size(self.space.size, plan.sampler, self.config.sampling.force)

    def run(self, plans: Sequence[Plan]) -> list[Run]:
        """Do the runs that are not done, and wait for those that other processes do."""
        with held_back(), self.trials:
            for store in (self.finished, self.measured):
                store.sync()
                store.free_the_dead()
            try:
                self._do_all(plans)
            finally:
                claims = [claim for claim, _ in self._runs.values()]
                self.finished.give_up(claims, "interrupted")
            if self.space.size <= ENUMERATED:
                self._measure_all()
        return [run_of(self.finished.done[plan.key]) for plan in plans]

    def outcomes(self) -> dict[str, Outcome]:
        """Return all that was ever measured, by the key of the configuration."""
        return {str(claim_of(t).key): Outcome.of(t) for t in self.measured.frozen_trials()}

    def _do_all(self, plans: Sequence[Plan]) -> None:
        while missing := [plan for plan in plans if plan.key not in self.finished.done]:
            for plan in missing:
                if len(self._runs) < self.trials.engine.slots:
                    self._claim(plan)
            if wanted := self._advance():
                self._measure(wanted)
            elif any(plan.key in self.finished.running for plan in missing):
                wait_for_others(self.finished)
            for trial in self.finished.news():
                self.report(run_of(trial))

    def _claim(self, plan: Plan) -> None:
        """Begin a run that no process is at."""
        if self.finished.is_taken(plan.key):
            return
        stated = {"sampler": plan.sampler, "seed": plan.seed}
        (claim,) = self.finished.claim([TrialRequest(plan.key, stated, {}, {})], None)
        if claim is not None:
            try:
                self._runs[plan.key] = claim, self._begin(plan)
            except BaseException:
                self.finished.give_up([claim], "interrupted")
                raise

    def _begin(self, plan: Plan) -> SamplerRun:
        setup = self.config.sampling.model_copy(update={"sampler": plan.sampler, "compare": []})
        strategy = self.config.strategy.model_copy(update={"setup": setup})
        config = self.config.model_copy(update={"strategy": strategy})
        return SamplerRun(self.space, config, plan.seed)

    def _advance(self) -> list[TrialRequest]:
        """Tell all runs what is known; return what they wait for, each configuration once."""
        wanted: dict[str, TrialRequest] = {}
        for key, (claim, run) in list(self._runs.items()):
            while (request := run.ask()) is not None and request.key in self.measured.done:
                run.tell(request, Outcome.of(self.measured.done[request.key]))
            if request is None:
                del self._runs[key]
                self.finished.finish([(claim, run.outcome())])
            else:
                wanted[request.key] = request
        return list(wanted.values())

    def _measure_all(self) -> None:
        """Measure the whole space; what others measure is waited for at the end."""
        configs = [self.space.config(picked) for picked in every(self.space.tree)]
        requests = [TrialRequest(key_of(each), each, {}, {}) for each in configs]
        while wanted := [each for each in requests if each.key not in self.measured.done]:
            self._measure(wanted)

    def _measure(self, wanted: Sequence[TrialRequest]) -> None:
        """Send what no process measures yet to the engine, and wait for some of all that."""
        free = [each for each in wanted if not self.measured.is_taken(each.key)]
        while free and self.trials.has_room():
            size = self.trials.batch_size(len(free))
            self.trials.send(free[:size])
            free = free[size:]
        if self.trials.is_idle:
            wait_for_others(self.measured)
        else:
            self.trials.finished(PAUSE)
        raise_if_interrupted()


def wait_for_others(store: Store) -> None:
    """Give others time; what the dead among them had claimed is free afterwards."""
    with at_any_moment():
        time.sleep(PAUSE)
    store.sync()
    store.free_the_dead()


def run_of(trial: FrozenTrial) -> Run:
    """A finished run, as it was stored."""
    stated, found = Trial.of(trial).config, Outcome.of(trial).metrics
    return Run(stated["sampler"], stated["seed"], tuple(found["keys"]), found["repeats"])
