"""The front of a search on a terminal: plain columns that fit its width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chop.runs import BEST, BEST_SETTINGS, TRIALS
from chop.search.front.accuracy import ACCURACY, UNKNOWN, Accuracies, Judged, Start
from chop.search.front.verification import Marks
from chop.search.study.trial import Trial

MOST_ROWS = 5
FLOAT, START = "float", "start"
NO_VALUE, TEST = "-", "test "


@dataclass(frozen=True)
class Front:
    """The best trials of a search, and what was found of them when it was over.

    Args:
        metrics: the names of the objectives.
        start: the accuracies of the network that the search started from.
    """

    best: Sequence[Trial]
    metrics: Sequence[str]
    verified: Marks = field(default_factory=dict)
    judged: Judged = field(default_factory=dict)
    start: Start | None = None

    @property
    def decides(self) -> str:
        """The metric of test rows."""
        tested = [known.test.metric for known in self.judged.values() if known.test]
        return tested[0] if tested else ACCURACY

    def shown(self) -> list[int]:
        """The places of the points in the table: the ends of the front, and some between."""
        last = len(self.best) - 1
        if last <= MOST_ROWS:  # a line that says "1 more" takes the place of a row
            return list(range(last + 1))
        return [round(last * step / (MOST_ROWS - 1)) for step in range(MOST_ROWS)]


def front_table(front: Front, columns: int) -> str:
    """A row for each of some points; what does not fit in so many `columns` is left out."""
    from tabulate import tabulate

    found = _columns(front)
    # What matters least goes first; the name and two objectives always stay.
    tested = next((name for name in found if name.startswith(TEST)), "")
    spare = ["trial", "verified", *reversed(front.metrics[2:]), tested]
    for name in [None, *(name for name in spare if name in found)]:
        if name is not None:
            del found[name]
        table = tabulate(
            list(zip(*found.values(), strict=True)), list(found), "simple",
            disable_numparse=True, stralign="right", colalign=["left"],
        )  # fmt: skip
        if max(map(len, table.splitlines())) <= columns:
            break
    more = len(front.best) - len(front.shown())
    return f"{table}\n{more} more in {BEST} and {TRIALS}" if more else table


def _columns(front: Front) -> dict[str, list[str]]:
    """The cells of each column from top to bottom, by the name of the column."""
    places = front.shown()
    trials = [front.best[place] for place in places]
    known = [front.judged.get(trial.number, UNKNOWN) for trial in trials]
    head = [] if front.start is None else [front.start]
    names = [BEST_SETTINGS.format(place).partition(".")[0] for place in places]
    found = {
        "": [FLOAT if each.is_float else START for each in head] + names,
        "trial": [NO_VALUE for _ in head] + [str(trial.number) for trial in trials],
    }
    for metric in front.metrics:
        first = [_score(each, metric) for each in head]
        rest = [_cell(trial, each, metric) for trial, each in zip(trials, known, strict=True)]
        found[metric] = first + rest
    tested = [str(each.test or NO_VALUE) for each in [*head, *known]]
    if set(tested) != {NO_VALUE}:
        found[f"{TEST}{front.decides}"] = tested
    marks = [str(front.verified.get(trial.number, "no")) for trial in trials]
    if set(marks) - {"no"}:
        found["verified"] = [NO_VALUE for _ in head] + marks
    return found


def _score(known: Accuracies, metric: str) -> str:
    sure = known.chosen_by
    return str(sure) if sure and sure.metric == metric else NO_VALUE


def _cell(trial: Trial, known: Accuracies, metric: str) -> str:
    sure = _score(known, metric)
    return number_text(trial.metrics[metric]) if sure == NO_VALUE else sure


def number_text(value: float) -> str:
    """A number in few characters: thousands are whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Metrics in one line."""
    return ", ".join(f"{name} {number_text(value)}" for name, value in metrics.items())


class WholeFront(Front):
    """A front that shows all its points."""

    def shown(self) -> list[int]:
        return list(range(len(self.best)))


def whole_columns(front: Front) -> dict[str, list[str]]:
    """The cells of a table of all points, from top to bottom, by the names of the columns."""
    whole = WholeFront(front.best, front.metrics, front.verified, front.judged, front.start)
    return _columns(whole)
