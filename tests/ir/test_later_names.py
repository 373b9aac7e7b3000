"""The names that later versions of the original have on a graph, and its picture."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import Tensor, nn

from chop.errors import ChopError
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model
from chop.models.toys import ToyCustomFnNet
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

SVG = "{http://www.w3.org/2000/svg}"
X = torch.randn(8, 16)


class Skipping(nn.Module):
    """A long edge past other boxes, and a weight that is read late."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale + x


def rectangles(svg: ET.Element) -> dict[str, tuple[float, float, float, float]]:
    found = {}
    for group in svg.iter(f"{SVG}g"):
        box, name = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert box is not None
        assert name is not None
        x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        found[str(name.text)] = (x, y, x + w, y + h)
    return found


@pytest.mark.parametrize(
    "model", [get_model("jsc-tiny"), ToyCustomFnNet((1, 4, 4), 3), Skipping()], ids=str
)
def test_every_node_is_drawn_below_what_it_reads(model: nn.Module, tmp_path: Path) -> None:
    graph = MaseGraph(model)
    path = graph.draw(tmp_path / "graph.svg")
    svg = ET.parse(path).getroot()
    boxes = rectangles(svg)
    assert set(boxes) == {node.name for node in graph.nodes}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            assert boxes[source.name][3] < boxes[node.name][1]
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for one, (x1, y1, x2, y2) in boxes.items():
        assert x1 >= 0 and y1 >= 0 and x2 <= width and y2 <= height  # noqa: PT018
        for other, (a1, b1, a2, b2) in boxes.items():
            apart = one == other or x2 < a1 or a2 < x1 or y2 < b1 or b2 < y1
            assert apart, (one, other)


def test_a_drawing_shows_shapes_and_quantised_layers(tmp_path: Path) -> None:
    graph = MaseGraph(get_model("jsc-tiny"))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": X}})
    config = {"name": "integer", "data_in_width": 8, "weight_width": 8}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    text = graph.draw(tmp_path / "graph.svg").read_text()
    assert ">LinearInteger<" in text
    assert ">(8, 16)<" in text


@pytest.mark.parametrize("name", ["graph.png", "graph"])
def test_only_svg_is_drawn(name: str, tmp_path: Path) -> None:
    with pytest.raises(ChopError, match=r"must end in \.svg"):
        MaseGraph(Skipping()).draw(tmp_path / name)
    assert not any(tmp_path.iterdir())


def test_from_module_traces() -> None:
    model = Skipping()
    graph = MaseGraph.from_module(model, example_inputs={"x": torch.ones(2, 4)})
    assert torch.equal(graph.model(X[:, :4]), model(X[:, :4]))


def test_export_and_from_checkpoint_are_a_round_trip(tmp_path: Path) -> None:
    graph = MaseGraph(get_model("jsc-tiny").eval())
    first, second = (graph.export(tmp_path / "v1.2" / "net") for _ in range(2))
    assert first == tmp_path / "v1.2" / "net"
    assert second.name == "net-v1"
    for folder in (first, second):
        assert torch.equal(MaseGraph.from_checkpoint(folder).model(X), graph.model(X))
    with pytest.raises(ChopError, match=r"save_format must be 'full_model' .*weights\.safetensors"):
        graph.export(tmp_path / "other", save_format="state_dict")


def test_the_custom_function_network_takes_a_batch_size() -> None:
    torch.manual_seed(0)
    with_size = ToyCustomFnNet(image_size=(1, 4, 4), num_classes=3, batch_size=8)
    torch.manual_seed(0)
    without = ToyCustomFnNet((1, 4, 4), 3)
    for rows in (8, 3):
        x = torch.randn(rows, 1, 4, 4)
        assert torch.equal(with_size(x), without(x))
