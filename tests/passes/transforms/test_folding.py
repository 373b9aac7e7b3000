"""Batch normalisation taken out of graphs, wherever it stands."""

import pytest
import torch
from test_fusion import trained_norms
from torch import Tensor, nn
from transform_nets import graph_of

from chop.passes.graph import (
    PASSES,
    prune_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)

fold = PASSES["fold_normalisation"]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Twice(nn.Module):
    """A norm whose result is read twice, and a convolution with zeros around its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.conv(y) + y


CASES = {
    "before a linear layer": (
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), (5, 4), {"after": {"_0": "_1"}},
    ),
    "before a convolution in groups": (
        nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=2, bias=False)),
        (2, 4, 5, 5), {"after": {"_0": "_1"}},
    ),
    "zeros around the input": (
        nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=1)),
        (2, 4, 5, 5), {"products": ["_0"]},
    ),
    "after a ReLU, at the end": (
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3)), (5, 4), {"products": ["_2"]},
    ),
    "on both sides": (
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3)), (5, 4),
        {"before": {"_2": "_1"}, "after": {"_0": "_1"}},
    ),
    "of sequences": (
        nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4), nn.ReLU()), (2, 4, 7), {"products": ["_1"]},
    ),
    "of volumes": (
        nn.Sequential(nn.BatchNorm3d(2), nn.ReLU()), (2, 2, 3, 3, 3), {"products": ["_0"]},
    ),
    "read twice": (Twice(), (2, 3, 5, 5), {"products": ["norm"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_graph_computes_the_same_without_norms(name: str) -> None:
    model, shape, done = CASES[name]
    model = trained_norms(model)
    x = torch.randn(shape, dtype=torch.float64)
    expected = model(x)
    graph = graph_of(model, **{"x" if isinstance(model, Twice) else "input": x})
    graph, info = fold(graph)
    assert {key: found for key, found in info.items() if found} == done
    assert torch.allclose(graph.model(x), expected, rtol=1e-12, atol=1e-12)
    assert not any(isinstance(each, NORMS) for each in graph.model.modules())
    verify_metadata_analysis_pass(graph)
    assert torch.equal(model(x), expected)  # the caller's model stays as it is


def test_what_stays_is_named_with_the_reason() -> None:
    model = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4, track_running_stats=False)).eval()
    _, info = fold(graph_of(model, input=torch.randn(5, 4)))
    assert info["skipped"] == {"_1": "no running statistics"}
    again = nn.BatchNorm1d(4).eval()
    _, info = fold(graph_of(nn.Sequential(again, nn.ReLU(), again), input=torch.randn(5, 4)))
    assert info["skipped"] == dict.fromkeys(("_0", "_0_1"), "a layer that is called several times")
    graph = graph_of(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()).eval(), input=torch.randn(5, 4))
    rule = {"config": {"name": "integer", "data_in_width": 8, "weight_width": 8}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "batch_norm1d": rule})
    assert fold(graph)[1]["skipped"] == {"_0": "quantised: fold first, then quantise"}


def test_a_pruned_layer_keeps_its_zeros() -> None:
    model = trained_norms(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    x = torch.randn(5, 4, dtype=torch.float64)
    graph = graph_of(model, input=x)
    graph, _ = prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    expected = graph.model(x)
    graph, info = fold(graph)
    assert info["products"] == ["_0"]
    assert torch.allclose(graph.model(x), expected, rtol=1e-12, atol=1e-12)
