"""The search itself: propose, claim, measure, store, until there is nothing left to do."""

import contextlib
import gc
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from chop.errors import ConfigError
from chop.search.samplers import SAMPLERS, Problem, Proposal, distribution, params_of, proposal
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import Choice, Picked, SearchSpace, every, flat, key_of
from chop.search.study.journal import no_collections
from chop.search.study.patience import StorageLost
from chop.search.study.store import Store, keep_unstored
from chop.search.study.trial import (
    Outcome,
    TrialRequest,
    as_known,
    claim_of,
    request_of,
)
from chop.search.study.workers import held_back, raise_if_interrupted

if TYPE_CHECKING:
    from torch import nn

    from chop.search.config import SearchConfig

LARGEST_ENUMERATION = 100_000
REPEATS = 1
"""Repeats in a row after which a neighbour is taken of what a sampler that learns proposed.

Asking again costs as much as asking did, and the answer is often the same: TPE spent more than
half of its proposals on what it knew. A neighbour is new, is where the sampler looks, and what
becomes of it is told to the sampler like any other result.
"""
DRAWS = 1_000
"""Random draws for a configuration that is not taken, before all are gone through."""
DRAWS_PER_STEP = 20
"""Draws among the neighbours at one distance before the next distance is tried."""
BATCH_SECONDS = 0.1
LARGEST_BATCH = 64
LOOK_FOR_THE_DEAD = 30.0


@dataclass
class Progress:
    """How far a search is; `report` is called whenever that changes."""

    report: Callable[[Store], None] = lambda store: None
    repeats: int = 0
    """Proposals that were known already."""


@dataclass(frozen=True)
class Pending:
    """A proposal on its way."""

    proposal: Proposal
    config: dict[str, Any]
    key: str


class Strategy(ABC):
    """A search of a space that fills a study.

    Attributes:
        size: how many configurations there are.
        limit: how many of them the study is to have at the end.
    """

    space: SearchSpace
    store: Store
    size: int
    limit: int
    progress: Progress

    @abstractmethod
    def run(self) -> None:
        """Search until there is nothing left to do; what was done before is not done again."""

    def start(self) -> "nn.Module | None":
        """The network that the search started from, if there is one that was trained."""
        return None if self.space.starts_afresh else self.space.context.model


