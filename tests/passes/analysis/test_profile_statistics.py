"""The statistics pass: the labs' counts, exact samples, and nothing of the model changed."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graph_zoo import ZOO, JSCTiny
from torch import Tensor

from chop.errors import ChopError, ConfigError, GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    profile_statistics_analysis_pass,
    verify_metadata_analysis_pass,
)

ROWS = torch.randn(200, 16, generator=torch.Generator().manual_seed(2))


class Batches:
    """Starts anew each time, as `InputGenerator` does."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.drawn = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for rows in ROWS.split(self.batch_size):
            self.drawn += 1
            yield {"x": rows}


def lab_arguments(batches: Any, **changes: Any) -> dict[str, Any]:
    return {
        "by": "type",
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["relu"],
        "weight_statistics": {"variance_precise": {"device": "cpu", "dims": "all"}},
        "activation_statistics": {
            "range_quantile": {"device": "cpu", "dims": "all", "quantile": 0.97}
        },
        "input_generator": batches,
        "num_samples": 32,
    } | changes


def ready(name: str = "jsc_tiny") -> MaseGraph:
    model, dummy_in = ZOO[name]
    graph = MaseGraph(copy.deepcopy(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in})
    return add_software_metadata_analysis_pass(graph)[0]


def stat(graph: MaseGraph, node: str, entry: str, side: str = "args") -> dict[str, Any]:
    found = next(n for n in graph.nodes if n.name == node)
    value: dict[str, Any] = found.meta["mase"].parameters["software"][side][entry]["stat"]
    return value


