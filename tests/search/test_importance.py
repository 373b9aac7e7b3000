"""Shares of the variance: right where they are known, nothing where nothing is known."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from chop.search.front.importance import Effects, variance_shares

WIDTHS = [2, 4, 6, 8]


def width(weight: int, bias: int) -> float:
    """The average width of eighty weights and five bias values."""
    return (80 * weight + 5 * bias) / 85


def columns(rows: list[dict[str, Any]]) -> dict[str, list[str | None]]:
    """Choices as the measure takes them; what a row leaves out did not come up."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {n: [str(row[n]) if n in row else None for row in rows] for n in names}


def shares(rows: list[dict[str, Any]], value: Callable[..., float]) -> dict[str, float]:
    return variance_shares(Effects(columns(rows)), [value(**row) for row in rows])


def drawn(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{n: rng.choice(WIDTHS) for n in ("weight", "bias", "idle")} for _ in range(count)]


@pytest.mark.parametrize("count", [60, 2000, 5000])  # the last in several pieces
def test_eighty_weights_matter_more_than_five_bias_values(count: int) -> None:
    found = shares(drawn(count), lambda weight, bias, idle: width(weight, bias))
    assert list(found)[:2] == ["weight", "bias"]
    # Both have the same options, so that their variances are as the squares of 80 and 5.
    assert found["weight"] == pytest.approx(80**2 / (80**2 + 5**2), abs=0.1)
    assert 0.5 < found["weight"] / found["bias"] / (80 / 5) ** 2 < 2
    assert found["idle"] < 1e-6
    assert sum(found.values()) <= 1 + 1e-9


def test_choices_that_a_sampler_changed_together_keep_their_ratio() -> None:
    """A sampler that learns goes down in both widths; the bias must not take over from weights."""
    rng = random.Random(1)
    rows = drawn(600)
    for row in rows:
        if rng.random() < 0.7:
            row["bias"] = row["weight"]
    found = shares(rows, lambda weight, bias, idle: width(weight, bias))
    assert 0.5 < found["weight"] / found["bias"] / (80 / 5) ** 2 < 2


@pytest.mark.parametrize("count", [24, 300])
def test_noise_has_no_share_on_average(count: int) -> None:
    rng = random.Random(2)
    found = [shares(drawn(count, seed), lambda **_: rng.gauss(0, 1)) for seed in range(40)]
    for name in ("weight", "bias", "idle"):
        # About half of the estimates are below zero, and cut there.
        assert sum(each[name] for each in found) / len(found) < 2 / count + 0.02


def test_noise_beside_an_effect_takes_its_own_share_only() -> None:
    rng = random.Random(3)
    found = shares(drawn(4000), lambda weight, **_: weight + rng.gauss(0, 5**0.5))  # variance: 5, 5
    assert found["weight"] == pytest.approx(0.5, abs=0.05)
    assert found["bias"] == pytest.approx(0, abs=0.01)


def test_a_choice_that_leads_to_others_keeps_what_it_decides() -> None:
    rng = random.Random(4)
    rows = [
        {"name": "NA"} if rng.random() < 0.5 else {"name": "integer", "w": rng.choice([4, 8])}
        for _ in range(500)
    ]
    found = shares(rows, lambda name, w=32: w)
    # 32 or 6 on average: 13 squared; then 4 or 8 in half of the trials: 2 squared, halved.
    assert found["name"] == pytest.approx(169 / 171, abs=0.01)
    assert found["w"] == pytest.approx(2 / 171, abs=0.005)


def test_what_was_only_changed_together_is_one_choice() -> None:
    rows = [{"a": row["weight"], "b": row["weight"], "c": row["bias"]} for row in drawn(100)]
    found = shares(rows, lambda a, b, c: float(a))
    assert list(found) == ["a with b", "c"]
    assert found["a with b"] == pytest.approx(1, abs=0.05)  # c goes with them a little, by chance


@pytest.mark.parametrize(
    ("count", "value"), [(19, lambda weight, **_: float(weight)), (50, lambda **_: 0.1)]
)
def test_nothing_is_said_of_too_few_or_too_equal_trials(
    count: int, value: Callable[..., float]
) -> None:
    effects = Effects(columns(drawn(count)))
    assert effects.trials_needed == 20  # three choices of four options each
    assert shares(drawn(count), value) == {}


def test_a_single_option_is_no_choice() -> None:
    assert Effects({"only": ["8"] * 10}).count == 0
    assert variance_shares(Effects({"only": ["8"] * 10}), list(range(10))) == {}
