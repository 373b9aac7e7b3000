"""A trial as a value, what samplers and runners declare, and the names for users."""

import dataclasses
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState
from search_cases import Searcher, StoreMaker

import chop.search
from chop.search.config import parse_search
from chop.search.metrics import METRICS as KNOWN
from chop.search.metrics import MetricInfo
from chop.search.runners import HW_RUNNERS, SW_RUNNERS, Runner
from chop.search.samplers import SAMPLERS, LearningSampler, Problem
from chop.search.spaces.space import Choice
from chop.search.study.trial import (
    MEASURED,
    MetricRule,
    Outcome,
    SearchDescription,
    Trial,
    TrialRequest,
    less_is_better,
)
from chop.verbs.doctor import OTHERS

REQUEST = TrialRequest(
    "k", {"a": {"w": 4}}, {"a/w": 4}, {"a/w": CategoricalDistribution([2, 4])}, {"note": 1}
)
METRICS = dict(zip(MEASURED, ({"accuracy": 0.5}, {"bits": 4.0}, {"accuracy": 5.0}), strict=True))
DONE = Outcome([5.0, 4.0], METRICS, {"bits": 1.0})


def test_a_stored_trial_is_a_value_with_everything_that_was_stored(open_at: StoreMaker) -> None:
    store = open_at()
    (claimed,) = store.claim([REQUEST], None)
    assert claimed is not None
    store.finish([(claimed, DONE)])
    (trial,) = open_at().trials()
    assert (trial.number, trial.key, trial.config, trial.params) == (
        0,
        "k",
        REQUEST.config,
        {"a/w": 4},
    )
    assert (trial.software, trial.hardware, trial.scaled) == tuple(METRICS.values())
    assert trial.metrics == {"accuracy": 0.5, "bits": 4.0}
    assert trial.values == [5.0, 4.0]
    assert trial.violations == {"bits": 1.0}
    assert trial.is_complete
    assert not trial.is_feasible
    assert trial.worker == store.worker
    assert trial.begun is not None
    assert trial.ended is not None
    assert trial.seconds == pytest.approx((trial.ended - trial.begun).total_seconds())
    assert trial.losses(["maximize", "minimize"]) == (-5.0, 4.0)
    assert Trial.of(trial) is trial
    assert Outcome.of(open_at().frozen_trials()[0]) == DONE
    with pytest.raises(dataclasses.FrozenInstanceError):
        trial.number = 1  # type: ignore[misc]


def test_a_trial_has_the_attributes_that_optuna_has(search_with: Searcher) -> None:
    store = search_with(n_trials=6).store
    for mine, theirs in zip(store.trials(), store.frozen_trials(), strict=True):
        assert mine.user_attrs == {n: v for n, v in theirs.user_attrs.items() if n != "claim"}
        assert (mine.values, mine.state, mine.number) == (
            theirs.values,
            theirs.state,
            theirs.number,
        )


def test_a_failed_trial_says_why_and_lacks_its_metrics(open_at: StoreMaker) -> None:
    store = open_at()
    with store.alone():
        store.add([(REQUEST, Outcome(reason="no luck"), datetime.now())])
    (trial,) = open_at().trials()
    assert (trial.state, trial.reason, trial.values) == (TrialState.FAIL, "no luck", None)
    assert trial.missing == MEASURED
    assert trial.attributes == {"sampled_config": REQUEST.config} | dict.fromkeys(MEASURED)
    assert not trial.is_feasible


def test_a_clock_that_was_set_back_takes_no_time() -> None:
    now = datetime.now()
    trial = Trial(0, {}, [1.0], {}, begun=now, ended=now - timedelta(1))
    assert trial.seconds == 0.0
    assert Trial(0, {}, [1.0], {}).seconds is None


def test_less_is_better() -> None:
    assert less_is_better([1.0, 2.0], ["minimize", "maximize"]) == (1.0, -2.0)
    with pytest.raises(ValueError, match="zip"):
        less_is_better([1.0], ["minimize", "maximize"])


@pytest.mark.parametrize(("bits", "inside"), [(3.0, False), (4.0, True), (8.0, True), (8.5, False)])
def test_a_description_knows_the_bounds(bits: float, inside: bool) -> None:
    found = SearchDescription(metrics={"bits": MetricRule(min=4, max=8), "loss": MetricRule(max=1)})
    assert found.allows(Trial(0, {}, [1.0], {}, hardware={"bits": bits})) is inside


def test_a_search_is_described_once() -> None:
    from search_cases import tables

    found = parse_search(tables()).description(18, 2).model_dump(mode="json")
    names = [
        "space",
        "space_size",
        "sampler",
        "repeats",
        "directions",
        "metrics",
        "rows",
        "rows_seen",
    ]
    assert list(found) == names
    assert found["rows"] == "val_dataloader"
    assert list(found["metrics"]["accuracy"]) == ["scale", "direction", "max", "min"]
    assert SearchDescription(**found).model_dump(mode="json") == found


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_a_sampler_declares_what_it_is(name: str) -> None:
    kind = SAMPLERS[name]
    assert kind.description
    assert all(kind.traits.values())
    for package in kind.needs:
        purpose, _ = OTHERS[package]  # so that `ch doctor` tells
        assert name in purpose.split()
        pytest.importorskip(package)
    sampler = kind(0, Problem((Choice("a", (0, 1)),), ("minimize",)))
    assert isinstance(sampler, LearningSampler) is kind.learns


def test_every_metric_has_a_unit_and_its_direction_is_known() -> None:
    declared = [m for r in (*SW_RUNNERS.values(), *HW_RUNNERS.values()) for m in r.metrics]
    assert set(KNOWN.values()) == set(declared)
    assert all(metric.unit for metric in declared)
    assert {KNOWN[name].direction for name in ("accuracy", "memory_density")} == {"maximize"}
    assert KNOWN["train_loss_best"] == ("train_loss_best", "nats, best training", "minimize")
    assert KNOWN["accuracy_spread"].direction == "minimize"


def test_a_custom_metric_may_say_its_unit_or_not() -> None:
    power = MetricInfo("power", "W", "minimize")
    runner = Runner(lambda candidate: {}, "meter", (power, "heat", "loss"))
    assert runner.metrics == (power, ("heat", "", None), KNOWN["loss"])


def test_names_for_users_are_loaded_when_they_are_asked_for() -> None:
    for name in chop.search.__all__:
        assert getattr(chop.search, name).__module__.startswith("chop.")
    with pytest.raises(AttributeError, match="no attribute 'Chioce'"):
        chop.search.Chioce  # noqa: B018
    ask = "import sys, chop.search; print('torch' in sys.modules, 'optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
