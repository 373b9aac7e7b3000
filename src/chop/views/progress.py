"""The progress of a search while it runs: a bar, or a line now and then."""

import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from chop.logger import get_logger
from chop.search.front.hypervolume import best_of
from chop.search.study.store import Store
from chop.search.study.trial import Trial, directions_of

logger = get_logger("chop")

BAR = 12  # characters
REFRESH = 0.25  # seconds
LINES_EVERY = 10.0


class SearchLines:
    """A line of text every few seconds."""

    every = LINES_EVERY

    def __init__(self, total: int, metrics: list[str]) -> None:
        self.total = total
        self.metrics = metrics
        self._begun = self._last = time.monotonic()
        self._done_before: int | None = None
        self._seen: Store | None = None
        self._engine = ""
        self._best: list[Trial] = []
        self._looked_at = 0

    def __enter__(self) -> "SearchLines":
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __call__(self, store: Store, engine: str = "") -> None:
        """Show the state of the study, unless that was done just now.

        Args:
            engine: what it is doing, in words.
        """
        now = time.monotonic()
        self._seen, self._engine = store, engine
        if self._done_before is None:
            self._done_before = len(store.done)
        if now - self._last >= self.every:
            self._last = now
            self.show(store, self._time_left(len(store.done), now))

    def show(self, store: Store, left: str) -> None:
        logger.info(
            "%d/%d configurations, %s left, %s",
            len(store.done), self.total, left, ", ".join([*self.rate(store), self.best(store)]),
        )  # fmt: skip

    def _time_left(self, done: int, now: float) -> str:
        fresh = done - (self._done_before or 0)
        if fresh <= 0:
            return "?"
        seconds = (now - self._begun) / fresh * (self.total - done)
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

    def rate(self, store: Store) -> list[str]:
        """The trials a second and what the engine is doing, where it has several slots."""
        fresh = len(store.done) - (self._done_before or 0)
        seconds = max(time.monotonic() - self._begun, 1e-3)
        return [f"{fresh / seconds:.3g}/s", self._engine] if self._engine else []

    def best(self, store: Store) -> str:
        """The best so far in a few words: the value, or the ends of the front."""
        news = islice(store.done.values(), self._looked_at, None)
        best = self._best = best_of(store.study, [*self._best, *news])
        self._looked_at = len(store.done)
        if not best:
            return "nothing within bounds yet"
        directions = directions_of(store.study)
        if len(directions) == 1:
            return f"best {(best[0].values or [0])[0]:.4g} (trial {best[0].number})"
        points = [(trial.losses(directions), trial.metrics) for trial in best]
        ends = [min(points, key=lambda each: each[0][place]) for place in range(len(directions))]
        shown = ", ".join(
            f"{name} {measured[name]:.4g}"
            for name, (_, measured) in zip(self.metrics, ends, strict=True)
        )
        return f"front of {len(best)}: best {shown}"


class SearchBar(SearchLines):
    """A bar that is drawn a few times a second."""

    every = REFRESH

    def __init__(self, total: int, metrics: list[str]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().__init__(total, metrics)
        self._bar = Progress(
            TextColumn("Searching"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        self._taken = len("Searching") + BAR + 2 * len(str(total)) + len(" / ") + len("   ")
        self._task = self._bar.add_task("search", total=total, facts="")

    def __enter__(self) -> "SearchBar":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._seen is not None:  # the last of it came after the bar was last drawn
            self.show(self._seen, self._time_left(len(self._seen.done), time.monotonic()))
        self._bar.stop()

    def show(self, store: Store, left: str) -> None:
        done: Any = len(store.done)
        room = self._bar.console.width - self._taken
        facts = fit_facts([f"{left} left", *self.best(store).split(", "), *self.rate(store)], room)
        self._bar.update(self._task, completed=done, facts=facts)


def fit_facts(facts: Sequence[str], room: int) -> str:
    """As many of the facts as fit into so many characters, from the first on."""
    shown = [", ".join(facts[:count]) for count in range(len(facts), 0, -1)]
    return next((each for each in shown if len(each) <= room), "")


def make_search_progress(total: int, metrics: list[str]) -> SearchLines:
    """Return the display that fits the place where output goes."""
    return SearchBar(total, metrics) if sys.stdout.isatty() else SearchLines(total, metrics)
