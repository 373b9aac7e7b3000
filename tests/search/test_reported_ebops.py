"""EBOPs that a search reports are those of all training rows; a sample serves the rest."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learned_cases import mlp, tables
from search_cases import PTQ, StoreMaker, space_of
from torch.utils.data import DataLoader

from chop.dataset.data_module import TensorLoader
from chop.dataset.own import as_data_module
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import count_operations_analysis_pass
from chop.passes.graph.analysis.flops.ebops import ebops
from chop.passes.graph.interface import load_mase_graph
from chop.search.config import parse_search
from chop.search.front.hypervolume import best_of
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchContext, every
from chop.search.strategy import Search
from chop.search.study.trial import Trial
from chop.verbs.common.session import facts_of
from chop.verbs.search.job import search

ROWS, SAMPLE = 600, 16
LINEAR = {
    "name": ["integer"],
    "data_in_width": [6, 8], "data_in_frac_width": [2, 4],
    "weight_width": [3, 6], "weight_frac_width": [2, 4],
    "bias_width": [8], "bias_frac_width": [4],
}  # fmt: skip
TABLES: dict[str, Any] = {
    "search_space": {
        "name": PTQ,
        "setup": {"by": "type"},
        "seed": {"default": {"config": {"name": [None]}}, "linear": {"config": LINEAR}},
    },
    "strategy": {
        "name": "optuna",
        "sw_runner": {"basic_evaluation": {}},
        "hw_runner": {"ebops": {"num_samples": SAMPLE}},
        "setup": {"n_jobs": 1, "n_trials": 12, "sampler": "random"},
        "metrics": {"accuracy": {"direction": "maximize"}, "ebops": {"direction": "minimize"}},
    },
}


def rare_rows(seed: int) -> dict[str, TensorLoader]:
    """Rows of which few are large, so that a sample misses bits; the order depends on the seed."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(2 * ROWS, 8, generator=draw) ** 3
    labels = (features @ torch.randn(8, 3, generator=draw)).argmax(1)
    return {
        "train": TensorLoader(features[:ROWS], labels[:ROWS], 32, True, seed),
        "val": TensorLoader(features[ROWS:], labels[ROWS:], 64),
    }


def context_of(seed: int, data: Any = None) -> SearchContext:
    model = mlp().eval()
    rows = as_data_module(data or rare_rows(seed), "train")
    return SearchContext(model, facts_of(model, None), rows, seed=seed)  # type: ignore[arg-type]


def counted(graph: MaseGraph) -> int:
    """EBOPs of all training rows, as they lie."""
    return ebops(graph, [rare_rows(0)["train"].features]).total


@pytest.mark.parametrize("seed", [0, 1])
def test_the_front_of_a_search_has_the_count_of_all_rows(seed: int, open_at: StoreMaker) -> None:
    config = parse_search(copy.deepcopy(TABLES))
    context = context_of(seed)
    found = Search(space_of(context, config), config, open_at(), seed)
    found.run()
    trials = list(map(Trial.of, found.store.trials()))
    best = best_of(found.store.study, trials)
    exact = {each.number: counted(found.space.candidate(dict(each.config)).graph)
             for each in trials}  # fmt: skip
    assert len(best) > 1
    for trial in best:
        assert trial.hardware["ebops"] == trial.metrics["ebops"] == exact[trial.number]
        assert trial.values is not None
        assert trial.values[1] == exact[trial.number]
    assert all(each.hardware["ebops"] <= exact[each.number] for each in trials)
    sampled = [each for each in trials if each.hardware["ebops"] < exact[each.number]]
    assert sampled  # the sample did serve: what is surely dominated was not counted in full
    in_full = [Trial(t.number, t.software, [t.software["accuracy"], exact[t.number]], t.config)
               for t in trials]  # fmt: skip
    front = best_of(found.store.study, in_full)
    assert [each.number for each in front] == [each.number for each in best]


@pytest.mark.parametrize("seed", [0, 1])
def test_learned_widths_report_the_count_of_all_rows(seed: int, tmp_path: Path) -> None:
    given = tables(teacher=None)
    given["strategy"]["hw_runner"] = {"ebops": {"num_samples": SAMPLE}}
    found = search(mlp(), None, rare_rows(seed), given, save_dir=tmp_path)
    stored = json.loads((tmp_path / "best.json").read_text())
    for place, trial in enumerate(found.best):
        graph = load_mase_graph(tmp_path / "graphs" / f"epoch_{trial.config['epoch']}")
        assert trial.hardware["ebops"] == counted(graph)
        assert stored[str(place)]["hardware_metrics"]["ebops"] == counted(graph)


def test_the_sample_is_the_same_for_every_seed() -> None:
    one, other = (torch.cat(list(context_of(s).features("train_dataloader", SAMPLE)))
                  for s in (0, 1))  # fmt: skip
    assert torch.equal(one, other)
    assert len(one) == SAMPLE
    features = rare_rows(0)["train"].features
    assert (one[:, None] == features).all(2).any(1).all()
    assert not torch.equal(one, features[:SAMPLE])


def test_loaders_of_torch_have_such_a_sample_too() -> None:
    torch.manual_seed(5)
    loader = DataLoader(rare_rows(0)["train"].dataset, 7, shuffle=True)
    context = context_of(0, {"train": loader, "val": rare_rows(0)["val"]})
    before = torch.get_rng_state()
    one = torch.cat(list(context.features("train_dataloader", SAMPLE)))
    assert torch.equal(one, torch.cat(list(context_of(1).features("train_dataloader", SAMPLE))))
    assert sum(map(len, context.features("train_dataloader", None))) == ROWS
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("rule", "samples"),
    [
        ({"direction": "minimize"}, True),
        ({"direction": "minimize", "max": 1e9}, True),
        ({"direction": "minimize", "scale": 0}, True),
        ({"direction": "minimize", "min": 10}, False),
        ({"direction": "maximize"}, False),
        ({"direction": "minimize", "scale": -1}, False),
    ],
)
def test_a_sample_serves_where_less_is_better(rule: dict[str, Any], samples: bool) -> None:
    given = copy.deepcopy(TABLES)
    given["strategy"]["metrics"]["ebops"] = rule
    config = parse_search(given)
    measure = Measure(space_of(context_of(0), config), config)
    assert measure.in_full is not samples
    assert len(measure.sampled) == 1


def test_few_rows_are_counted_once() -> None:
    given = copy.deepcopy(TABLES)
    given["strategy"]["hw_runner"]["ebops"]["num_samples"] = ROWS
    config = parse_search(given)
    assert Measure(space_of(context_of(0), config), config).sampled == []


def test_the_pass_counts_all_rows() -> None:
    context = context_of(0)
    config = parse_search(copy.deepcopy(TABLES))
    space = space_of(context, config)
    graph = space.candidate(space.config(next(every(space.tree)))).graph
    (features,) = context.features("train_dataloader", 1)
    zeros = torch.zeros(9_000, 8)
    many = [{"x": x} for x in (zeros, features, 8 * features)]
    _, info = count_operations_analysis_pass(graph, {"input_generator": many, "report": False})
    assert info["ebops"]["rows"] == 9_002
    exact = ebops(graph, [torch.cat([zeros, features, 8 * features])]).total
    assert info["total"]["ebops"] == exact > ebops(graph, [zeros]).total
