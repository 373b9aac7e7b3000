"""Counts do not depend on the size of the batch, or say that they do."""

from typing import Any

import pytest
import torch
from passes.counting.examples import Block, Fused, HandWritten, Residual, perceptron
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, count_operations_analysis_pass
from chop.passes.graph.analysis.flops import operands as observe


def batches(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(batch, *shape, dtype=dtype) for batch in (1, 2, 8)]


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (perceptron(), batches(16)),
        (Residual(), batches(3, 8, 8)),
        (Block(HandWritten()), batches(6, dtype=torch.long)),
        (Block(Fused()), batches(6, dtype=torch.long)),
    ],
    ids=["perceptron", "residual", "by hand", "fused"],
)
def test_the_batch_makes_no_difference(
    counted: Any, model: nn.Module, inputs: list[Tensor]
) -> None:
    infos = [counted(model, x, backward=True) for x in inputs]
    assert [info.pop("batch_size") for info in infos] == [1, 2, 8]
    assert {info["per"] for info in infos} == {"sample"}
    assert infos[0] == infos[1] == infos[2]


class Similarity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.t()).relu()


class OneSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(8, 4, 2).relu()


@pytest.mark.parametrize(("batch", "macs"), [(1, 4), (8, 8 * 8 * 4)])
def test_a_model_that_mixes_samples_is_counted_by_the_batch(
    counted: Any, batch: int, macs: int
) -> None:
    info = counted(Similarity(), (batch, 4))
    assert (info["per"], info["batch_size"]) == ("batch", batch)
    assert "matmul" in info["note"]
    assert info["total"]["macs"] == macs


def test_a_model_for_one_batch_size_is_counted_by_the_batch(counted: Any) -> None:
    info = counted(OneSize(), (8, 8))
    assert (info["per"], info["total"]["flops"]) == ("batch", 64)
    assert "'view'" in info["note"]
    assert "16" in info["note"]


def test_inputs_without_a_common_batch_are_counted_as_they_are(counted: Any) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x @ mask

    info = counted(Two(), (8, 4), (4, 4))
    assert (info["per"], info["batch_size"]) == ("batch", None)
    assert info["total"]["macs"] == 8 * 4 * 4


def test_work_on_weights_is_not_divided_by_the_batch(counted: Any) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.softmax(self.weight, dim=-1)

    nodes = counted(Normalised(), (8, 4))["nodes"]
    assert nodes["softmax"]["flops"] == 5 * 16
    assert nodes["matmul"]["macs"] == 16


def test_metadata_and_inputs_give_the_same_counts(counted: Any) -> None:
    model, x = Residual(), torch.randn(4, 3, 8, 8)
    graph, _ = add_common_metadata_analysis_pass(MaseGraph(model), {"dummy_in": {"x": x}})
    _, recorded = count_operations_analysis_pass(graph, {"report": False})
    assert recorded == counted(model, x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_large_models_are_counted_without_calculating(
    counted: Any, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    model, x = Residual(), torch.zeros(4, 3, 8, 8)
    wanted = counted(model, x)
    monkeypatch.setattr(observe, "QUICK", 0)
    assert counted(model, x.to(device)) == wanted


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Peeking()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


class Peeking(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return input * float(input.max())


def test_a_model_that_looks_at_values_is_run(counted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "QUICK", 0)
    monkeypatch.setattr(Peeking, "__module__", "torch.nn")  # fx keeps torch's own layers whole
    assert counted(LooksAtValues(), (4, 6))["total"]["flops"] == 12


def test_without_shapes_the_error_says_what_to_run() -> None:
    graph = MaseGraph(perceptron())
    with pytest.raises(GraphError, match="run add_common_metadata_analysis_pass"):
        count_operations_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    with pytest.raises(GraphError, match="with dummy_in first"):
        count_operations_analysis_pass(graph)
