"""Trials that stop on a share of the rows: when they do, what is kept, and what is refused."""

import itertools
from typing import Any

import pytest
import torch
from search_cases import StoreMaker, space_of, tables

from chop.errors import ConfigError
from chop.search.config import parse_search
from chop.search.engines.local import Local
from chop.search.front.hypervolume import best_of
from chop.search.runners import EvaluationArgs, loss_and_accuracy
from chop.search.spaces.looks import looks_at_classes
from chop.search.spaces.samples import look_ends
from chop.search.spaces.space import SearchContext, every
from chop.search.strategy import Search

ROWS = 512


def stopping(**setup: Any) -> dict[str, Any]:
    found = tables(**{"n_trials": 18, "sampler": "grid", "stop_dominated": 0.95} | setup)
    found["strategy"]["sw_runner"]["basic_evaluation"]["num_samples"] = ROWS
    return found


def searched(context: SearchContext, open_at: StoreMaker, name: str, **how: Any) -> Search:
    config = parse_search(stopping(**how.pop("setup", {})))
    found = Search(space_of(context, config), config, open_at(name), **how)
    found.run()
    return found


def test_looks_grow_to_all_rows_and_their_bounds_hold(context: SearchContext) -> None:
    config, args = parse_search(tables()), EvaluationArgs(num_samples=ROWS)
    space, wrong, count = space_of(context, config), 0, 0
    for picked in itertools.islice(every(space.tree), 18):
        candidate = space.candidate(space.config(picked))
        with torch.inference_mode():
            *looks, last = looks_at_classes(candidate, args, 0.05)
        assert [each.rows for each in (*looks, last)] == look_ends(ROWS) == [32, 64, 128, 256, ROWS]
        loss, accuracy = loss_and_accuracy(candidate, args)
        assert last.is_last
        assert last.metrics["accuracy"] == accuracy == last.low["accuracy"] == last.high["accuracy"]
        assert last.metrics["loss"] == pytest.approx(loss, rel=1e-6)
        for look in looks:
            inside = [look.low[name] <= last.metrics[name] <= look.high[name] for name in look.low]
            wrong, count = wrong + inside.count(False), count + len(inside)
    assert wrong <= 0.1 * count  # one in twenty is allowed on either side


def test_the_front_is_that_of_all_rows(context: SearchContext, open_at: StoreMaker) -> None:
    whole = searched(context, open_at, "whole", setup={"stop_dominated": None})
    parts = searched(context, open_at, "parts")
    full = {trial.key: trial for trial in whole.store.trials()}
    trials = parts.store.trials()
    stopped = [trial for trial in trials if trial.is_stopped]
    assert stopped
    assert all("of 512 rows" in (trial.reason or "") for trial in stopped)
    for trial in trials:
        if not trial.is_stopped:
            assert trial.seen == (ROWS, ROWS)
            assert trial.values == full[trial.key].values
    best = best_of(parts.store.study, trials)
    assert not any(trial.is_stopped for trial in best)
    assert [t.values for t in best] == [t.values for t in best_of(whole.store.study, full.values())]
    description = parse_search(stopping()).description(18, 0, trials)
    assert description.rows_seen == (sum(t.seen[0] for t in trials if t.seen), ROWS * len(trials))
    assert "rows were saved" in description.savings


def test_the_same_again_and_on_processes_what_is_not_stopped_is_equal(
    context: SearchContext, open_at: StoreMaker
) -> None:
    one, two = (searched(context, open_at, name) for name in ("one", "two"))
    assert [(t.key, t.values, t.seen) for t in one.store.trials()] == [
        (t.key, t.values, t.seen) for t in two.store.trials()
    ]
    local = searched(context, open_at, "local", engine=Local(2))
    serial = {t.key: t.values for t in one.store.trials() if not t.is_stopped}
    found = {t.key: t.values for t in local.store.trials() if not t.is_stopped}
    shared = serial.keys() & found.keys()
    assert shared
    assert all(serial[key] == found[key] for key in shared)


def test_a_resumed_search_stops_by_what_was_found_before(
    context: SearchContext, open_at: StoreMaker
) -> None:
    first = searched(context, open_at, "study.log")
    again = searched(context, open_at, "study.log")
    assert len(again.measure.front) > 1
    assert sorted(again.measure.front) == sorted(first.measure.front)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sw_runner": {"basic_train": {}}}, "row by row, not basic_train"),
        ({"eval_mode": False}, "others of its batch"),
        ({"setup": {"stop_dominated": 0.9, "compare": ["tpe"]}}, "on all rows"),
        ({"setup": {"stop_dominated": 1.0}}, "less than 1"),
    ],
)
def test_what_cannot_stop_is_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    given = stopping()
    given["strategy"] |= change
    with pytest.raises(ConfigError, match=words) as caught:
        parse_search(given)
    assert "\n" not in str(caught.value)