class Search(Strategy):
    """One process that searches a space together with any others on the same study.

    Args:
        worker: the place of this process among those that were started together.
    """

    def __init__(
        self,
        space: SearchSpace,
        config: "SearchConfig",
        store: Store,
        seed: int = 0,
        worker: int = 0,
    ) -> None:
        setup = config.sampling
        self.space = space
        self.store = store
        measure = Measure(space, config)
        self.measure: Callable[[dict[str, Any]], Outcome] = measure
        self._assist = measure.assist
        self.progress = Progress()
        self.size = space.size
        check_size(self.size, setup.sampler, setup.force)
        kind = SAMPLERS[setup.sampler]
        self.learns = kind.learns
        self.limit = self.size if kind.exhaustive else min(setup.n_trials, self.size)
        self.timeout = setup.timeout
        self.distributions = {
            each.name: distribution(each) for each in flat(space.tree) if len(each.options) > 1
        }
        known = store.counted()
        problem = Problem(space.tree, tuple(config.directions))
        # A sampler that does not learn starts over when a study is resumed and skips what is known,
        # so that an interrupted search sees what an uninterrupted one would.
        fresh = len(known) if kind.learns else 0
        own_seed = np.random.SeedSequence([seed, worker, fresh]).generate_state(1)[0]
        self.sampler = kind(int(own_seed), problem)
        self._known_before = set(store.done)
        self._draw = random.Random(f"{seed}/{worker}/{len(known)}")
        self._learn_from(store.news())
        self._last_look = 0.0
        self._losses = 0

    def run(self) -> None:
        """Search until the trials, the time or the space are used up."""
        started = time.monotonic()
        per_trial = BATCH_SECONDS
        with held_back(), self.store.signs_of_life(), _light_collections():
            while not self._is_over(started):
                batch = self._batch(per_trial)
                if not batch:
                    break
                begun = time.monotonic()
                count = self._evaluate(batch, quick=per_trial < BATCH_SECONDS)
                per_trial = (time.monotonic() - begun) / max(1, count)
                self.progress.report(self.store)
                raise_if_interrupted()
            while not self._is_late(started) and any(map(self._assist, self._under_way())):
                self.progress.report(self.store)

    def _under_way(self) -> list[dict[str, Any]]:
        """The configurations that other processes on this journal are measuring."""
        if self.store.crosses_machines:
            return []
        self.store.catch_up()
        return [request_of(trial).config for trial in self.store.running.values()]

    def _is_late(self, started: float) -> bool:
        return self.timeout is not None and time.monotonic() - started > self.timeout

    def _is_over(self, started: float) -> bool:
        if self._is_late(started):
            return True
        if time.monotonic() - self._last_look > LOOK_FOR_THE_DEAD:
            self._last_look = time.monotonic()
            self.store.free_the_dead()
        if self._room() > 0:
            return False
        return self.store.free_the_dead() == 0

    def _room(self) -> int:
        return self.limit - len(self.store.done) - len(self.store.running)

    def _batch(self, per_trial: float) -> list[Pending]:
        """The next proposals: as many as take a tenth of a second, and one if results matter."""
        quick = int(BATCH_SECONDS / max(per_trial, 1e-6))
        wanted = 1 if self.learns else max(1, min(quick, LARGEST_BATCH, self._room()))
        batch: dict[str, Pending] = {}
        while len(batch) < wanted:
            pending = self._next(batch)
            if pending is None:
                break
            batch[pending.key] = pending
        return list(batch.values())

    def _next(self, batch: dict[str, Pending]) -> Pending | None:
        """A configuration that nobody has evaluated; None if there is none left."""
        near: Picked = {}
        for _ in range(REPEATS if self.learns else DRAWS):
            proposed = self.sampler.propose()
            if proposed is None:
                break
            near = proposed.picked
            pending = self._pending(proposed)
            if not self._is_taken(pending.key, batch):
                return pending
            self._repeated(pending)
            if len(self.store.done) + len(self.store.running) + len(batch) >= self.size:
                break
        return self._unseen(batch, near)

    def _pending(self, proposed: Proposal) -> Pending:
        config = self.space.config(proposed.picked)
        return Pending(proposed, config, key_of(config))

    def _is_taken(self, key: str, batch: dict[str, Pending]) -> bool:
        return key in batch or self.store.taken(key)

    def _repeated(self, pending: Pending) -> None:
        """Tell the sampler the known result of a configuration it has proposed again.

        Told of a failure, gp proposes the same again and again; for tpe and nsgaii it makes no
        difference that could be measured (benchmarks/bench_repeats.py).
        """
        self.progress.repeats += pending.key not in self._known_before
        known = self.store.done.get(pending.key)  # not if it is still being measured
        values, violations = (known.values, known.constraints) if known else (None, {})
        self.sampler.learn(pending.proposal, values, violations)

    def _unseen(self, batch: dict[str, Pending], near: Picked) -> Pending | None:
        """A configuration that is not taken: a neighbour of `near`, else the first there is."""
        taken = len(self.store.done) + len(self.store.running) + len(batch)
        for draw in range(DRAWS if taken < self.size else 0):
            pending = self._pending(self._neighbour(near, 1 + draw // DRAWS_PER_STEP))
            if not self._is_taken(pending.key, batch):
                return pending
        if taken < self.size <= LARGEST_ENUMERATION:
            for picked in every(self.space.tree):
                pending = self._pending(Proposal(picked, params_of(self.space.tree, picked)))
                if not self._is_taken(pending.key, batch):
                    return pending
        return None

    def _neighbour(self, near: Picked, distance: int) -> Proposal:
        """A configuration in which `distance` choices are drawn again."""
        open_choices = [name for name in near if name in self.distributions]
        changed = set(self._draw.sample(open_choices, min(distance, len(open_choices))))

        def pick(choice: Choice) -> int:
            if choice.name in near and choice.name not in changed:
                return near[choice.name]
            return self._draw.randrange(len(choice.options))

        return proposal(self.space.tree, pick)

    def _evaluate(self, batch: list[Pending], quick: bool) -> int:
        """Measure and store what nobody else does; how many were measured."""
        if quick:  # others have to wait for the end of the batch before they can join
            with self.store.alone() as alone:
                if alone:
                    return self._measure_alone(batch)
        claimed = self.store.claim([self._wanted(each) for each in batch], self.limit)
        ours = [(each, trial) for each, trial in zip(batch, claimed, strict=True) if trial]
        if len(ours) < len(batch):
            # Processes that were started with the same seed draw the same until one is too late.
            self._losses += 1
            self.sampler.part_ways(f"{self.store.worker}/{self._losses}")
        outcomes: list[tuple[FrozenTrial, Outcome]] = []
        try:
            for pending, trial in ours:
                outcomes.append((trial, self.measure(pending.config)))
        finally:
            # Ctrl-C: what is finished is kept, what was under way may be claimed again.
            try:
                self.store.finish(outcomes)
            except (StorageLost, KeyboardInterrupt):
                keep_unstored(self.space.context.folder, outcomes)
                raise
            finally:
                self.store.give_up([trial for _, trial in ours[len(outcomes) :]], "interrupted")
        self._learn(batch, {claim_of(t).key: outcome for t, outcome in outcomes})
        return len(outcomes)

    def _measure_alone(self, batch: list[Pending]) -> int:
        """The same without claims, as there is nobody to claim against."""
        batch = [each for each in batch if not self.store.taken(each.key)][: self._room()]
        finished: list[tuple[TrialRequest, Outcome, datetime]] = []
        try:
            with no_collections():  # for a tenth of a second
                for pending in batch:
                    begun = datetime.now()
                    finished.append((self._wanted(pending), self.measure(pending.config), begun))
        finally:
            self.store.add(finished)
        self._learn(batch, {request.key: outcome for request, outcome, _ in finished})
        return len(finished)

    def _wanted(self, pending: Pending) -> TrialRequest:
        params = pending.proposal.params
        distributions = {name: self.distributions[name] for name in params}
        notes = self.sampler.notes(pending.proposal)
        return TrialRequest(pending.key, pending.config, params, distributions, notes)

    def _learn(self, batch: list[Pending], outcomes: Mapping[str | None, Outcome]) -> None:
        """Tell the sampler what became of its proposals and of the trials of others."""
        if not self.learns:
            return
        for pending in batch:
            outcome = outcomes.get(pending.key, Outcome())
            if pending.proposal.trial is not None:
                self.sampler.learn(pending.proposal, outcome.values, outcome.violations)
            elif pending.key in self.store.done:
                self._learn_from([self.store.done[pending.key]])
        own = {pending.key for pending in batch}
        self._learn_from([t for t in self.store.news() if claim_of(t).key not in own])

    def _learn_from(self, trials: list[FrozenTrial]) -> None:
        if self.learns:
            complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
            self.sampler.learn_from(list(map(as_known, complete)))


@contextlib.contextmanager
def _light_collections() -> Iterator[None]:
    """Keep Python's garbage collector from going through torch again and again.

    A trial makes many small objects that live on, so the collector runs often; all that is there
    before the search need not be looked at.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def check_size(size: int, sampler: str, force: bool) -> None:
    """Refuse to enumerate what nobody could wait for."""
    if SAMPLERS[sampler].exhaustive and size > LARGEST_ENUMERATION and not force:
        raise ConfigError(
            f"sampler {sampler!r} would evaluate {size:,} configurations; set "
            "search.strategy.setup.force = true to do so, or use 'random', 'tpe' or 'nsgaii'"
        )
