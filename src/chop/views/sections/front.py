"""The front as a table: first accuracy and cost, then what was verified, then the circuits."""

from collections import Counter
from collections.abc import Mapping

from chop.markup import Markup, counted, filled, joined, number, table, tag
from chop.results.search import Search
from chop.runs import BEST_SETTINGS, SNAPSHOT_GRAPH
from chop.search.front.accuracy import UNKNOWN, Accuracies
from chop.search.front.verification import Verified
from chop.search.metrics import METRICS, MetricInfo
from chop.search.study.trial import Trial
from chop.views.sections.exports import CIRCUIT_HEADERS, StoredExport, circuit_cells, rows_checked

NO_UNIT = MetricInfo("")
NOT_CHOSEN_BY = tag("small", "95 % sure; not chosen by")
MOST_REASONS = 10


def front_table(search: Search, circuits: Mapping[str, StoredExport]) -> Markup | None:
    """The best configurations by their numbers; `circuits` are those of saved graphs."""
    if not search.best:
        return None
    metrics = metrics_in_order(search)
    headers = [
        "Network", *map(_with_unit, metrics), _tested(search), "Verified in integers",
        "Verified in RTL", *CIRCUIT_HEADERS, "Trial",
    ]  # fmt: skip
    rows = [_row(search, trial, metrics, circuits) for trial in search.best]
    if search.start is not None:
        known = [_measured(name, None, search.start) for name in metrics]
        start = [search.start.name, *known, str(search.start.test or "")]
        rows.insert(0, [*start, *[""] * (len(headers) - len(start))])
    named, shown = filled(headers, rows)
    return joined(
        [tag("h3", "The front"), table(named, shown, "The front"), unverified(search.verified)]
    )


def metrics_in_order(search: Search) -> list[str]:
    """Everything that was measured; what was searched for comes first."""
    measured = dict.fromkeys(name for trial in search.complete for name in trial.metrics)
    wanted = [name for name in search.problem.metrics if name in measured]
    return [*wanted, *(name for name in measured if name not in wanted)]


def _tested(search: Search) -> Markup:
    """The header of the score on test rows."""
    known = [each.test for each in (*search.judged.values(), search.start) if each and each.test]
    return joined([f"test {known[0].metric}" if known else "", NOT_CHOSEN_BY])


def _with_unit(name: str) -> Markup:
    unit = METRICS.get(name, NO_UNIT).unit
    return joined([name, tag("small", unit) if unit else None])


def _row(
    search: Search, trial: Trial, metrics: list[str], circuits: Mapping[str, StoredExport]
) -> list[str]:
    known = search.judged.get(trial.number, UNKNOWN)
    file = BEST_SETTINGS.format(search.front.index(trial.number))
    graph = SNAPSHOT_GRAPH.format(trial.config.get(("epoch",)))
    made = circuits.get(graph) or circuits.get(file)
    circuit = made and made.circuit
    return [
        file if trial.number in search.files else "",
        *(_measured(name, trial.metrics.get(name), known) for name in metrics),
        str(known.test or ""),
        str(search.verified.get(trial.number, "no")) if search.verified else "",
        rows_checked(made) if made else "",
        *(circuit_cells(circuit) if circuit else [""] * len(CIRCUIT_HEADERS)),
        str(trial.number),
    ]


def _measured(name: str, value: float | None, known: Accuracies) -> str:
    """A metric; what decides with the interval that is 95 % sure."""
    if known.chosen_by is not None and known.chosen_by.metric == name:
        return str(known.chosen_by)
    return "" if value is None else number(value)


def unverified(marks: Mapping[int, Verified]) -> Markup | None:
    """Why trials were not compared with their integers, or are not what those are."""
    reasons = Counter(mark.reason for mark in marks.values() if mark.reason)
    words = [f"{counted(some, 'trial')}: {why}" for why, some in reasons.most_common(MOST_REASONS)]
    return tag("p", f"Not verified: {'; '.join(words)}.", class_="quiet") if words else None
