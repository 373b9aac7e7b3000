"""A few of the networks that `make harden` tries, and those in which it found something."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import harden.network_checks
from chop.errors import ConfigError
from chop.files import read_safetensors, write_safetensors
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import preserve_model
from chop.nn.decomposed import DecomposedAttention
from chop.nn.quant_config import parse_quant_config
from chop.ops.table import OPS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    load_mase_graph,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)
from harden import networks
from harden.network_checks import Broken, check, same_bits
from harden.network_rules import FIELDS, FORMATS_OF
from harden.network_source import Network, Writer
from harden.network_table import BATCHED, OF_PAIRS, PLAIN, WITH_LAYERS

WIDTHS = {"data_in_width": 6, "weight_width": 5, "bias_width": 7}
CHECKOUT = Path(__file__).parents[2]
INTEGER = {"name": "integer", **WIDTHS}


def test_random_networks() -> None:
    """In a process of its own: what hypothesis draws depends on the modules that are loaded."""
    command = [sys.executable, "-m", "harden", "networks", "--scale", "0.008"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "networks: 18 cases, 0 lost" in done.stdout


def saved_and_loaded(graph: MaseGraph, folder: Path, weights: str = "float") -> MaseGraph:
    save_mase_graph_interface_pass(graph, {"save_dir": folder, "weights": weights})
    return load_mase_graph(folder)


def test_a_layer_may_take_the_batch_for_features(tmp_path: Path) -> None:
    steps = ("v1 = x.mean(-1)", "v2 = self.m0(v1)")
    network = Network(("self.m0 = nn.Linear(2, 1)",), steps, "v2", (2, 1))
    check(network, lambda graph: {"by": "type", "linear": {"config": INTEGER}}, tmp_path)


LAYERS = {
    "nn.Embedding(7, 3)": "self.m0((x * 2).long().clamp(0, 6))",
    "nn.PReLU(3, init=-0.01)": "self.m0(x)",
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("scale", [{}, {"data_in_scale": 0.1, "weight_scale": 1.001}])
def test_weights_that_round_to_minus_zero_are_those_of_their_codes(
    layer: str, scale: dict[str, float], tmp_path: Path
) -> None:
    network = Network((f"self.m0 = {layer}",), (f"v1 = {LAYERS[layer]}",), "v1", (4, 3))
    name = "integer_scaled" if scale else "integer"
    config = {"name": name, "data_in_width": 8, "weight_width": 3, **scale}
    check(network, lambda graph: {"by": "type", "default": {"config": config}}, tmp_path)


@pytest.mark.parametrize("heads", [1, 5])
def test_attention_of_any_width_is_its_model_to_within_rounding(heads: int, tmp_path: Path) -> None:
    layers = (f"self.m0 = nn.MultiheadAttention(5, {heads}, batch_first=True)",)
    network = Network(layers, ("v1 = self.m0(x, x, x)[0]",), "v1", (3, 2, 5))
    check(network, lambda graph: {"by": "type", "linear": {"config": INTEGER}}, tmp_path)


def test_products_that_are_not_the_model_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = DecomposedAttention.with_extra
    monkeypatch.setattr(
        DecomposedAttention, "with_extra", lambda *given: right(*given) * (1 + 1e-4)
    )
    layers = ("self.m0 = nn.MultiheadAttention(5, 1, batch_first=True)",)
    network = Network(layers, ("v1 = self.m0(x, x, x)[0]",), "v1", (3, 2, 5))
    with pytest.raises(Broken, match="its products are not the model"):
        check(network, lambda graph: {}, tmp_path)


def test_functions_keep_the_name_they_were_called_by(tmp_path: Path) -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)  # equal to torch.dsmm, which comes first by the alphabet

    graph = MaseGraph(Product())
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.ones(2, 2)}})
    assert saved_and_loaded(graph, tmp_path / "g").model.code == graph.model.code


def test_loaded_weights_lie_as_those_that_torch_makes(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(1), "b": torch.randn(1, 9), "c": torch.randn(3)}
    write_safetensors(tmp_path / "w.safetensors", tensors)
    loaded = read_safetensors(tmp_path / "w.safetensors")
    assert {name: each.data_ptr() % 64 for name, each in loaded.items()} == dict.fromkeys("abc", 0)


def test_a_weight_that_is_rounded_by_chance_is_not_saved_as_one_draw(tmp_path: Path) -> None:
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 3)))
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(2, 4)}})
    config = {"name": "binary", "weight_stochastic": True}
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    loaded = saved_and_loaded(graph, tmp_path / "g", "codes")
    assert torch.equal(
        loaded.model.get_parameter("0.weight"), graph.model.get_parameter("0.weight")
    )


def test_a_pattern_may_be_left_with_nodes_that_cannot_be_quantised() -> None:
    graph = MaseGraph(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(2, 4)}})
    rules = {"by": "regex_name", "_1": {"config": INTEGER}, "_.*": {"config": INTEGER}}
    quantize_transform_pass(graph, rules)
    assert type(graph.model.get_submodule("1")).__name__ == "LinearInteger"
    with pytest.raises(ConfigError, match="none of its nodes can be quantised"):
        quantize_transform_pass(graph, {"by": "regex_name", "_0": {"config": INTEGER}})


def test_a_loss_is_found_and_shown_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(folder: Path) -> MaseGraph:
        graph = load_mase_graph(folder)
        with torch.no_grad():
            for parameter in graph.model.parameters():
                parameter.mul_(1 + 2e-7)
        return graph

    monkeypatch.setattr(harden.network_checks, "load_mase_graph", forgetful)
    jobs = networks.chunks("rows", 40)
    row = next(networks.rows(jobs, [networks.chunk(*job) for job in jobs]))
    assert row.lost == 1
    assert row.tried <= 40  # what only makes a failure smaller is not counted
    assert "gives something else" in row.failures[0]
    assert "class Network(nn.Module):" in row.failures[0]
    assert "rules = {" in row.failures[0]


@pytest.mark.parametrize("what", ["weight", "mode", "hook", "buffer"])
def test_a_changed_original_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network = Network(
        ("self.m0 = nn.BatchNorm1d(3)",), ("v1 = self.m0(x)",), "v1", (4, 3), training=True
    )
    built: list[nn.Module] = []
    build = Network.build
    monkeypatch.setattr(Network, "build", lambda self: built.append(build(self)) or built[0])

    def harm(graph: MaseGraph) -> dict[str, Any]:
        layer: Any = built[0].get_submodule("m0")
        with torch.no_grad():
            {
                "weight": lambda: layer.weight.mul_(2),
                "mode": lambda: layer.train(False),
                "hook": lambda: layer.register_forward_hook(print),
                "buffer": lambda: layer.running_mean.add_(1),
            }[what]()
        return {"by": "type", "default": {"config": {"name": None}}}

    with pytest.raises(AssertionError, match="original"):
        check(network, harm, tmp_path)


def test_bits_tell_zeros_and_nans_apart() -> None:
    assert same_bits(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64))


def test_the_strategies_reach_every_format_and_form() -> None:
    assert set(FIELDS) <= set(FORMATS_OF.values())
    reached = 0
    for template in (*PLAIN, *BATCHED, *OF_PAIRS, *WITH_LAYERS):
        writer = Writer((2, 4, 4, 4)[: template.rank or 3])
        reached += writer.step(template, "x", "x", 2)
    total = len(PLAIN) + len(BATCHED) + len(OF_PAIRS) + len(WITH_LAYERS)
    assert reached > 0.85 * total


ROOT = (3, 4)
ABSENT = {"name": "mxint8", "weight_block_size": 4}
FOUND: dict[str, tuple[Network, dict[str, Any]]] = {
    "a pattern whose nodes an earlier one has taken": (
        Network((), ("v1 = x * 2",), "v1", ROOT),
        {"by": "regex_name", "mul": {"config": INTEGER}, "mul.*": {"config": INTEGER}},
    ),
    "a rule for a weight, and a layer without one": (
        Network(("self.m0 = nn.RReLU()",), ("v1 = self.m0(x)",), "v1", ROOT, scale=0.05),
        {"by": "type", "rrelu": {"config": ABSENT}},
    ),
    "a rule for a weight, and a function without one": (
        Network((), ("v1 = torch.tanh(x)",), "v1", ROOT, scale=0.05),
        {"by": "type", "default": {"config": ABSENT}},
    ),
    "a rule for a bias, and a norm without one": (
        Network(("self.m0 = nn.RMSNorm(4)",), ("v1 = self.m0(x)",), "v1", ROOT),
        {"by": "name", "m0": {"config": {"name": "mxfp4", "bias_block_size": 26}}},
    ),
    "values of what max and topk give": (
        Network((), ("v1 = torch.max(x, 1).values", "v2 = x.topk(1).indices"), "(v1, v2)", ROOT),
        {"by": "type", "max": {"config": INTEGER}},
    ),
    "arguments by name in another order": (
        Network(
            ("self.m0 = nn.Parameter(torch.randn(4, 2))",),
            ("v1 = torch.matmul(other=self.m0, input=x)", "v2 = torch.sub(other=x, input=x * 3)"),
            "(v1, v2)",
            ROOT,
        ),
        {"by": "type", "default": {"config": {**INTEGER, "weight_width": 3}}},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_random_networks_found(name: str, tmp_path: Path) -> None:
    network, rules = FOUND[name]
    check(network, lambda graph: rules, tmp_path)


def test_a_rule_that_rounds_no_operand_leaves_a_node_in_floating_point() -> None:
    x = torch.randn(3, 4)
    graph = add_common_metadata_analysis_pass(
        MaseGraph(nn.Sequential(nn.ReLU(), nn.Linear(4, 2))), {"dummy_in": {"input": x}}
    )[0]
    _, info = quantize_transform_pass(graph, {"by": "type", "default": {"config": ABSENT}})
    assert info["quantized"] == {"_1": "LinearMXInt8"}
    quant = parse_quant_config(OPS["relu"], ABSENT, "test")
    assert parse_quant_config(OPS["relu"], quant.as_dict(), "test").bypass


class ByLength(nn.Module):
    """What fx cannot trace and torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(len(x)):
            y = y + x.sum()
        return {"scores": self.norm(self.head(x)).relu(), "sum": y}


