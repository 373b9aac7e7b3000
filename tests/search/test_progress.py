"""What a search says while it is under way."""

import io
import re

import pytest
import rich
from rich.console import Console
from search_cases import Searcher

from chop.views.progress import SearchBar, SearchLines

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_the_ends_of_the_front_are_as_measured_and_not_as_scaled(search_with: Searcher) -> None:
    store = search_with(sampler="brute").store
    trials = [each.user_attrs for each in store.frozen_trials()]
    bits = min(each["hardware_metrics"]["average_bitwidth"] for each in trials)
    right = max(each["software_metrics"]["accuracy"] for each in trials)
    shown = SearchLines(18, ["accuracy", "average_bitwidth"]).best(store)
    assert shown.endswith(f"best accuracy {right:.4g}, average_bitwidth {bits:.4g}")


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_a_narrow_terminal_costs_facts_before_the_bar(
    search_with: Searcher, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    store = search_with(sampler="brute").store
    screen = io.StringIO()
    monkeypatch.setattr(rich, "_console", Console(file=screen, force_terminal=True))
    with SearchBar(18, ["accuracy", "average_bitwidth"]) as bar:
        bar(store)
    lines = [line for line in re.split(r"[\r\n]", ANSI.sub("", screen.getvalue())) if line]
    assert all(len(line) <= columns for line in lines)
    assert re.match(r"Searching ━+ 18/18 \? left", lines[-1])
    assert ("front of" in lines[-1]) == (columns >= 80)
    assert ("average_bitwidth" in lines[-1]) == (columns == 140)


def test_several_slots_say_how_many_are_at_work(
    search_with: Searcher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_with(sampler="brute")
    assert search.trials.words == ""
    monkeypatch.setattr(search.trials.engine, "slots", 4)
    assert search.trials.words == "4 slots, 0 in flight"
    lines = SearchLines(18, ["accuracy", "average_bitwidth"])
    lines.every = 0.0
    lines._done_before = 0
    with caplog.at_level("INFO", logger="chop"):
        lines(search.store, search.trials.words)
    assert re.search(r"18/18 configurations, 0 s left, [\d.e+]+/s, 4 slots, 0 in flight, front of",
                     caplog.text)  # fmt: skip
