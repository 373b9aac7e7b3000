"""Formats with widths for each channel or element: in the passes, in files and in reports."""

import hashlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics import Integer, IntTensor
from chop.passes import graph as passes
from chop.results.graph import describe
from chop.verbs.report import report

ROWS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
GENERATOR = torch.Generator().manual_seed(1)
WIDTHS = torch.randint(0, 8, (20, 6), generator=GENERATOR)
POINTS = torch.randint(-1, 6, (20, 6), generator=GENERATOR)

AS_TOML = """
by = "name"
[default.config]
name = "NA"
[second.config]
name = "integer"
data_in_width = 6
data_in_frac_width = 3
weight_width = [[0], [1], [8]]
weight_frac_width = [[0], [1], [5]]
weight_signed = [[true], [false], [true]]
bias_width = [8, 0, 3]
bias_frac_width = 4
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


def described_graph(model: nn.Module, **inputs: Tensor) -> MaseGraph:
    graph, _ = passes.init_metadata_analysis_pass(MaseGraph(model.eval()))
    return passes.add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})[0]


def granular_graph() -> MaseGraph:
    torch.manual_seed(0)
    graph = described_graph(Net(), x=ROWS)
    rules: dict[str, Any] = tomllib.loads(AS_TOML)
    rules["default"]["config"]["name"] = None
    rules["first"] = {
        "config": {
            "name": "integer",
            "data_in_width": [3, 4, 5, 6, 7, 8],
            "data_in_frac_width": torch.arange(6),
            "weight_width": WIDTHS,
            "weight_frac_width": POINTS.numpy(),
            "weight_rounding": "half_up",
            "bias_width": 8,
            "bias_frac_width": 4,
        }
    }
    rules["relu"] = {
        "config": {
            "name": "integer",
            "data_in_width": IntTensor([5] * 20),
            "data_in_signed": [True, False] * 10,
            "data_in_frac_width": 2,
        }
    }
    return passes.quantize_transform_pass(graph, rules)[0]


@pytest.fixture(scope="module")
def graph() -> MaseGraph:
    return granular_graph()


def test_the_network_computes_with_these_widths(graph: MaseGraph) -> None:
    first, second = (graph.model.get_submodule(name) for name in ("first", "second"))
    weight = first.get_quantized_weight()
    for row, column in [(0, 0), (7, 3), (19, 5)]:
        width, point = int(WIDTHS[row, column]), int(POINTS[row, column])
        value = first.weight[row, column].detach()
        plain = Integer(width=max(width, 1), frac_width=point, rounding="half_up")
        assert weight[row, column] == (plain(value) if width else 0)
    assert second.get_quantized_weight()[0].eq(0).all()
    assert second.get_quantized_weight()[1].detach().ge(0).all()
    assert second.get_quantized_bias()[1] == 0
    data = Integer(width=[3, 4, 5, 6, 7, 8], frac_width=[0, 1, 2, 3, 4, 5])
    hidden = F.linear(data(ROWS), weight, first.get_quantized_bias())
    shown = Integer(width=5, frac_width=2, signed=[True, False] * 10)(hidden)
    inner = Integer(width=6, frac_width=3)(shown.relu())
    expected = F.linear(inner, second.get_quantized_weight(), second.get_quantized_bias())
    assert torch.equal(graph.model(ROWS), expected)


@pytest.mark.parametrize("weights", ["float", "codes"])
def test_saved_and_loaded_bit_by_bit(graph: MaseGraph, weights: str, tmp_path: Path) -> None:
    args = {"save_dir": tmp_path, "weights": weights}
    _, info = passes.save_mase_graph_interface_pass(graph, args)
    loaded = passes.load_mase_graph(tmp_path)
    assert torch.equal(loaded.model(ROWS), graph.model(ROWS))
    for name in ("first", "second"):
        layers = [each.model.get_submodule(name) for each in (loaded, graph)]
        assert layers[0].quant == layers[1].quant
        if weights == "codes":
            assert torch.equal(layers[0].weight, layers[1].get_quantized_weight())
    assert ("first.weight" in info["packed"]) == (weights == "codes")
    stored = load_file(tmp_path / "weights.safetensors")
    tensors = [each for name, each in stored.items() if name.startswith("format::")]
    assert sorted(map(list, (each.shape for each in tensors))) == [[20, 6], [20, 6]]
    passes.verify_common_metadata_analysis_pass(loaded, {})
    again = passes.load_mase_graph(tmp_path).model.get_submodule("first").quant
    assert again.operands["weight"].width == IntTensor(WIDTHS)


def spoiled(folder: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> None:
    """Change the graph and its weights as one who means harm would."""
    weights, path = folder / "weights.safetensors", folder / "graph.json"
    record, tensors = json.loads(path.read_text()), load_file(weights)
    del record["checksum"]
    change(record, tensors)
    save_file(tensors, weights)
    record["digest"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    path.write_text(json.dumps(record))


def of_format(tensors: dict[str, Tensor]) -> str:
    return next(name for name in tensors if name.startswith("format::"))


def vast(record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Two lines of numbers whose widths would be a million million."""
    size = 1 << 20
    for name in [name for name in tensors if name.startswith("format::")]:
        del tensors[name]
    tensors["format::a"] = torch.ones(size, 1, dtype=torch.int8)
    tensors["format::b"] = torch.ones(size, dtype=torch.int8)
    record["layers"]["first"]["quantized"] |= {
        "weight_width": {"$format": "a"},
        "weight_frac_width": {"$format": "b"},
    }


