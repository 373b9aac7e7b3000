"""Best trials, the table of the labs, JSON as pandas writes it, and a CSV."""

import csv
import io
import json
import math
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from search_cases import TABLES, Searcher, StoreMaker

from chop.results.front import SearchResult
from chop.results.front_charts import draw_front
from chop.results.trials import as_json, best_json, log_json, log_pieces
from chop.search.config import parse_search
from chop.search.front.hypervolume import best_of
from chop.views.terminal import best_table


def trial(number: int, accuracy: float, width: float, violation: float = 0.0) -> FrozenTrial:
    found = create_trial(
        values=[accuracy, width * 0.2],
        constraints={"average_bitwidth": violation},
        user_attrs={
            "software_metrics": {"loss": 1.2000683546, "accuracy": accuracy},
            "hardware_metrics": {"average_bitwidth": width, "memory_density": 32 / width},
            "scaled_metrics": {"accuracy": accuracy, "average_bitwidth": width * 0.2},
            "sampled_config": {"seq_blocks_1": {"config": {"name": None}}},
        },
    )
    found.number = number
    return found


TRIALS = [
    trial(1, 0.5530865192, 8.0),
    trial(2, 0.4634926319, 2.0),
    trial(3, 0.4, 4.0),  # beaten by the second
    trial(7, 0.4918774366, 4.0),
    trial(8, 0.9, 1.0, violation=0.5),  # best of all, but out of bounds
]


def study() -> optuna.Study:
    return optuna.create_study(directions=["maximize", "minimize"])


def test_the_front_holds_what_nothing_beats_within_bounds_the_best_first() -> None:
    assert [each.number for each in best_of(study(), TRIALS)] == [1, 7, 2]


def test_one_objective_has_one_best_trial() -> None:
    single = optuna.create_study(direction="maximize")
    trials = [create_trial(value=value) for value in (1.0, 3.0, 3.0, 2.0)]
    for number, each in enumerate(trials):
        each.number = number
    failed = create_trial(state=TrialState.FAIL)
    assert [each.number for each in best_of(single, [*trials, failed])] == [1]
    assert best_of(single, [failed]) == []


def test_the_table_is_that_of_the_labs() -> None:
    expected = """\
|    |   number | software_metrics                 | hardware_metrics                                  | scaled_metrics                               |
|----+----------+----------------------------------+---------------------------------------------------+----------------------------------------------|
|  0 |        1 | {'loss': 1.2, 'accuracy': 0.553} | {'average_bitwidth': 8.0, 'memory_density': 4.0}  | {'accuracy': 0.553, 'average_bitwidth': 1.6} |
|  1 |        2 | {'loss': 1.2, 'accuracy': 0.463} | {'average_bitwidth': 2.0, 'memory_density': 16.0} | {'accuracy': 0.463, 'average_bitwidth': 0.4} |
|  2 |        7 | {'loss': 1.2, 'accuracy': 0.492} | {'average_bitwidth': 4.0, 'memory_density': 8.0}  | {'accuracy': 0.492, 'average_bitwidth': 0.8} |"""  # noqa: E501
    in_the_order_of_the_labs = sorted(best_of(study(), TRIALS), key=lambda each: each.number)
    assert best_table(in_the_order_of_the_labs) == expected


def test_best_json_has_the_fields_and_the_form_of_the_labs() -> None:
    text = as_json(best_json(best_of(study(), TRIALS)[:1]))
    assert (
        text
        == """\
{
    "0":{
        "number":1,
        "value":[
            0.5530865192,
            1.6
        ],
        "software_metrics":{
            "loss":1.2000683546,
            "accuracy":0.5530865192
        },
        "hardware_metrics":{
            "average_bitwidth":8.0,
            "memory_density":4.0
        },
        "scaled_metrics":{
            "accuracy":0.5530865192,
            "average_bitwidth":1.6
        },
        "sampled_config":{
            "seq_blocks_1":{
                "config":{
                    "name":null
                }
            }
        }
    }
}
"""
    )


