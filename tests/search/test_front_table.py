"""The front on a terminal: few rows, plain columns, within its width."""

import pytest

from chop.figures import Measured, metrics_line
from chop.results.front import SearchResult
from chop.search.front.accuracy import Accuracies, Start
from chop.search.front.verification import Verified
from chop.search.study.trial import SearchDescription, Trial

ROWS = 20_000


def trial(number: int, right: int, ebops: float) -> Trial:
    software, hardware = {"accuracy": right / ROWS, "loss": 1.0}, {"ebops": ebops, "luts": 12.5}
    return Trial(number, software, [right / ROWS, ebops], {}, hardware=hardware)


def searched_for(*names: str) -> SearchDescription:
    return SearchDescription(metrics={name: {} for name in names})  # type: ignore[misc]


def front(points: int) -> SearchResult:
    best = [trial(7 * place, 15_000 - 100 * place, 20_000.0 - place) for place in range(points)]
    known = Accuracies(chosen_by=Measured.of(15_000, ROWS), test=Measured.of(1_500, 2_000))
    marks = {each.number: Verified(equal=True, rows=2_000, promised=True) for each in best}
    judged = {each.number: known for each in best}
    problem = searched_for("accuracy", "ebops", "luts")
    return SearchResult(best, best, problem, marks, judged, Start(**known.model_dump()))


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("points", [1, 5, 6, 7, 24])
def test_it_fits(points: int, columns: int) -> None:
    lines = front(points).text(columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert "accuracy" in lines[0]
    assert "ebops" in lines[0]
    shown = [line.split()[0] for line in lines[3:] if line.startswith("best_")]
    assert len(shown) == (points if points <= 6 else 5)
    assert (shown[0], shown[-1]) == ("best_0", f"best_{points - 1}")
    assert lines[2].split()[0] == "float"
    assert ("more in" in lines[-1]) == (points > 6)
    if points > 6:
        assert lines[-1] == f"{points - 5} more in best.json and trials.csv"


def test_a_wide_terminal_shows_all_of_it() -> None:
    first = front(3).text(120).splitlines()[3].split()
    assert first == ["best_0", "0", "0.7500", "±0.0060", "20,000", "12.5", "0.7500", "±0.0190",
                     "2,000", "rows"]  # fmt: skip


def test_what_is_not_known_has_no_column() -> None:
    best = front(2).best
    head = SearchResult(best, best, searched_for("accuracy", "ebops")).text(120).splitlines()[0]
    assert head.split() == ["trial", "accuracy", "ebops"]


def test_metrics_in_a_line() -> None:
    assert metrics_line({"accuracy": 0.73425, "ebops": 19234.0}) == "accuracy 0.7342, ebops 19,234"
