"""Common and software metadata: right for every node, and nothing of the model changed."""

import copy
from typing import Any

import pytest
import torch
from graph_zoo import ZOO, InPlace, JSCTiny
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import parse_quant_config, required_fields
from chop.nn.quantized import quantize_module
from chop.numerics import FORMATS
from chop.ops.table import OPS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
    verify_common_metadata_analysis_pass,
    verify_metadata_analysis_pass,
    verify_software_metadata_analysis_pass,
)
from chop.passes.graph.analysis.metadata_entries import bare, precision


def common(graph: MaseGraph, name: str) -> dict[str, Any]:
    node = next(node for node in graph.nodes if node.name == name)
    section: dict[str, Any] = node.meta["mase"].parameters["common"]
    return section


def analysed(name: str, **pass_args: Any) -> MaseGraph:
    model, dummy_in = ZOO[name]
    graph = MaseGraph(copy.deepcopy(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in, **pass_args})
    return add_software_metadata_analysis_pass(graph)[0]


def snapshot(model: nn.Module) -> dict[str, Any]:
    return {
        "attributes": sorted(vars(model)),
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "grads": [parameter.requires_grad for parameter in model.parameters()],
        "hooks": [
            len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in model.modules()
        ],
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in before.pop("state").items():
        assert torch.equal(value, after["state"][name]), name
    after.pop("state")
    assert before == after


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("options", [{}, {"add_value": False}, {"force_device_meta": True}])
def test_metadata_keeps_its_rules(name: str, options: dict[str, bool]) -> None:
    verify_metadata_analysis_pass(analysed(name, **options))


@pytest.mark.parametrize("name", ZOO)
def test_without_an_input_names_are_there_and_shapes_are_not(name: str) -> None:
    graph = MaseGraph(ZOO[name][0])
    graph, _ = add_common_metadata_analysis_pass(graph)
    graph, _ = add_software_metadata_analysis_pass(graph)
    verify_metadata_analysis_pass(graph)
    for node in graph.nodes:
        assert node.meta["mase"]["common"]["results"]["data_out_0"]["shape"] is None


@pytest.mark.parametrize("name", ZOO)
def test_the_model_and_the_input_are_left_alone(name: str) -> None:
    model, dummy_in = ZOO[name]
    model = copy.deepcopy(model).train()
    inputs = {key: value.clone() for key, value in dummy_in.items()}
    before = snapshot(model)
    graph = MaseGraph(model)
    add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in})
    assert_same(before, snapshot(model))
    for key, value in inputs.items():
        assert torch.equal(value, dummy_in[key])


@pytest.mark.parametrize("name", ZOO)
def test_recorded_values_are_those_of_the_model(name: str) -> None:
    """Each call, run again on its recorded arguments, gives its recorded result."""
    graph = analysed(name)
    model, dummy_in = ZOO[name]
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(*(v.clone() for v in dummy_in.values()))
    leaves = torch.utils._pytree.tree_leaves(expected)
    found = common(graph, "output")["results"].values()
    exact = (
        {} if name == "attention" else {"rtol": 0, "atol": 0}
    )  # its products, not torch's kernel
    for ours, theirs in zip(found, leaves, strict=True):
        torch.testing.assert_close(ours["value"], theirs, **exact)
    graph.model.eval()
    for node in graph.nodes:
        entries = node.meta["mase"]["common"]
        tensors = [e["value"] for n, e in entries["args"].items() if n.startswith("data_in")]
        plain = {n for n in entries["args"] if not n.startswith("data_in")}
        if node.op == "call_module" and plain <= {"weight", "bias"}:
            result = graph.modules[node.target](*(tensor.clone() for tensor in tensors))
            assert torch.allclose(result, entries["results"]["data_out_0"]["value"])


