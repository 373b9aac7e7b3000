"""The trials of a study that this process knows of."""

from datetime import datetime

from optuna.trial import FrozenTrial

from chop.search.study.trial import Outcome, TrialRequest, frozen


class KnownTrials:
    """Trials by the key of their configuration."""

    def __init__(self) -> None:
        self.done: dict[str, FrozenTrial] = {}
        """Finished trials."""
        self.running: dict[str, FrozenTrial] = {}
        """Trials under way in any process."""
        self.reserved: set[str] = set()
        """Configurations that this process evaluates without a claim, as there is no other."""
        self._news: list[FrozenTrial] = []

    def is_taken(self, key: str) -> bool:
        """Return whether a configuration was evaluated or is being evaluated."""
        return key in self.done or key in self.running or key in self.reserved

    @property
    def count(self) -> int:
        """The number of configurations that are taken."""
        return len(self.done) + len(self.running) + len(self.reserved)

    def news(self) -> list[FrozenTrial]:
        """Return the trials of others that have finished since this was last asked."""
        news, self._news = self._news, []
        return news

    def put(
        self, request: TrialRequest, outcome: Outcome, *times: datetime, number: int
    ) -> FrozenTrial:
        """Take note of a trial that this process has finished.

        Args:
            times: when it began and when it ended, by default now.
        """
        trial = frozen(request, outcome.state, times[0], outcome.attributes())
        trial.values = outcome.values
        trial.datetime_complete = times[1] if len(times) > 1 else datetime.now()
        trial.system_attrs |= outcome.constraints()
        trial.number = number
        self.reserved.discard(request.key)
        self.done[request.key] = trial
        return trial
