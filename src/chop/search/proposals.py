"""The next proposals of a search: configurations that no process has evaluated."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from chop.errors import ConfigError
from chop.search.samplers import SAMPLERS, Problem, Proposal, distribution, params_of, proposal
from chop.search.spaces.space import Choice, Picked, SearchSpace, every, flat, key_of
from chop.search.study.memory import KnownTrials
from chop.search.study.trial import Outcome, TrialRequest, as_known, claim_of

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class PendingTrial:
    """A proposal on its way."""

    proposal: Proposal
    config: dict[str, Any]
    key: str


class Proposals:
    """Asks a sampler for configurations that are not taken, and tells it what became of them.

    Attributes:
        learns: whether a proposal depends on the results of those before it.
        limit: how many configurations there are to be at the end.
        repeats: proposals that were known already.
    """

    def __init__(
        self, space: SearchSpace, config: "SearchConfig", known: KnownTrials, seed: int = 0
    ) -> None:
        setup = config.sampling
        self.space = space
        self.known = known
        self.size = space.size
        check_size(self.size, setup.sampler, setup.force)
        kind = SAMPLERS[setup.sampler]
        self.learns = kind.learns
        self.limit = self.size if kind.exhaustive else min(setup.n_trials, self.size)
        self.repeats = 0
        self.distributions = {
            each.name: distribution(each) for each in flat(space.tree) if len(each.options) > 1
        }
        # A sampler that does not learn starts over when a study is resumed and skips what is known,
        # so that an interrupted search sees what an uninterrupted one would.
        fresh = len(known.done) if kind.learns else 0
        own_seed = np.random.SeedSequence([seed, 0, fresh]).generate_state(1)[0]
        self.sampler = kind(int(own_seed), Problem(space.tree, tuple(config.directions)))
        self._known_before = set(known.done)
        self._draw = random.Random(f"{seed}/0/{len(known.done)}")
        self._learn_from(known.news())

    def batch(self, count: int) -> list[PendingTrial]:
        """Return the next proposals; fewer than `count` if there are no more."""
        batch: dict[str, PendingTrial] = {}
        while len(batch) < count:
            pending = self._next(batch)
            if pending is None:
                break
            batch[pending.key] = pending
        return list(batch.values())

    def request(self, pending: PendingTrial) -> TrialRequest:
        """Return a proposal as it is evaluated and stored."""
        params = pending.proposal.params
        distributions = {name: self.distributions[name] for name in params}
        notes = self.sampler.notes(pending.proposal)
        return TrialRequest(pending.key, pending.config, params, distributions, notes)

    def learn(self, batch: Iterable[PendingTrial], outcomes: Mapping[str, Outcome]) -> None:
        """Tell the sampler what became of its proposals and of the trials of others."""
        if not self.learns:
            return
        own = set()
        for pending in batch:
            own.add(pending.key)
            outcome = outcomes.get(pending.key, Outcome())
            if pending.proposal.trial is not None:
                self.sampler.learn(pending.proposal, outcome.values, outcome.violations)
            elif pending.key in self.known.done:
                self._learn_from([self.known.done[pending.key]])
        self._learn_from([t for t in self.known.news() if claim_of(t).key not in own])

    def _next(self, batch: dict[str, PendingTrial]) -> PendingTrial | None:
        """Return a configuration that is not taken; None if there is none left."""
        near: Picked = {}
        for _ in range(REPEATS if self.learns else DRAWS):
            proposed = self.sampler.propose()
            if proposed is None:
                break
            near = proposed.picked
            pending = self._pending(proposed)
            if not self._is_taken(pending.key, batch):
                return pending
            self._repeat(pending)
            if self.known.count + len(batch) >= self.size:
                break
        return self._unseen(batch, near)

    def _pending(self, proposed: Proposal) -> PendingTrial:
        config = self.space.config(proposed.picked)
        return PendingTrial(proposed, config, key_of(config))

    def _is_taken(self, key: str, batch: dict[str, PendingTrial]) -> bool:
        return key in batch or self.known.is_taken(key)

    def _repeat(self, pending: PendingTrial) -> None:
        """Tell the sampler the known result of a configuration it has proposed again.

        Told of a failure, gp proposes the same again and again; for tpe and nsgaii it makes no
        difference that could be measured (benchmarks/bench_repeats.py).
        """
        self.repeats += pending.key not in self._known_before
        known = self.known.done.get(pending.key)  # not if it is still being measured
        values, violations = (known.values, known.constraints) if known else (None, {})
        self.sampler.learn(pending.proposal, values, violations)

    def _unseen(self, batch: dict[str, PendingTrial], near: Picked) -> PendingTrial | None:
        """Return a configuration that is not taken: a neighbour of `near`, else the first."""
        taken = self.known.count + len(batch)
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
        """Return a configuration in which `distance` choices are drawn again."""
        open_choices = [name for name in near if name in self.distributions]
        changed = set(self._draw.sample(open_choices, min(distance, len(open_choices))))

        def pick(choice: Choice) -> int:
            if choice.name in near and choice.name not in changed:
                return near[choice.name]
            return self._draw.randrange(len(choice.options))

        return proposal(self.space.tree, pick)

    def _learn_from(self, trials: list[FrozenTrial]) -> None:
        if self.learns:
            complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
            self.sampler.learn_from(list(map(as_known, complete)))


def check_size(size: int, sampler: str, force: bool) -> None:
    """Refuse to enumerate a space that is too large to wait for."""
    if SAMPLERS[sampler].exhaustive and size > LARGEST_ENUMERATION and not force:
        raise ConfigError(
            f"sampler {sampler!r} would evaluate {size:,} configurations; set "
            "search.strategy.setup.force = true to do so, or use 'random', 'tpe' or 'nsgaii'"
        )
