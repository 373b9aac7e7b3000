"""``[search]`` is checked before any model is built, with one clear line."""

import copy
from pathlib import Path
from typing import Any

import pytest
from search_cases import TABLES, tables

from chop.config.layers import checked_file
from chop.errors import ChopError
from chop.search.config import parse_search

CONFIGS = Path(__file__).parents[2] / "configs" / "examples"


def changed(path: str, value: Any) -> dict[str, Any]:
    found = copy.deepcopy(TABLES)
    *steps, last = path.split("/")
    inner = found
    for step in steps:
        inner = inner.setdefault(step, {})
    inner[last] = value
    return found


@pytest.mark.parametrize("name", ["jsc_toy_by_type.toml", "jsc_new_by_type_brute.toml"])
def test_the_files_of_the_labs_are_valid(name: str) -> None:
    config = parse_search(checked_file(CONFIGS / name)["search"])
    assert list(config.metrics) == ["accuracy", "average_bitwidth"]
    assert config.directions == ["maximize", "minimize"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("strategy/setup/sampler", "tpee", "did you mean 'tpe'"),
        ("strategy/setup/n_trial", 3, "did you mean 'n_trials'"),
        ("strategy/setup/pkl_ckpt", "study.pkl", "pkl_ckpt is gone: a pickle can run any code"),
        ("strategy/setup/n_jobs", 0, "n_jobs"),
        ("strategy/setup/sum_scaled_metrics", True, "direction: must be 'maximize' or 'minimize'"),
        ("strategy/metrics/accuracyy", {"direction": "maximize"}, "did you mean 'accuracy'"),
        ("strategy/metrics", {}, "metrics"),
        ("strategy/metrics/accuracy/direction", "up", "direction"),
        ("strategy/sw_runner/basic_evaluation/data_loader", "valid", "data_loader"),
        ("strategy/sw_runner/basic_evaluation/num_sample", 3, "unknown key 'num_sample'"),
        ("strategy/sw_runner/basic_evaluatio", {}, "did you mean 'basic_evaluation'"),
        ("strategy/sw_runner/basic_train", {}, "both measure 'loss'"),
        ("strategy/hw_runner/average_bits", {}, "unknown runner 'average_bits'"),
        ("strategy/name", "random", "name"),
        ("search_space/name", "graph/quantise/mixed_precision_ptq", "did you mean 'graph/quant"),
        ("search_space/setup/by", "kind", "setup: by"),
        ("search_space/seed", {}, "no seed"),
        ("search_space/seed/linear/config/name", ["integr"], "did you mean 'integer'"),
        ("search_space/seed/linear/config/wieght_width", [4], "did you mean 'weight_width'"),
        ("search_space/seed/linear/config/weight_width", [], "nothing to choose from"),
        ("search_space/seed/linear/config", {"weight_width": [4]}, "'name'"),
        ("search_space/seed/linear", {"name": ["integer"]}, "'config'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_right(path: str, value: Any, message: str) -> None:
    given = changed(path, value)
    before = copy.deepcopy(given)
    with pytest.raises(ChopError) as caught:
        parse_search(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert given == before


def test_an_empty_table_says_what_is_needed() -> None:
    with pytest.raises(ChopError, match=r"\[search.search_space\]"):
        parse_search({})


def test_data_loader_is_read_under_both_names() -> None:
    for key in ("data_loader", "dataloader"):
        given = changed("strategy/sw_runner/basic_evaluation", {key: "test_dataloader"})
        ((_, args),) = parse_search(given).software()
        assert args.data_loader == "test_dataloader"  # type: ignore[attr-defined]


def test_samplers_are_found_in_any_case_and_old_keys_of_no_effect_are_accepted() -> None:
    setup = parse_search(tables(sampler="TPE", save_every_n_trials=10)).strategy.setup
    assert setup.sampler == "tpe"


def test_a_summed_search_has_one_objective() -> None:
    given = tables(sum_scaled_metrics=True, direction="minimize")
    assert parse_search(given).directions == ["minimize"]