def test_values_survive_operations_in_place() -> None:
    model = InPlace().eval()
    x = torch.randn(2, 4)
    graph = MaseGraph(model)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    y = model.layer(x).detach()
    assert torch.equal(common(graph, "layer")["results"]["data_out_0"]["value"], y)
    assert torch.equal(common(graph, "view")["results"]["data_out_0"]["value"], y.view(-1))
    assert torch.equal(common(graph, "relu")["args"]["data_in_0"]["value"], y + 1)
    last_view = common(graph, "view_1")["args"]["data_in_0"]["value"]
    assert torch.equal(last_view, ((y + 1) * 2).view(-1))


def test_relu_in_place_does_not_overwrite_what_was_recorded() -> None:
    graph = analysed("jsc_tiny")
    for name, before in (("seq_blocks_1", "seq_blocks_0"), ("seq_blocks_3", "seq_blocks_2")):
        value = common(graph, name)["args"]["data_in_0"]["value"]
        assert value.min() < 0
        assert value is common(graph, before)["results"]["data_out_0"]["value"]  # kept once
        assert not value.requires_grad


def test_the_record_of_a_linear_layer_is_that_of_the_labs() -> None:
    graph = analysed("jsc_tiny")
    node = next(node for node in graph.nodes if node.name == "seq_blocks_2")
    entry = node.meta["mase"].parameters["common"]
    assert entry is node.meta["mase"]["common"]
    without_values = {
        side: {n: {k: v for k, v in e.items() if k != "value"} for n, e in entry[side].items()}
        for side in ("args", "results")
    }
    data = {"precision": [32], "torch_dtype": torch.float32, "type": "float"}
    parameter = {"from": None, "precision": [32], "type": "float"}
    assert without_values == {
        "args": {
            "bias": {**parameter, "shape": [5]},
            "data_in_0": {**data, "shape": [8, 16]},
            "weight": {**parameter, "shape": [5, 16]},
        },
        "results": {"data_out_0": {**data, "shape": [8, 5]}},
    }
    assert entry["mase_op"] == "linear"
    assert entry["mase_type"] == "module_related_func"
    assert (
        entry["args"]["weight"]["value"].data_ptr()
        == graph.modules["seq_blocks.2"].weight.data_ptr()
    )
    assert node.meta["mase"].node is node
    assert node.meta["mase"].module is graph.modules["seq_blocks.2"]
    assert node.meta["mase"].graph is graph.fx_graph
    assert node.meta["mase"].model is graph.model


EXPECTED = {
    "scale": {
        "scale": ("get_attr", "get_attr", {}),
        "mul": ("builtin_func", "mul", {"data_in_0": [4], "data_in_1": [2, 4]}),
    },
    "functional": {
        "linear": (
            "module_related_func",
            "linear",
            {"data_in_0": [2, 4], "weight": [4, 4], "bias": [4]},
        ),
        "relu": ("module_related_func", "relu", {"data_in_0": [2, 4], "inplace": True}),
        "cat": ("builtin_func", "cat", {"data_in_0": [2, 4], "data_in_1": [2, 4], "dim": 1}),
    },
    "methods": {
        "size": ("implicit_func", "size", {"data_in_0": [2, 4], "dim": 0}),
        "view": (
            "implicit_func",
            "view",
            {"data_in_0": [2, 4], "shape_0": 2, "shape_1": 2, "shape_2": 2},
        ),
        "mean": ("builtin_func", "mean", {"data_in_0": [2, 4], "dim": 1, "keepdim": True}),
        "add_1": ("builtin_func", "add", {"data_in_0": [2, 4], "other": 2}),
        "permute": ("implicit_func", "permute", {"data_in_0": [2, 4], "dims_0": 1, "dims_1": 0}),
    },
    "two_matmuls": {
        "matmul": ("builtin_func", "matmul", {"data_in_0": [2, 4], "data_in_1": [4, 2]}),
        "matmul_1": ("builtin_func", "matmul", {"data_in_0": [2, 2], "data_in_1": [2, 4]}),
    },
    "images": {
        "conv": (
            "module_related_func",
            "conv2d",
            {"data_in_0": [2, 3, 8, 8], "weight": [4, 3, 3, 3]},
        ),
        "norm": (
            "module",
            "batch_norm2d",
            {"data_in_0": [2, 4, 8, 8], "weight": [4], "bias": [4]},
        ),
        "flatten": ("implicit_func", "flatten", {"data_in_0": [2, 4, 1, 1], "start_dim": 1}),
    },
    "in_place": {"_tensor_constant0": ("implicit_func", "constant", {})},
    "parts": {
        "truediv": ("builtin_func", "div", {"data_in_0": [2, 2], "other": 3}),
        "getitem_1": (
            "implicit_func",
            "getitem",
            {"data_in_0": [2, 2], "data_in_1": [2, 2], "index": 1},
        ),
    },
}


