"""The search itself: ask, submit, tell, record, until there is nothing left to do."""

import contextlib
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from chop.logger import get_logger
from chop.search.engines.dispatch import Dispatcher, Done
from chop.search.engines.engine import LONGEST_WAIT, TrialEngine
from chop.search.engines.serial import Serial
from chop.search.proposals import PendingTrial, Proposals
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchSpace
from chop.search.study.store import Store
from chop.search.study.workers import held_back, raise_if_interrupted

if TYPE_CHECKING:
    from torch import nn

    from chop.search.config import SearchConfig

logger = get_logger("chop")

LOOK_FOR_THE_DEAD = 30.0


@dataclass
class Progress:
    """The progress of a search; `report` is called whenever that changes."""

    report: Callable[[Store, str], None] = lambda store, engine: None
    """Given the study, and what is to be said of the engine."""
    repeats: int = 0
    """Proposals that were known already."""


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

    def check(self) -> None:  # noqa: B027  # most fail at once or not at all
        """Refuse what could fail after hours."""

    def start(self) -> "nn.Module | None":
        """Return the network that the search started from, if there is one that was trained."""
        return None if self.space.starts_afresh else self.space.context.model


def make_strategy(
    space: SearchSpace, config: "SearchConfig", store: Store, engine: TrialEngine
) -> Strategy:
    """Make the search that a configuration describes, ready to run."""
    module, _, name = config.strategy.setup.strategy.partition(":")
    found: Strategy = getattr(import_module(module), name)(space, config, store, engine=engine)
    return found


class Search(Strategy):
    """A sampler proposes configurations, an engine evaluates them, the study records them.

    Other processes, of this machine or of others, may search the same study at the same time.

    Args:
        seed: of the sampler; by default that of the context.
        engine: what evaluates; by default this process.
    """

    def __init__(
        self,
        space: SearchSpace,
        config: "SearchConfig",
        store: Store,
        seed: int | None = None,
        engine: TrialEngine | None = None,
    ) -> None:
        store.catch_up()
        seed = space.context.seed if seed is None else seed
        self.space = space
        self.store = store
        self.measure = Measure(space, config)
        self.proposals = Proposals(space, config, store, seed)
        self.progress = Progress()
        self.size, self.limit = self.proposals.size, self.proposals.limit
        self.timeout = config.sampling.timeout
        if self.limit < config.sampling.n_trials:
            logger.info("All %s configurations will be evaluated", f"{self.size:,}")
        self.trials = Dispatcher(engine or Serial(), store, self.measure, self.limit)
        self._pending: dict[str, PendingTrial] = {}
        self._last_look = 0.0
        self._losses = 0

    def run(self) -> None:
        """Search until the trials, the time or the space are used up."""
        started = time.monotonic()
        with held_back(), _light_collections(), self.trials, self.store.signs_of_life():
            while True:
                while self._may_ask(started) and self._ask():
                    pass
                if self.trials.is_idle:
                    break
                self._tell(self.trials.finished(LONGEST_WAIT))
                self.progress.report(self.store, self.trials.words)
                raise_if_interrupted()

    def _may_ask(self, started: float) -> bool:
        """Return whether the engine, the study and the clock have room for another batch."""
        if not self.trials.has_room(ahead=1 if self.proposals.learns else 2):
            return False
        if self.timeout is not None and time.monotonic() - started > self.timeout:
            return False
        if time.monotonic() - self._last_look > LOOK_FOR_THE_DEAD:
            self._last_look = time.monotonic()
            self.store.free_the_dead()
        if self._room() > 0:
            return True
        return self.trials.is_idle and self.store.free_the_dead() > 0

    def _room(self) -> int:
        return self.limit - self.store.count

    def _ask(self) -> bool:
        """Send the next batch to the engine; one trial if results matter. False if none is left."""
        one = self.proposals.learns and not self.trials.engine.batch
        size = 1 if one else self.trials.batch_size(self._room())
        batch = self.proposals.batch(size)
        self._send(batch)
        return bool(batch)

    def _send(self, batch: list[PendingTrial]) -> None:
        self._pending |= {pending.key: pending for pending in batch}
        taken = self.trials.send([self.proposals.request(each) for each in batch])
        if taken:
            # Processes that were started with the same seed draw the same until one is too late.
            self._losses += 1
            self.proposals.sampler.part_ways(f"{self.store.worker}/{self._losses}")
            self.proposals.learn([self._pending.pop(each.key) for each in taken], {})

    def _tell(self, done: Done) -> None:
        """Tell the sampler what became of its proposals."""
        batch = [self._pending.pop(request.key) for request, _ in done]
        self.proposals.learn(batch, {request.key: outcome for request, outcome in done})
        self.progress.repeats = self.proposals.repeats


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