@pytest.mark.parametrize("batch_size", [8, 5, 32, 64])
def test_counts_are_those_of_the_labs_whatever_the_batch_size(batch_size: int) -> None:
    graph = ready()
    batches = Batches(batch_size)
    graph, info = profile_statistics_analysis_pass(graph, lab_arguments(batches))
    assert stat(graph, "seq_blocks_1", "data_in_0")["range_quantile"]["count"] == 512
    assert stat(graph, "seq_blocks_3", "data_in_0")["range_quantile"]["count"] == 160
    assert stat(graph, "seq_blocks_2", "weight")["variance_precise"]["count"] == 80
    assert stat(graph, "seq_blocks_2", "bias")["variance_precise"]["count"] == 5
    assert stat(graph, "seq_blocks_2", "data_in_0") == {}
    assert info["samples"] == 32
    assert batches.drawn == -(-32 // batch_size)
    verify_metadata_analysis_pass(graph)


def test_numbers_are_those_of_the_model() -> None:
    graph = ready()
    model = copy.deepcopy(graph.modules["seq_blocks.0"]).eval()
    graph, info = profile_statistics_analysis_pass(graph, lab_arguments(Batches(5)))
    with torch.no_grad():
        seen = model(ROWS[:32]).numpy()
    found = stat(graph, "seq_blocks_1", "data_in_0")["range_quantile"]
    np.testing.assert_allclose(found["min"], np.quantile(seen, 0.03), rtol=1e-4)
    np.testing.assert_allclose(found["max"], np.quantile(seen, 0.97), rtol=1e-4)
    weight = graph.modules["seq_blocks.2"].weight
    found = stat(graph, "seq_blocks_2", "weight")["variance_precise"]
    assert found["variance"] == pytest.approx(weight.var().item(), rel=1e-5)
    assert info["statistics"]["seq_blocks_2"]["weight"]["variance_precise"] == found
    assert set(info["statistics"]) == {"seq_blocks_1", "seq_blocks_2", "seq_blocks_3"}


def test_a_second_run_gives_the_same_and_changes_no_dictionary() -> None:
    graph, arguments = ready(), lab_arguments(Batches(7))
    before = copy.copy(arguments)
    _, first = profile_statistics_analysis_pass(graph, arguments)
    first = copy.deepcopy(first)
    _, second = profile_statistics_analysis_pass(graph, arguments)
    assert first == second
    assert arguments == before


def test_the_model_is_left_alone() -> None:
    model = JSCTiny().train()
    before = copy.deepcopy(model.state_dict())
    graph = MaseGraph(model)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": ROWS}})
    graph, _ = add_software_metadata_analysis_pass(graph)
    rows = ROWS.clone()
    profile_statistics_analysis_pass(graph, lab_arguments([{"x": rows}], num_samples=200))
    assert torch.equal(rows, ROWS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_buffers_are_profiled_with_the_weights() -> None:
    graph = ready()
    arguments = {"by": "name", "target_weight_nodes": ["seq_blocks_0"]}
    statistics = {"range_min_max": {}, "abs_mean": {}}
    graph, info = profile_statistics_analysis_pass(
        graph, {**arguments, "weight_statistics": statistics}
    )
    found = info["statistics"]["seq_blocks_0"]
    assert set(found) == {"weight", "bias", "running_mean", "running_var"}
    assert found["running_var"] == {
        "range_min_max": {"min": 1.0, "max": 1.0, "range": 0.0, "count": 16},
        "abs_mean": {"abs_mean": 1.0, "count": 16},
    }
    assert info["samples"] == 0


def test_activations_of_a_layer_need_no_weights() -> None:
    arguments = lab_arguments(
        Batches(8), target_weight_nodes=[], target_activation_nodes=["linear"]
    )
    _, info = profile_statistics_analysis_pass(ready(), arguments)
    assert set(info["statistics"]["seq_blocks_2"]) == {"data_in_0"}


def test_outputs_are_profiled_if_asked() -> None:
    arguments = lab_arguments(
        Batches(8),
        activation_statistics={"range_min_max": {}},
        profile_output_activation=True,
    )
    graph, _ = profile_statistics_analysis_pass(ready(), arguments)
    found = stat(graph, "seq_blocks_1", "data_out_0", "results")["range_min_max"]
    assert found["min"] == 0  # what comes out of a ReLU
    assert found["count"] == 512
    assert stat(graph, "seq_blocks_1", "data_in_0")["range_min_max"]["min"] < 0  # what goes in
    assert stat(graph, "seq_blocks_0", "data_out_0", "results") == {}


def test_no_two_nodes_share_a_statistic() -> None:
    arguments = lab_arguments(Batches(8), activation_statistics={"abs_mean": {}, "record": {}})
    graph, _ = profile_statistics_analysis_pass(ready(), arguments)
    shapes = [
        torch.tensor(stat(graph, node, "data_in_0")["record"]["data"]).shape
        for node in ("seq_blocks_1", "seq_blocks_3")
    ]
    assert shapes == [(32, 16), (32, 5)]


def test_functions_and_their_weights_are_profiled() -> None:
    graph = ready("functional")
    arguments = {
        "by": "regex_name",
        "target_weight_nodes": ["lin.*"],
        "target_activation_nodes": ["cat", "linear"],
        "weight_statistics": {"abs_mean": {}},
        "activation_statistics": {"abs_mean": {"dims": None}},
        "input_generator": [{"input": torch.ones(3, 4)}],
        "num_samples": 3,
    }
    graph, info = profile_statistics_analysis_pass(graph, arguments)
    assert info["statistics"]["linear"]["weight"]["abs_mean"]["count"] == 16
    assert info["statistics"]["linear"]["data_in_0"]["abs_mean"]["abs_mean"] == [[1.0] * 4]
    assert set(info["statistics"]["cat"]) == {"data_in_0", "data_in_1"}


def test_several_inputs_are_cut_together() -> None:
    graph = ready("two_inputs")
    arguments = {
        "by": "name",
        "target_activation_nodes": ["sub"],
        "activation_statistics": {"record": {}},
        "input_generator": [{"a": torch.ones(4, 4), "b": torch.zeros(4, 4)}] * 2,
        "num_samples": 6,
    }
    graph, info = profile_statistics_analysis_pass(graph, arguments)
    assert info["statistics"]["sub"]["data_in_1"]["record"]["count"] == 6


def test_too_few_samples_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "chop"):
        _, info = profile_statistics_analysis_pass(
            ready(), lab_arguments(Batches(8), num_samples=1000)
        )
    assert info["samples"] == 200
    assert "only 200 of 1000 samples came" in caplog.text


def test_nodes_without_weights_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "chop"):
        profile_statistics_analysis_pass(
            ready(), lab_arguments(Batches(8), target_weight_nodes=["relu"])
        )
    assert "node 'seq_blocks_1' has no weights to profile" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target_weight_nodes": ["linaer"]},
            "no node has the type 'linaer': did you mean 'linear'",
        ),
        ({"activation_statistics": {"range": {}}}, "unknown statistic 'range'"),
        ({"activation_statistics": {"record": {"dims": 1}}}, "unknown key 'dims'"),
        ({"num_samples": 0}, "num_samples: input should be greater than 0"),
        ({"num_samples": None}, "activations need an input_generator and num_samples"),
        ({"input_generator": None}, "activations need an input_generator and num_samples"),
        ({"input_generator": 3}, "input_generator: input should be an instance of Batches"),
        ({"input_generator": [ROWS]}, "batches should be dictionaries by input name, not Tensor"),
        ({"by": "kind"}, "by: input should be 'type', 'name' or 'regex_name'"),
        ({"target_nodes": []}, "unknown key 'target_nodes'"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ChopError, match=message) as error:
        profile_statistics_analysis_pass(ready(), lab_arguments(Batches(8), **changes))
    assert isinstance(error.value, ConfigError)


def test_software_metadata_must_be_there() -> None:
    graph = MaseGraph(JSCTiny())
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": ROWS}})
    with pytest.raises(GraphError, match="run add_software_metadata_analysis_pass first"):
        profile_statistics_analysis_pass(graph, lab_arguments(Batches(8)))
