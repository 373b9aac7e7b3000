"""Graphs of torch.export are made of layers and functions, as those of fx are."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph, MaseTracer
from chop.ir.graph.recorder import run_graph
from chop.ops.op import is_aten
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass


@dataclass
class Result:
    logits: Tensor
    states: tuple[Tensor, Tensor]
    loss: Tensor | None = None
    rows: int = 0


class OwnNorm(nn.BatchNorm1d):
    """A custom layer that normalises by the function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(
            F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias,
                self.training, self.momentum or 0.1, self.eps,
            )
        )  # fmt: skip


class Everything(nn.Module):
    """What fx cannot trace, with whatever a network may have."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.first = nn.ReLU(inplace=True), nn.Linear(4, 4)
        self.again = self.first
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.norm, self.own, self.drop = nn.BatchNorm1d(4), OwnNorm(4), nn.Dropout(0.5)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.place = nn.Parameter(torch.randn(1, 4))
        self.layer_norm = nn.LayerNorm(4)

    @torch.no_grad()
    def table(self, x: Tensor) -> Tensor:
        return torch.cos(torch.arange(x.shape[-1], device=x.device).float()) * self.place

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, **more: Any) -> Result:
        x = self.act(self.first(x))
        for _ in range(x.shape[1] - 2):
            x = self.again(x)
        x = self.tied(x) + self.layer_norm(self.place) + self.table(x)
        out, states = self.lstm(x)
        z = self.own(self.drop(self.norm(out[:, 0])))
        z = F.dropout(1 - z, 0.5, self.training)
        z *= 2
        with torch.autocast("cpu", enabled=False):
            z = z + more["shift"]
        return Result(z, states, rows=x.shape[0])


def inputs(rows: int) -> dict[str, Tensor]:
    torch.manual_seed(rows)
    return {"x": torch.randn(rows, 4, 4), "shift": torch.randn(rows, 4)}


@pytest.fixture(scope="module")
def traced() -> tuple[Everything, MaseGraph]:
    torch.manual_seed(0)
    model = Everything()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph = MaseGraph(model, example_inputs=inputs(3))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    return model, graph


def same(found: Any, wanted: Result) -> bool:
    pairs = [(found.logits, wanted.logits), *zip(found.states, wanted.states, strict=True)]
    return all(torch.equal(*pair) for pair in pairs) and found["rows"] == wanted.rows


def test_layers_are_the_models_own(traced: tuple[Everything, MaseGraph]) -> None:
    model, graph = traced
    assert not [node for node in graph.nodes if is_aten(node)]
    called = [str(n.target) for n in graph.nodes if n.op == "call_module"]
    kept = ["act", "drop", "first", "layer_norm", "lstm", "norm", "tied"]
    assert [name for name in sorted(set(called)) if "_layer" not in name] == kept
    assert called.count("first") == 3  # the other name is the same layer
    assert graph.modules["first"] is model.first
    assert graph.modules["tied"].weight is graph.modules["first"].weight
    own = [m for m in graph.modules.values() if type(m) is nn.BatchNorm1d and m is not model.norm]
    assert own[0].weight is model.own.weight
    assert own[0].running_mean is model.own.running_mean
    names = [node.target for node in graph.nodes if node.op == "placeholder"]
    assert names == ["x", "shift"]


def test_it_computes_as_the_model_at_any_number_of_rows(
    traced: tuple[Everything, MaseGraph],
) -> None:
    model, graph = (copy.deepcopy(each) for each in traced)
    model.eval(), graph.model.eval()
    for rows in (3, 2, 7):
        assert same(graph.model(**inputs(rows)), model(**inputs(rows)))
    with pytest.raises(AttributeError, match="the graph returns logits, states, loss, rows"):
        _ = graph.model(**inputs(3)).hidden
    with pytest.raises(GraphError, match="node 'shift': .* as many rows as 'x' has"):
        graph.model(inputs(3)["x"], inputs(2)["shift"])
    on_meta = run_graph(graph, inputs(5), on_meta=True)
    assert on_meta["logits"].shape == (5, 4)


def test_dropout_and_normalisation_follow_the_mode(traced: tuple[Everything, MaseGraph]) -> None:
    model, graph = (copy.deepcopy(each) for each in traced)
    for each in (model.train(), graph.model.train()):
        each(**inputs(6))
    assert torch.equal(model.norm.running_mean, graph.modules["norm"].running_mean)
    assert model.norm.num_batches_tracked == graph.modules["norm"].num_batches_tracked == 1
    given = inputs(6)
    assert not torch.equal(graph.model(**given).logits, graph.model(**given).logits)
    graph.model.eval()
    assert torch.equal(graph.model(**given).logits, graph.model(**given).logits)


def test_what_runs_without_gradients_has_none(traced: tuple[Everything, MaseGraph]) -> None:
    model, graph = (copy.deepcopy(each) for each in traced)
    graph.model.get_parameter("place").grad = None
    for each in (model.eval(), graph.model.eval()):
        each(**inputs(3)).logits.sum().backward()
    for name in ("place", "first.weight", "lstm.weight_hh_l0", "layer_norm.bias"):
        ours, theirs = graph.model.get_parameter(name).grad, model.get_parameter(name).grad
        torch.testing.assert_close(ours, theirs)


CONFIG = {
    "name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8,
    "weight_frac_width": 6,
}  # fmt: skip


def test_it_is_quantised_saved_and_loaded_as_any_graph(
    traced: tuple[Everything, MaseGraph], tmp_path: Path
) -> None:
    graph = copy.deepcopy(traced[1])
    graph.model.eval()
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": inputs(3)})
    graph, info = quantize_transform_pass(graph, {"by": "type", "default": {"config": CONFIG}})
    made = set(info["quantized"].values())
    assert {"LinearInteger", "LSTMInteger", "BatchNorm1dInteger", "add_integer"} <= made
    save_mase_graph_interface_pass(graph, tmp_path / "saved")
    again = load_mase_graph(tmp_path / "saved")
    assert torch.equal(again.model(**inputs(5)).logits, graph.model(**inputs(5)).logits)
    with pytest.raises(GraphError, match="as many rows"):
        again.model(inputs(3)["x"], inputs(2)["shift"])


class Words(nn.Module):
    """Positions up to a longest length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(16, 4)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        if ids.shape[1] > 16:
            raise ValueError("too long")
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        scores = torch.einsum("...id,...jd->...ij", x, x)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -torch.inf)
        return scores.softmax(-1) @ x