@pytest.mark.parametrize(
    ("model", "node"), [(m, n) for m, nodes in EXPECTED.items() for n in nodes]
)
def test_nodes_are_classified_and_their_arguments_named(model: str, node: str) -> None:
    mase_type, mase_op, args = EXPECTED[model][node]
    entry = common(analysed(model), node)
    assert (entry["mase_type"], entry["mase_op"]) == (mase_type, mase_op)
    found = {name: e if bare(e) else e["shape"] for name, e in entry["args"].items()}
    assert {name: found[name] for name in args} == args
    assert [n for n in found if n.startswith("data_in")] == [
        n for n in args if n.startswith("data_in")
    ]


def test_several_results_are_numbered() -> None:
    graph = analysed("two_inputs")
    shapes = {n: e["shape"] for n, e in common(graph, "output")["results"].items()}
    assert shapes == {"data_out_0": [2, 2], "data_out_1": [2, 4], "data_out_2": [2, 2]}
    record = graph.meta["mase"]["common"]
    assert set(record["nodes_in"]) == {"matmul", "sub", "t", "t_1", "matmul_1"}
    assert record["nodes_out"] == ["matmul", "sub", "matmul_1"]
    assert set(record["args"]) == {"a", "b"}
    assert set(record["results"]) == set(shapes)


def test_dtypes_are_recorded() -> None:
    graph = analysed("tokens")
    entry = common(graph, "ids")["results"]["data_out_0"]
    assert (entry["type"], entry["precision"], entry["torch_dtype"]) == ("int", [64], torch.int64)
    assert "mask" not in [node.name for node in graph.nodes]  # fixed to its default
    model, inputs = ZOO["tokens"]
    graph = MaseGraph(fx.symbolic_trace(model))  # fx itself makes it an input
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    entry = common(graph, "mask")["results"]["data_out_0"]
    assert entry == {"type": "NoneType", "shape": [1], "value": None}
    assert common(analysed("methods"), "size")["results"]["data_out_0"] == {
        "type": "int",
        "shape": [1],
        "value": 2,
    }


def test_values_are_kept_only_if_asked_for() -> None:
    graph = analysed("jsc_tiny", add_value=False)
    for node in graph.nodes:
        for side in ("args", "results"):
            assert not any("value" in e for e in node.meta["mase"]["common"][side].values())


@pytest.mark.parametrize("name", ZOO)
def test_shapes_on_meta_are_those_of_a_real_run(name: str) -> None:
    real, meta = analysed(name), analysed(name, force_device_meta=True)
    for ours, theirs in zip(real.nodes, meta.nodes, strict=True):
        one, other = ours.meta["mase"]["common"], theirs.meta["mase"]["common"]
        for side in ("args", "results"):
            assert list(one[side]) == list(other[side])
            for key, entry in one[side].items():
                if not bare(entry):
                    assert entry["shape"] == other[side][key]["shape"]
                    from_run = key.startswith("data_") or "torch_dtype" in entry
                    assert other[side][key]["value"].is_meta is from_run
    assert not any(parameter.is_meta for parameter in meta.model.parameters())


