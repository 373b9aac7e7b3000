"""A few of the conditions that `make harden` tries, and whether it would notice a loss."""

import dataclasses

import pytest

from chop.dataset.info import DATASETS
from chop.models.info import MODELS
from harden import numbers
from harden.numbers import CONDITIONS, DONE, Condition

BY_NAME = {condition.name: condition for condition in CONDITIONS}
QUICK = [
    "NaN in a CSV file",
    "no column that varies",
    "the largest numbers of float32",
    "the smallest numbers of float32",
    "a class only in validation",
    "one row in a file",
    "one row in each split, with BatchNorm",
    "batch size 1 with BatchNorm2d of one place",
    "no parameters, and their bits asked for",
    "all parameters frozen",
    "shared layers and weights",
    "no node that can be quantised",
    "scores that are NaN",
    "one point to search, tpe",
]


@pytest.mark.parametrize("name", QUICK)
def test_a_condition_ends_as_it_must(name: str) -> None:
    row = numbers.tried(BY_NAME[name])
    assert row.failures == ()
    assert (row.tried, row.lost) == (len(BY_NAME[name].ends), 0)


def test_nothing_is_left_in_the_registries() -> None:
    assert not [name for name in (*MODELS, *DATASETS) if name.startswith("harden-")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ends": {"test": DONE}, "source": numbers.data.csv(count=3)}, "exit code 2"),
        ({"ends": {"test": "too few"}}, "exit code 0 and 0 lines"),
        ({"ends": {"test": "too many"}, "source": numbers.data.csv(count=3)}, "is not in"),
        ({"ends": {"search": DONE}, "also": numbers.one_trial}, "not one trial"),
    ],
    ids=["an error", "no error", "another error", "another result"],
)
def test_a_wrong_end_is_noticed(change: dict[str, object], words: str) -> None:
    planted: Condition = dataclasses.replace(BY_NAME["nothing out of the ordinary"], **change)  # type: ignore[arg-type]
    row = numbers.tried(planted)
    assert row.lost == 1
    assert words in row.failures[0]