def test_the_length_of_a_sequence_is_free_within_its_bounds() -> None:
    model = Words()
    ids = torch.randint(9, (2, 4))
    graph = MaseGraph(model, example_inputs={"ids": ids})
    assert [n.target for n in graph.nodes if n.op == "placeholder"] == ["ids"]
    with pytest.raises(GraphError, match="this graph was made for"):
        graph.model(torch.randint(9, (2, 17)))
    found = 0
    for rows, length in ((2, 4), (3, 4), (2, 9), (1, 16)):
        ids = torch.randint(9, (rows, length))
        try:
            torch.testing.assert_close(graph.model(ids), model(ids))
            found += 1
        except GraphError:
            continue
    assert found >= 2
    masked = MaseGraph(model, example_inputs={"ids": ids, "mask": torch.ones(ids.shape)})
    assert [n.target for n in masked.nodes if n.op == "placeholder"] == ["ids", "mask"]


def test_one_tensor_is_the_first_argument() -> None:
    graph = MaseGraph(nn.Sequential(nn.ReLU()), example_inputs=torch.ones(2))
    assert graph.model(torch.ones(2)).tolist() == [1, 1]
    ids = torch.randint(9, (2, 4))
    assert torch.equal(MaseGraph(words := Words(), example_inputs=ids).model(ids), words(ids))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1] - 1):
            x = self.inner(x)
        return x


class Inner(nn.Sequential):
    pass


def test_a_custom_layer_stays_whole_if_asked() -> None:
    model = Pair()
    model.inner = Inner(*model.inner)
    graph = MaseGraph(
        model, tracer=MaseTracer(custom_leaf_modules=(Inner,)), example_inputs=torch.ones(2, 3)
    )
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["inner", "inner"]


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


def test_a_value_that_decides_is_named_with_its_line() -> None:
    for given in (None, torch.ones(2)):
        with pytest.raises(
            GraphError, match=r"test_lifting\.py, line \d+ \(`if x\.sum\(\) > 0:`\)"
        ):
            MaseGraph(Decides(), example_inputs=given)


def test_inputs_come_first(traced: tuple[Everything, MaseGraph]) -> None:
    kinds = [node.op for node in traced[1].nodes]
    assert kinds[:2] == ["placeholder"] * 2
    assert "placeholder" not in kinds[2:]
