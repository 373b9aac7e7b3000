"""The runs of a comparison: every sampler with every seed, shared by processes and kept on disk.

One journal file holds two studies: the configurations that were measured, and the runs that are
finished. A process claims what it does in either, so nothing is done twice, another process takes
over what one that died has left, and a comparison that was stopped can be resumed.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from chop.runs import JOURNAL
from chop.search.config import SearchConfig, parse_search
from chop.search.samplers import SAMPLERS
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchSpace, every, key_of
from chop.search.strategy import Search, check_size
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store
from chop.search.study.trial import Outcome, Trial, TrialRequest, claim_of
from chop.search.study.workers import at_any_moment, held_back

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


def wait_for_others(store: Store) -> None:
    """Give others time; what the dead among them had claimed is free afterwards."""
    with at_any_moment():
        time.sleep(PAUSE)
    store.sync()
    store.free_the_dead()


class SharedMeasure:
    """Measures each configuration once, whichever run of whichever process asks first."""

    def __init__(self, measure: Measure, store: Store) -> None:
        self.measure = measure
        self.store = store
        self._known: dict[str, Outcome] = {}

    def __call__(self, config: dict[str, Any]) -> Outcome:
        """The outcome of a configuration, measured now or before, here or elsewhere."""
        key = key_of(config)
        while key not in self._known:
            request = TrialRequest(key, config, {}, {})
            found = self.store.once(request, lambda: self.measure(config))
            if found is None and key in self.store.done:
                found = Outcome.of(self.store.done[key])
            if found is None:
                wait_for_others(self.store)
            else:
                self._known[key] = found
        return self._known[key]

    def measure_all(self, space: SearchSpace) -> None:
        """Measure the whole space; what others measure is waited for at the end."""
        configs = [space.config(picked) for picked in every(space.tree)]
        self.store.sync()
        later = [config for config in configs if self.store.taken(key_of(config))]
        for config in configs:
            if not self.store.taken(key_of(config)):
                self(config)
        for config in later:
            self(config)

    def outcomes(self) -> dict[str, Outcome]:
        """All that was ever measured, by the key of the configuration."""
        return {str(claim_of(t).key): Outcome.of(t) for t in self.store.counted()}


class Contest:
    """One process that takes part in a comparison.

    Args:
        folder: of the comparison, with the journal of what was done before.
        problem: what is searched and measured; a comparison of another problem is refused.
        report: told of every run that is finished, in any process.
    """

    def __init__(
        self,
        space: SearchSpace,
        tables: Mapping[str, Any],
        folder: Path,
        problem: Mapping[str, Any],
        report: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.space = space
        self.tables = tables
        self.report = report
        config = parse_search(tables)
        journal = str(folder / JOURNAL)
        measured = open_store(Place(journal, "measured"), list(config.directions), problem)
        self.measure = SharedMeasure(Measure(space, config, in_full=True), measured)
        self.finished = open_store(Place(journal, "runs"), ["maximize"], {})

    def check(self, plans: Sequence[Plan]) -> None:
        """Refuse a sampler that could not be run on this space."""
        for plan in plans:
            check_size(self.space.size, plan.sampler, self._config(plan).sampling.force)

    def run(self, plans: Sequence[Plan]) -> list[Run]:
        """Do the runs that are not done, and wait for those that other processes do."""
        with held_back():
            return self._all_runs(plans)

    def _all_runs(self, plans: Sequence[Plan]) -> list[Run]:
        for store in (self.finished, self.measure.store):
            store.sync()
            store.free_the_dead()
        while missing := [plan for plan in plans if plan.key not in self.finished.done]:
            done = [self._run_once(plan) for plan in missing]
            if not any(done):
                wait_for_others(self.finished)
            self._tell()
        self._tell()
        if self.space.size <= ENUMERATED:
            self.measure.measure_all(self.space)
        return [run_of(self.finished.done[plan.key]) for plan in plans]

    def _tell(self) -> None:
        for trial in self.finished.news():
            self.report(run_of(trial))

    def _config(self, plan: Plan) -> SearchConfig:
        strategy = self.tables["strategy"]
        setup = {**strategy.get("setup", {}), "sampler": plan.sampler, "compare": []}
        return parse_search({**self.tables, "strategy": {**strategy, "setup": setup}})

    def _run_once(self, plan: Plan) -> bool:
        stated = {"sampler": plan.sampler, "seed": plan.seed}
        request = TrialRequest(plan.key, stated, {}, {})
        return self.finished.once(request, lambda: self._run(plan)) is not None

    def _run(self, plan: Plan) -> Outcome:
        """A search in a private study that looks up what is known."""
        config = self._config(plan)
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(Place(f"{folder}/{JOURNAL}", "run"), list(config.directions), {})
            search = Search(self.space, config, store, plan.seed)
            search.measure = self.measure
            search.run()
            keys = [trial.key for trial in store.trials()]
        return Outcome([float(len(keys))], {"keys": keys, "repeats": search.progress.repeats})


def run_of(trial: FrozenTrial) -> Run:
    """A finished run, as it was stored."""
    stated, found = Trial.of(trial).config, Outcome.of(trial).metrics
    return Run(stated["sampler"], stated["seed"], tuple(found["keys"]), found["repeats"])