def test_graphs_made_by_torch_export_can_be_saved(tmp_path: Path) -> None:
    model, x, y = ByLength().eval(), torch.randn(3, 4), torch.ones(2)
    graph = MaseGraph(model, example_inputs={"x": x, "y": y})
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x, "y": y}})
    save_mase_graph_interface_pass(graph, tmp_path / "saved")
    loaded = load_mase_graph(tmp_path / "saved")
    for result in (graph.model(x, y), loaded.model(x, y)):
        assert result.keys() == {"scores", "sum"}
        for name, value in model(x, y).items():
            assert same_bits(result[name].detach(), value.detach())


class Named(nn.Module):
    """An embedding whose rows may not grow beyond a norm, as a layer and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, max_norm=0.5)
        self.weight = nn.Parameter(torch.randn(5, 3) * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = nn.functional.embedding(x, self.weight, None, 0.5)
        return self.table(x) + rows


def test_embeddings_with_a_largest_norm_are_left_as_they_are() -> None:
    model = Named()
    before = model.table.weight.detach().clone()
    x = torch.tensor([[0, 1], [4, 2]])
    graph, _ = add_common_metadata_analysis_pass(MaseGraph(model), {"dummy_in": {"x": x}})
    assert same_bits(model.table.weight.detach(), before), "finding metadata changed the model"
    _, info = quantize_transform_pass(graph, {"by": "type", "default": {"config": INTEGER}})
    assert info["quantized"] == {"add": "add_integer"}
    for by, key in (("type", "embedding"), ("name", "table")):
        with pytest.raises(ConfigError, match="cannot be quantised"):
            quantize_transform_pass(graph, {"by": by, key: {"config": INTEGER}})
    with preserve_model(model):
        assert bool((model.table(x).norm(dim=-1) <= 0.5001).all())