def test_meta_inputs_need_no_flag() -> None:
    graph = MaseGraph(JSCTiny())
    dummy_in = {"x": torch.empty(8, 16, device="meta")}
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in})
    assert common(graph, "output")["results"]["data_out_0"]["shape"] == [8, 5]


def test_software_places_are_those_of_the_labs() -> None:
    graph = analysed("jsc_tiny")
    places = {
        node.name: {side: sorted(names) for side, names in node.meta["mase"]["software"].items()}
        for node in graph.nodes
    }
    out = ["data_out_0"]
    assert places["x"] == {"results": out}
    assert places["seq_blocks_0"] == {
        "args": ["bias", "data_in_0", "running_mean", "running_var", "weight"],
        "results": out,
    }
    assert places["seq_blocks_1"] == {"args": ["data_in_0"], "results": out}
    assert places["output"] == {"args": ["data_in_0"]}
    size = next(node for node in analysed("methods").nodes if node.name == "size")
    assert size.meta["mase"]["software"] == {"args": {"data_in_0": {"stat": {}}}}


class MyBlock2d(nn.Module):
    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        return x if flag or x.sum() else -x


def my_function(x: Tensor, power: int) -> Tensor:
    return x**power


fx.wrap("my_function")


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = MyBlock2d()

    def forward(self, x: Tensor) -> Tensor:
        return my_function(self.block(x, False), 2).logit()


def test_what_the_table_does_not_know_keeps_its_name() -> None:
    from chop.ir.graph.mase_graph import MaseTracer

    graph = MaseGraph(Own(), tracer=MaseTracer((MyBlock2d,)))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.ones(2)}})
    block, function = common(graph, "block"), common(graph, "my_function")
    assert (block["mase_type"], block["mase_op"]) == ("patched_func", "my_block2d")
    assert block["args"]["flag"] is False
    assert (function["mase_type"], function["mase_op"]) == ("patched_func", "my_function")
    assert function["args"]["power"] == 2
    logit = common(graph, "logit")
    assert (logit["mase_type"], logit["mase_op"]) == ("builtin_func", "logit")


def test_quantised_layers_show_their_formats() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    op = OPS["linear"]
    config = {"name": "integer", "data_in_width": 8, "weight_width": 6, "weight_frac_width": 5}
    model[0] = quantize_module(model[0], op, parse_quant_config(op, config, "test"))
    graph = MaseGraph(model)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(1, 4)}})
    args = common(graph, "_0")["args"]
    shown = {name: (entry["type"], entry["precision"]) for name, entry in args.items()}
    assert shown == {
        "data_in_0": ("integer", [8, 4]),
        "weight": ("integer", [6, 5]),
        "bias": ("integer", [6, 5]),
    }
    assert common(graph, "_1")["args"]["data_in_0"]["type"] == "float"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "minifloat_ieee", "data_in_width": 8, "data_in_exponent_width": 4}, [8, 4]),
        ({"name": "block_fp", "data_in_width": 8, "data_in_exponent_width": 5}, [8, 5]),
    ],
)
def test_precision_begins_with_the_settings_of_the_labs(
    config: dict[str, Any], expected: list[int]
) -> None:
    quant = parse_quant_config(OPS["relu"], config, "test")
    found = precision(quant.operands["data_in"])
    assert found[:2] == expected
    assert len(found) == {"minifloat_ieee": 3, "block_fp": 4}[config["name"]]


def lab_config(format_name: str) -> dict[str, Any]:
    settings = {"exponent_width": 4, "frac_width": 4, "block_size": [4], "exponent_bias_width": 4}
    fields = required_fields(FORMATS[format_name])
    return {"name": format_name} | {
        f"{role}_{field}": settings.get(field, 8)
        for role in ("data_in", "weight", "bias")
        for field in fields
    }