@pytest.mark.parametrize(
    "value",
    [
        {}, [], None, True, -3, "a \"quoted\" é \ud800", 0.5, 1e-9, 1e300, -0.0, math.nan, math.inf,
        {"empty": {}, "none": [], "list": [1, [2.5, False], {"a": None}], 1: (), None: "x"},
        {"a": {"b": {"c": 1.0}}, "d": TrialState.FAIL}, [{"a": {"b": [{}]}}],
    ],
    ids=str,
)  # fmt: skip
def test_json_is_what_python_writes_with_an_indent_of_four(value: object) -> None:
    expected = json.dumps(value, indent=4, separators=(",", ":")) + "\n"
    assert as_json(value) == expected


def test_json_has_ten_decimals() -> None:
    assert as_json({"a": [1 / 3, 1e-11]}) == as_json({"a": [0.3333333333, 0.0]})


def test_log_json_has_the_columns_of_the_original() -> None:
    row = log_json(TRIALS, 2)["0"]
    assert list(row) == [
        "number", "values_0", "values_1", "user_attrs_hardware_metrics",
        "user_attrs_sampled_config", "user_attrs_scaled_metrics", "user_attrs_software_metrics",
        "state", "datetime_start", "datetime_complete", "duration",
    ]  # fmt: skip
    assert json.loads("".join(log_pieces(TRIALS, 2))) == json.loads(json.dumps(log_json(TRIALS, 2)))
    assert json.loads("".join(log_pieces([], 2))) == {}
    assert row["state"] == "COMPLETE"
    assert isinstance(row["duration"], int)


def test_the_files_of_a_search(search_with: Searcher, tmp_path: Path) -> None:
    found = search_with(sampler="random", n_trials=6)
    trials = found.store.frozen_trials()
    problem = parse_search(TABLES).description(18, 0)
    best = SearchResult.of(found.store.study, trials, problem).save(tmp_path).best
    stored = json.loads((tmp_path / "best.json").read_text(encoding="utf-8"))
    assert [entry["number"] for entry in stored.values()] == [each.number for each in best]
    blocks = stored["0"]["sampled_config"]
    assert list(blocks) == [
        "seq_blocks_0",
        "seq_blocks_1",
        "seq_blocks_2",
        "seq_blocks_3",
        "default",
    ]
    assert blocks["seq_blocks_1"] == blocks["default"] == {"config": {"name": None}}
    assert blocks["seq_blocks_2"]["config"]["weight_frac_width"] is None
    rows = list(csv.DictReader(io.StringIO((tmp_path / "trials.csv").read_text(encoding="utf-8"))))
    assert len(rows) == len(json.loads((tmp_path / "log.json").read_text(encoding="utf-8"))) == 6
    assert float(rows[0]["accuracy"]) == trials[0].user_attrs["software_metrics"]["accuracy"]
    assert rows[0]["seq_blocks_2/config/weight_frac_width"] == "NA"


def test_bounds_keep_trials_out_of_the_front(search_with: Searcher, open_at: StoreMaker) -> None:
    free = search_with(sampler="brute")
    widths = [
        t.user_attrs["hardware_metrics"]["average_bitwidth"] for t in free.store.frozen_trials()
    ]
    bound = sorted(widths)[5]
    metrics = TABLES["strategy"]["metrics"]["average_bitwidth"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(metrics, "min", bound)
        bounded = search_with(sampler="tpe", n_trials=18, store=open_at("bounded.log"))
    best = best_of(bounded.store.study, bounded.store.frozen_trials())
    assert best
    for each in best:
        assert each.user_attrs["hardware_metrics"]["average_bitwidth"] >= bound
    infeasible = [t for t in bounded.store.frozen_trials() if max(t.constraints.values()) > 0]
    assert len(infeasible) == sum(width < bound for width in widths)


def test_pictures_are_drawn(search_with: Searcher, tmp_path: Path) -> None:
    found = search_with(sampler="random", n_trials=12)
    problem = parse_search(TABLES).description(18, 0)
    paths = draw_front(
        SearchResult.of(found.store.study, found.store.frozen_trials(), problem), tmp_path
    )
    assert [path.stem for path in paths] == ["front", "metrics", "hypervolume", "importance"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert draw_front(SearchResult([], [], problem), tmp_path) == []
