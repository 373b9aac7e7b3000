"""Optuna's storage on a journal, reading a study of many trials in less time and memory."""

from functools import cache, lru_cache
from sys import intern
from typing import Any

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages import JournalStorage
from optuna.storages.journal._storage import JournalStorageReplayResult

from chop.search.journal import Journal
from chop.search.memory import no_collections


class JournalStudies(JournalStorage):
    """Optuna's storage, in which trials share what is the same in all of them."""

    def __init__(self, journal: Journal) -> None:
        with journal.together():  # nothing is read yet
            super().__init__(journal)
        self._replay_result = Replay(self._worker_id_prefix)
        with self._thread_lock, no_collections():
            self._sync_with_backend()


class Replay(JournalStorageReplayResult):
    """What the records of a journal come to.

    Optuna makes the options of every choice anew for every trial. That is most of the time that
    reading takes, and most of the memory that trials do.
    """

    def _apply_create_trial(self, log: dict[str, Any]) -> None:
        options, chosen = log.get("distributions", {}), log.get("params", {})
        trial_id = len(self._trials)
        super()._apply_create_trial({**log, "distributions": {}, "params": {}})
        if trial_id in self._trials:  # else its study was deleted
            trial = self._trials[trial_id]
            shared = _distributions(tuple(options.items()))
            # Optuna adds to those of a trial that is under way.
            trial.distributions = shared if trial.state.is_finished() else dict(shared)
            trial.params = {
                intern(name): shared[name].to_external_repr(place) for name, place in chosen.items()
            }


@lru_cache(maxsize=1_000)  # a tree of choices may have any number of sets that come up together
def _distributions(options: tuple[tuple[str, str], ...]) -> dict[str, BaseDistribution]:
    return {intern(name): _distribution(text) for name, text in options}


_distribution = cache(json_to_distribution)