@pytest.mark.parametrize("name", ["jsc_tiny", "functional", "two_inputs"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_quantised_graph_is_analysed_like_any_other(format_name: str, name: str) -> None:
    graph = analysed(name)
    rules = {"by": "type", "default": {"config": lab_config(format_name)}}
    graph, _ = quantize_transform_pass(graph, rules)
    verify_metadata_analysis_pass(graph)
    quantised = formats_shown(graph)
    assert any(kind == format_name for kind, _ in quantised.values())
    for options in ({}, {"force_device_meta": True}):
        arguments = {"dummy_in": ZOO[name][1], **options}
        graph, _ = add_common_metadata_analysis_pass(graph, arguments)
        verify_common_metadata_analysis_pass(graph)
        assert formats_shown(graph) == quantised


def formats_shown(graph: MaseGraph) -> dict[tuple[str, str], tuple[str, list[Any]]]:
    return {
        (node.name, name): (entry["type"], entry["precision"])
        for node in graph.nodes
        for name, entry in node.meta["mase"]["common"]["args"].items()
        if not bare(entry)
    }


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def test_parametrised_weights_keep_their_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    parametrize.register_parametrization(model[0], "weight", Half())
    graph = MaseGraph(model)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(1, 4)}})
    args = common(graph, "_0")["args"]
    assert set(args) == {"data_in_0", "weight", "bias"}
    assert torch.equal(args["weight"]["value"], model[0].weight)


def test_init_wipes_what_was_recorded() -> None:
    graph, info = init_metadata_analysis_pass(analysed("jsc_tiny"), None)
    assert info == {"nodes": 6}
    assert all(node.meta["mase"]["common"] == {} for node in graph.nodes)
    assert graph.meta["mase"]["common"] == {}


def test_info_counts_operations() -> None:
    model, dummy_in = ZOO["jsc_tiny"]
    _, info = add_common_metadata_analysis_pass(MaseGraph(model), {"dummy_in": dummy_in})
    assert info["nodes"] == 6
    assert info["mase_ops"]["relu"] == 2


def test_an_input_that_does_not_fit_names_the_node() -> None:
    graph = MaseGraph(JSCTiny())
    with pytest.raises(GraphError, match="node 'seq_blocks_0'"):
        add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.ones(2, 3)}})


BROKEN = {
    "is not a MASE type": lambda m: m["common"].update(mase_type="layer"),
    "mase_op is missing": lambda m: m["common"].update(mase_op=""),
    "results are empty": lambda m: m["common"].update(results={}),
    "args is missing": lambda m: m["common"].pop("args"),
    "lacks shape": lambda m: m["common"]["args"]["data_in_0"].pop("shape"),
    "but its value": lambda m: m["common"]["args"]["data_in_0"].update(shape=[1]),
    "inputs are called": lambda m: m["common"]["args"].update(
        data_in_2={"precision": [1], "shape": [], "type": "float"}
    ),
    "is not recorded": lambda m: m["common"]["args"].pop("weight"),
    "weight is recorded as": lambda m: m["common"]["args"].update(weight={"shape": [2]}),
    "which the node has not": lambda m: m["software"]["args"].update(other={"stat": {}}),
    "no dictionary of statistics": lambda m: m["software"]["args"].update(weight={}),
}


@pytest.mark.parametrize("message", BROKEN)
def test_verify_finds_what_is_broken(message: str) -> None:
    graph = analysed("jsc_tiny")
    node = next(node for node in graph.nodes if node.name == "seq_blocks_2")
    BROKEN[message](node.meta["mase"])
    with pytest.raises(GraphError, match=f"metadata of node seq_blocks_2: .*{message}"):
        verify_metadata_analysis_pass(graph)


def test_verify_by_section() -> None:
    graph = analysed("jsc_tiny")
    assert verify_common_metadata_analysis_pass(graph)[1]["nodes"] == 6
    assert verify_software_metadata_analysis_pass(graph)[1]["rules"]