HARMS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Tensor]], object], str]] = {
    "missing": (lambda r, t: t.pop(of_format(t)), "which a format refers to, is missing"),
    "surplus": (lambda r, t: t.update({"format::x": torch.ones(3)}), "belongs to nothing"),
    "floats": (lambda r, t: t.update({of_format(t): torch.ones(20, 6)}), "small integers expected"),
    "too large": (
        lambda r, t: t.update({of_format(t): torch.full((20, 6), 127, dtype=torch.int8)}),
        "numbers from",
    ),
    "other shape": (
        lambda r, t: t.update({of_format(t): torch.ones(7, 1, dtype=torch.int8)}),
        "shape",
    ),
    "vast": (vast, "the shape (1048576, 1048576) cannot round a tensor of shape (20, 6)"),
    "no name": (
        lambda r, t: r["layers"]["first"]["quantized"].update(weight_width={"$format": [1]}),
        "which a format refers to, is missing",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_widths_are_refused(graph: MaseGraph, harm: str, tmp_path: Path) -> None:
    passes.save_mase_graph_interface_pass(graph, tmp_path)
    change, message = HARMS[harm]
    spoiled(tmp_path, change)
    with pytest.raises(CheckpointError) as caught:
        passes.load_mase_graph(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_layer_without_bits_is_saved(tmp_path: Path) -> None:
    graph = described_graph(nn.Sequential(nn.Linear(6, 2)), input=ROWS)
    none = {"weight_width": [[0]], "weight_frac_width": 0, "bias_width": 4, "bias_frac_width": 2}
    config = {"name": "integer", "data_in_width": 4, "data_in_frac_width": 2, **none}
    graph, _ = passes.quantize_transform_pass(
        graph, {"by": "type", "linear": {"config": config}, "default": {"config": {"name": None}}}
    )
    passes.save_mase_graph_interface_pass(graph, {"save_dir": tmp_path, "weights": "codes"})
    loaded = passes.load_mase_graph(tmp_path)
    assert torch.equal(loaded.model(ROWS), graph.model(ROWS))


def test_bits_are_counted(graph: MaseGraph) -> None:
    _, info = passes.count_operations_analysis_pass(graph, {"report": False})
    bits = int(WIDTHS.sum())
    assert info["nodes"]["first"]["parameter_bits"] == bits + 20 * 8
    assert info["nodes"]["second"]["parameter_bits"] == 20 * 9 + 11
    assert info["nodes"]["first"]["input_buffer_bits"] == 3 + 4 + 5 + 6 + 7 + 8
    assert info["nodes"]["first"]["bitops"] == round(120 * 5.5 * (bits / 120))
    assert info["nodes"]["second"]["bitops"] == 60 * 6 * 3
    _, averages = passes.calculate_avg_bits_mg_analysis_pass(graph, {})
    assert averages["w_avg_bit"] == pytest.approx((bits + 160 + 191) / 203)


def test_tables_say_smallest_mean_and_largest(graph: MaseGraph) -> None:
    widths = IntTensor([[0, 2], [4, 8]])
    fmt = Integer(width=widths, frac_width=[[0], [3]])
    assert describe(fmt) == "Integer 3.5 bit (width 0/3.5/8, 25% zero, frac_width 0/1.5/3)"
    assert "weight: width=0/" in repr(graph.model.get_submodule("first"))
    node = next(node for node in graph.nodes if node.name == "second")
    entry = node.meta["mase"]["common"]["args"]["weight"]
    assert entry["precision"] == ["0/3/8, 33% zero", "0/2/5"]


def test_the_report_draws_the_bits_of_each_layer(graph: MaseGraph, tmp_path: Path) -> None:
    passes.save_mase_graph_interface_pass(graph, tmp_path / "p/software/transform/transformed_ckpt")
    page = report(tmp_path / "p").read_text(encoding="utf-8")
    assert 'id="widths"' in page
    for name in ("first: data_in", "first: weight", "relu: data_in", "second: bias"):
        assert f">{name}<" in page, name
    zeros = int((WIDTHS == 0).sum())
    assert f"0 bit: {zeros}<" in page


def test_widths_that_do_not_fit_are_refused_by_node() -> None:
    graph = granular_graph()
    config = {"name": "integer", "data_in_width": 4, "weight_width": [[8], [4]]}
    rules = {"by": "name", "first": {"config": config}, "default": {"config": {"name": None}}}
    with pytest.raises(ConfigError) as caught:
        passes.quantize_transform_pass(graph, rules)
    assert str(caught.value).startswith("node 'first': linear: weight: an integer format whose wid")
    assert "(2, 1) cannot round a tensor of shape (20, 6)" in str(caught.value)


def test_scales_are_saved_with_the_weights(tmp_path: Path) -> None:
    graph = described_graph(nn.Sequential(nn.Linear(6, 20)), input=ROWS)
    scales = torch.rand(20, 1, generator=torch.Generator().manual_seed(3)) + 0.01
    config = {"name": "integer_scaled", "data_in_width": 8, "data_in_scale": 0.03}
    config |= {"weight_width": 4, "weight_scale": scales, "bias_width": 8, "bias_scale": 0.01}
    rules = {"by": "type", "linear": {"config": config}, "default": {"config": {"name": None}}}
    graph, _ = passes.quantize_transform_pass(graph, rules)
    passes.save_mase_graph_interface_pass(graph, {"save_dir": tmp_path, "weights": "codes"})
    loaded = passes.load_mase_graph(tmp_path)
    assert torch.equal(loaded.model(ROWS), graph.model(ROWS))
    layers = [each.model.get_submodule("0") for each in (loaded, graph)]
    assert layers[0].quant == layers[1].quant
    assert torch.equal(layers[0].weight, layers[1].get_quantized_weight())
    assert sum(name.startswith("format::") for name in load_file(tmp_path / "weights.safetensors"))
