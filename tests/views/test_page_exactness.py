"""What the page says of a quantised graph in integers."""

import torch
from torch import nn

from chop import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.views.sections.exactness import in_integers

NET = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(-1))
FORMAT = {"name": "integer", "data_in_frac_width": 4, "weight_width": 6, "weight_frac_width": 5}


def graph_of(width: int, quantised: tuple[str, ...] = ("linear",)) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(NET))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.zeros(2, 4)}})
    rules = {kind: {"config": FORMAT | {"data_in_width": width}} for kind in quantised}
    return quantize_transform_pass(graph, {"by": "type", **rules})[0]


def body_of(graph: MaseGraph) -> str:
    return str(in_integers(graph))


def test_every_node_is_in_a_folded_table() -> None:
    body = body_of(graph_of(8))
    assert "The simulation in float32 computes exactly what integers would" in body
    assert body.index("<details") < body.index("Accumulator bits") < body.index(">_0<")
    assert "product" in body
    assert "requantise" in body


def test_a_type_that_is_too_short_is_named() -> None:
    assert "The simulation in float64 computes exactly" in body_of(graph_of(30))


def test_a_graph_without_a_program_says_why() -> None:
    graph = graph_of(8, ("relu",))
    assert "There is no integer program of this graph: _0 reads the input" in body_of(graph)
