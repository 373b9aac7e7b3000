"""Settings of training as a search space."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from search_cases import space_of
from torch import nn

from chop.errors import ChopError
from chop.search.config import parse_search
from chop.search.spaces.space import SearchContext
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store


def tables(seed: dict[str, Any], **fixed: Any) -> dict[str, Any]:
    return {
        "search_space": {
            "name": "train/hyperparameters",
            "setup": {"fixed": {"max_steps": 15, **fixed}},
            "seed": seed,
        },
        "strategy": {
            "sw_runner": {"hyperparameter_training": {"repeats": 2, "num_samples": 256}},
            "setup": {"sampler": "brute"},
            "metrics": {"accuracy": {"direction": "maximize"}},
        },
    }


def test_each_setting_is_trained_several_times(context: SearchContext, tmp_path: Path) -> None:
    config = parse_search(tables({"learning_rate": [1e-2, 1e-5]}, batch_size=256))
    space = space_of(context, config)
    place = Place(str(tmp_path / "study.log"), "s")
    search = Search(space, config, open_store(place, ["maximize"], {}))
    assert search.size == 2
    search.run()
    trials = search.store.frozen_trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2, trials[0].user_attrs
    metrics = [trial.user_attrs["software_metrics"] for trial in trials]
    assert all(each["accuracy_spread"] > 0 and each["loss_spread"] > 0 for each in metrics)
    fast, slow = (each["loss"] for each in metrics)
    assert fast < slow
    assert trials[0].user_attrs["sampled_config"]["max_steps"] == 15


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ({"learnin_rate": [1]}, "did you mean 'learning_rate'"),
        ({"learning_rate": [-1.0]}, "learning_rate"),
        ({"optimizer": ["adamm"]}, "optimizer"),
        ({}, "no setting"),
    ],
)
def test_settings_are_those_of_training(seed: dict[str, Any], message: str) -> None:
    with pytest.raises(ChopError, match=message):
        parse_search(tables(seed))


@pytest.mark.parametrize(
    ("seed", "fixed"), [({"batch_size": [64, 1]}, {}), ({}, {"batch_size": 1})]
)
def test_batches_of_one_row_are_refused_before_the_first_trial(
    seed: dict[str, Any], fixed: dict[str, Any], context: SearchContext
) -> None:
    config = parse_search(tables({"learning_rate": [1e-2], **seed}, **fixed))
    bare = nn.Sequential(nn.Linear(16, 5))
    assert space_of(replace(context, model=bare), config).size
    normalised = nn.Sequential(nn.Linear(16, 5), nn.BatchNorm1d(5))
    with pytest.raises(ChopError, match="batch_size = 1: batch normalisation needs two rows"):
        space_of(replace(context, model=normalised), config).size  # noqa: B018
