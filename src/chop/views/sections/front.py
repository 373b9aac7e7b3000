"""The front as a table: first accuracy and cost, then what was verified, then the circuits."""

from collections import Counter
from collections.abc import Mapping

from chop.figures import quantity
from chop.markup import Markup, join_markup, tag
from chop.results.exports import CIRCUIT_HEADERS, ExportManifest, circuit_cells, rows_checked
from chop.results.front import TEST, SearchResult
from chop.runs import BEST_SETTINGS, snapshot_name
from chop.search.front.verification import Verified
from chop.search.metrics import METRICS, MetricInfo
from chop.search.study.trial import Trial
from chop.tables import ResultTable

NO_UNIT = MetricInfo("")
NOT_CHOSEN_BY = tag("small", "95 % sure; not chosen by")
MOST_REASONS = 10


def front_table(result: SearchResult, circuits: Mapping[str, ExportManifest]) -> Markup | None:
    """Return the best configurations by their numbers; `circuits` are those of saved graphs."""
    if not result.best:
        return None
    metrics = metrics_in_order(result)
    columns = result.columns(result.best, metrics)
    names = [BEST_SETTINGS.format(place) for place in range(len(result.best))]
    pairs = list(zip(names, result.best, strict=True))
    made = [_circuit(name, trial, circuits) for name, trial in pairs]
    head = [] if result.start is None else [result.start.name]
    files = [name if trial.number in result.files else None for name, trial in pairs]
    table = {
        "Network": [*head, *files],
        **{_with_unit(name): columns[name] for name in metrics},
        join_markup([f"{TEST}{result.tested_metric}", NOT_CHOSEN_BY]): columns[
            f"{TEST}{result.tested_metric}"
        ],
        "Verified in integers": columns["verified"],
        "Verified in RTL": [*[None for _ in head], *(each[0] for each in made)],
        **{
            name: [*[None for _ in head], *(each[1 + place] for each in made)]
            for place, name in enumerate(CIRCUIT_HEADERS)
        },
        "Trial": columns["trial"],
    }
    shown = ResultTable.of_columns(table, "The front").drop_empty_columns()
    return join_markup([tag("h3", "The front"), shown.html(), unverified_reasons(result.verified)])


def metrics_in_order(result: SearchResult) -> list[str]:
    """Return everything that was measured; what was searched for comes first."""
    measured = dict.fromkeys(name for trial in result.complete for name in trial.metrics)
    wanted = [name for name in result.metrics if name in measured]
    return [*wanted, *(name for name in measured if name not in wanted)]


def _with_unit(name: str) -> Markup:
    unit = METRICS.get(name, NO_UNIT).unit
    return join_markup([name, tag("small", unit) if unit else None])


def _circuit(file: str, trial: Trial, circuits: Mapping[str, ExportManifest]) -> list[str | None]:
    """Return the rows that the circuit of a trial was checked on, and what it takes."""
    made = circuits.get(snapshot_name(trial.config) or "") or circuits.get(file)
    if made is None or made.circuit is None:
        return [None] * (1 + len(CIRCUIT_HEADERS))
    return [rows_checked(made), *circuit_cells(made.circuit)]


def unverified_reasons(marks: Mapping[int, Verified]) -> Markup | None:
    """Return why trials were not compared with their integers, or are not what those are."""
    reasons = Counter(mark.reason for mark in marks.values() if mark.reason)
    words = [f"{quantity(some, 'trial')}: {why}" for why, some in reasons.most_common(MOST_REASONS)]
    return tag("p", f"Not verified: {'; '.join(words)}.", class_="quiet") if words else None
