import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transform_nets import ConvNet, Jsc, Mixed, Shared, config, graph_of, rule

from chop.errors import ConfigError, GraphError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quantized import QuantizedModule
from chop.numerics import FORMATS, Integer
from chop.passes.graph import (
    PASSES,
    prune_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.utils import deepcopy_mase_graph, get_node_by_name

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)) * 2


@pytest.fixture
def mg() -> MaseGraph:
    return graph_of(Jsc(16, 8, 5), 8, 16)


def layer(graph: MaseGraph, name: str) -> nn.Module:
    return graph.model.get_submodule(name)


@pytest.mark.parametrize(
    "args",
    [
        {"by": "type", "linear": rule("integer")},
        {"by": "name", "seq_blocks_2": rule("integer"), "seq_blocks_5": rule("integer")},
        {"by": "regex_name", r"seq_blocks_[25]": rule("integer")},
        {"by": "regex_name", r".*_[25]": rule("integer"), r".*": {"config": {"name": "NA"}}},
        {
            "by": "name",
            "default": rule("integer"),
            **{f"seq_blocks_{i}": rule(None) for i in (0, 1, 3, 4, 6)},
        },
    ],
    ids=["type", "name", "regex", "first regex wins", "default"],
)
def test_each_way_of_naming_nodes(mg: MaseGraph, args: dict[str, object]) -> None:
    before = copy.deepcopy(args)
    mg, info = quantize_transform_pass(mg, args)
    assert args == before
    assert info == {
        "quantized": {"seq_blocks_2": "LinearInteger", "seq_blocks_5": "LinearInteger"},
        "restored": [],
    }
    changed = {name for name, m in mg.modules.items() if isinstance(m, QuantizedModule)}
    assert changed == {"seq_blocks.2", "seq_blocks.5"}
    again, _ = quantize_transform_pass(graph_of(Jsc(16, 8, 5), 8, 16), args)
    assert isinstance(layer(again, "seq_blocks.2"), QuantizedModule)


def test_class_is_found_where_the_labs_print_it(mg: MaseGraph) -> None:
    quantize_transform_pass(mg, {"by": "type", "linear": rule("integer")})
    home = "chop.passes.graph.transforms.quantize.quantized_modules.linear"
    assert str(type(layer(mg, "seq_blocks.2"))) == f"<class '{home}.LinearInteger'>"


def test_numbers_are_those_of_the_formula(mg: MaseGraph) -> None:
    float_layer = layer(mg, "seq_blocks.2")
    quantize_transform_pass(mg, {"by": "type", "linear": rule("integer")})
    fmt = Integer(width=8, frac_width=4)
    x = X.clone()
    expected = F.linear(fmt(x), fmt(float_layer.weight), fmt(float_layer.bias))
    assert torch.equal(layer(mg, "seq_blocks.2")(x), expected)


def test_the_model_that_was_traced_is_left_alone() -> None:
    model = Jsc(16, 5)
    graph = graph_of(model, 8, 16)
    quantize_transform_pass(graph, {"by": "type", "linear": rule("integer")})
    assert type(model.seq_blocks[2]) is nn.Linear
    assert layer(graph, "seq_blocks.2").weight is model.seq_blocks[2].weight


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_every_format_on_modules_and_functions(fmt: str) -> None:
    graph = graph_of(Mixed(), 5, 6)
    ops = {"linear": rule(fmt), "relu": rule(fmt, "data_in"), "add": rule(fmt, "data_in")}
    ops |= {"matmul": rule(fmt, "data_in", "weight"), "sub": rule(fmt, "data_in")}
    x = torch.randn(5, 6)
    plain = graph.model(x)
    names = [node.name for node in graph.nodes]
    graph, info = quantize_transform_pass(graph, {"by": "type", **ops})
    assert len(info["quantized"]) == 8
    assert [node.name for node in graph.nodes] == names
    y = graph.model(x)
    assert y.shape == plain.shape
    assert not torch.equal(y, plain)
    common = get_node_by_name(graph, "fc").meta["mase"]["common"]
    assert common["args"]["data_in_0"]["type"] == fmt
    assert common["results"]["data_out_0"]["type"] == "float"


@pytest.mark.parametrize(
    ("fmt", "settings", "precision"),
    [
        ("integer", {}, [8, 4]),
        ("minifloat_ieee", {"exponent_bias": 3}, [8, 4, 3]),
        ("log", {"exponent_bias": 3}, [8, 3]),
        (
            "block_fp",
            {"exponent_width": 4, "exponent_bias": 3, "block_size": [16]},
            [8, 4, 3, [16]],
        ),
        ("block_minifloat", {"exponent_bias_width": 4, "block_size": [16]}, [8, 4, 4, [16]]),
        ("block_log", {"exponent_bias_width": 4, "block_size": [16]}, [8, 4, [16]]),
        ("binary", {"width": 1, "bipolar": True}, [1, False, True]),
    ],
)
def test_precision_is_in_the_order_of_the_keys(
    mg: MaseGraph, fmt: str, settings: dict[str, object], precision: list[object]
) -> None:
    quantize_transform_pass(mg, {"by": "type", "linear": rule(fmt, **settings)})
    args = get_node_by_name(mg, "seq_blocks_2").meta["mase"]["common"]["args"]
    for name in ("data_in_0", "weight", "bias"):
        assert args[name]["type"] == fmt
        assert args[name]["precision"] == precision


def test_functions_keep_their_roles_in_the_metadata() -> None:
    graph = graph_of(Mixed(), 5, 6)
    mixed = config("integer", "data_in") | config("integer", "weight", width=4, frac_width=1)
    quantize_transform_pass(graph, {"by": "type", "matmul": {"config": mixed}})
    node = get_node_by_name(graph, "matmul")
    args = node.meta["mase"]["common"]["args"]
    assert (args["data_in_0"]["precision"], args["data_in_1"]["precision"]) == ([8, 4], [4, 1])
    assert node.op == "call_function"
    assert node.target.__name__ == "matmul_integer"
    assert node.kwargs["config"]["weight_width"] == 4
    assert node.meta["mase"]["common"]["mase_op"] == "matmul"


def test_rounded_results_are_recorded_and_restored(mg: MaseGraph) -> None:
    roles = ("data_in", "weight", "bias", "data_out")
    entry = get_node_by_name(mg, "seq_blocks_2").meta["mase"]["common"]["results"]["data_out_0"]
    quantize_transform_pass(mg, {"by": "type", "linear": rule("integer", *roles)})
    assert (entry["type"], entry["precision"]) == ("integer", [8, 4])
    quantize_transform_pass(mg, {"by": "type", "linear": rule(None)})
    assert (entry["type"], entry["precision"]) == ("float", [32])


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_metadata_stays_in_order(fmt: str) -> None:
    graph = graph_of(Mixed(), 5, 6)
    quantize_transform_pass(graph, {"by": "type", "default": rule(fmt)})
    verify_metadata_analysis_pass(graph)
    graph, _ = prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    verify_metadata_analysis_pass(graph)


def snapshot(graph: MaseGraph) -> list[tuple[object, ...]]:
    return [
        (n.name, n.op, n.target, n.args, n.kwargs, repr(n.meta["mase"]["common"]["args"]))
        for n in graph.nodes
    ]


def test_none_makes_everything_float_again() -> None:
    graph = graph_of(Mixed(), 5, 6)
    before, code = snapshot(graph), graph.model.code
    x = torch.randn(5, 6)
    expected = graph.model(x)
    everything = {"by": "type", "default": rule("integer")}
    _, info = quantize_transform_pass(graph, everything)
    assert len(info["quantized"]) >= 8
    assert not torch.equal(graph.model(x), expected)
    undo = {"by": "type", "default": {"config": {"name": None}}}
    _, info = quantize_transform_pass(graph, undo)
    assert "fc" in info["restored"]
    assert "add_" in "".join(info["restored"])
    assert torch.equal(graph.model(x), expected)
    assert snapshot(graph) == before
    assert graph.model.code == code
    assert type(layer(graph, "fc")) is nn.Linear


def test_trials_do_not_influence_each_other(mg: MaseGraph) -> None:
    x = X.clone()
    trials = [
        {"by": "name", "default": rule(None), "seq_blocks_2": rule("integer")},
        {"by": "name", "default": rule(None), "seq_blocks_5": rule("log")},
        {"by": "type", "default": rule(None), "linear": rule("block_fp"), "relu": rule("integer")},
    ]
    fresh = []
    for trial in trials:
        alone, _ = quantize_transform_pass(deepcopy_mase_graph(mg), trial)
        fresh.append(alone.model(x.clone()))
    for trial, expected in [*zip(trials, fresh, strict=True)] * 2:
        quantize_transform_pass(mg, trial)
        assert torch.equal(mg.model(x.clone()), expected)


def test_copies_of_a_quantised_graph_are_restored_by_themselves() -> None:
    graph = graph_of(Mixed(), 5, 6)
    x = torch.randn(5, 6)
    expected = graph.model(x)
    quantize_transform_pass(graph, {"by": "type", "default": rule("integer")})
    quantised = graph.model(x)
    twin = deepcopy_mase_graph(graph)
    quantize_transform_pass(twin, {"by": "type", "default": rule(None)})
    assert torch.equal(twin.model(x), expected)
    assert torch.equal(graph.model(x), quantised)


def test_softmax_with_the_private_arguments_that_fx_records() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(x, dim=-1)

    graph = graph_of(Net(), 5, 6)
    node, x = get_node_by_name(graph, "softmax"), torch.randn(5, 6)
    before = dict(node.kwargs)
    assert "_stacklevel" in before
    quantize_transform_pass(graph, {"by": "type", "softmax": rule("integer", "data_in")})
    fmt = Integer(width=8, frac_width=4)
    assert torch.equal(graph.model(x), F.softmax(fmt(x), dim=-1))
    quantize_transform_pass(graph, {"by": "type", "softmax": rule(None)})
    assert (node.target, node.kwargs) == (F.softmax, before)


def test_nodes_without_a_rule_stay_as_they_are(mg: MaseGraph) -> None:
    quantize_transform_pass(mg, {"by": "name", "seq_blocks_2": rule("integer")})
    quantize_transform_pass(mg, {"by": "name", "seq_blocks_5": rule("log")})
    assert type(layer(mg, "seq_blocks.2")).__name__ == "LinearInteger"
    assert type(layer(mg, "seq_blocks.5")).__name__ == "LinearLog"


def test_shared_layer_is_quantised_once() -> None:
    graph = graph_of(Shared(), 3, 4)
    quantize_transform_pass(graph, {"by": "type", "linear": rule("integer")})
    assert len([m for m in graph.model.modules() if isinstance(m, QuantizedModule)]) == 1
    fmt, fc = Integer(width=8, frac_width=4), layer(graph, "fc")
    x = torch.randn(3, 4)

    def once(x: torch.Tensor) -> torch.Tensor:
        return F.linear(fmt(x), fmt(fc.weight), fmt(fc.bias))

    assert torch.equal(graph.model(x), once(torch.tanh(once(x))))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"by": "type", "linaer": rule("integer")},
            "unknown operation 'linaer': did you mean 'linear'",
        ),
        ({"by": "type", "conv2d": rule("integer")}, "no node has the type 'conv2d'"),
        ({"by": "name", "seq_blocks_9": rule("integer")}, "no node has the name 'seq_blocks_9'"),
        ({"by": "regex_name", "conv.*": rule("integer")}, "'conv.*' matches no node"),
        ({"by": "regex_name", "x|output": rule("integer")}, "none of its nodes can be quantised"),
        ({"by": "regex_name", "(": rule("integer")}, "not a regular expression"),
        ({"by": "kind", "linear": rule("integer")}, "by"),
        (
            {"by": "type", "linear": {"confg": {"name": None}}},
            "unknown key 'confg': did you mean 'config'",
        ),
        ({"by": "type", "linear": 3}, "a rule is a table with 'config'"),
        ({"by": "type", "linear": {"config": {"name": "integr"}}}, "did you mean 'integer'"),
        ({"by": "type", "linear": {"config": {"name": "integer"}}}, "linear needs 'data_in_width'"),
        (
            {"by": "type", "linear": {"config": config("integer") | {"wieght_width": 3}}},
            "did you mean 'weight_width'",
        ),
        ({"by": "type", "linear": {"config": config("integer") | {"weight_width": "8"}}}, "weight"),
        ({"by": "type", "linear": rule("integer", "data_in")}, "linear needs 'weight_width'"),
        ({"by": "name", "x": rule("integer")}, "node 'x' (placeholder) cannot be quantised"),
    ],
)
def test_mistakes_are_named_and_change_nothing(
    mg: MaseGraph, args: dict[str, object], message: str
) -> None:
    quantize_transform_pass(mg, {"by": "name", "seq_blocks_5": rule("log")})
    before = snapshot(mg), [type(m) for m in mg.model.modules()]
    # The first rule of each case is sound, so a pass that edits as it reads would leave a mark.
    sound = {"by": args["by"], "seq_blocks_2": rule("integer")} if args["by"] == "name" else {}
    with pytest.raises(ConfigError, match=".") as caught:
        quantize_transform_pass(mg, sound | args)
    assert message in str(caught.value)
    assert (snapshot(mg), [type(m) for m in mg.model.modules()]) == before


def test_arguments_are_checked_without_a_graph() -> None:
    with pytest.raises(UnknownNameError, match="integr"):
        PASSES["quantize"].parse({"by": "type", "linear": {"config": {"name": "integr"}}})


def test_conflicting_rules_for_one_layer_are_an_error() -> None:
    graph = graph_of(Shared(), 3, 4)
    for args in ({"fc": rule("integer")}, {"fc": rule("integer"), "fc_1": rule("log")}):
        with pytest.raises(ConfigError, match="'fc' and 'fc_1' call the same layer 'fc'"):
            quantize_transform_pass(graph, {"by": "name", **args})
    assert type(layer(graph, "fc")) is nn.Linear


def test_metadata_must_be_there() -> None:
    with pytest.raises(GraphError, match="run add_common_metadata_analysis_pass first"):
        quantize_transform_pass(MaseGraph(Jsc(16, 5)), {"by": "type", "linear": rule("integer")})


def test_bypass_computes_in_floating_point(mg: MaseGraph) -> None:
    expected = mg.model(X.clone())
    quantize_transform_pass(
        mg, {"by": "type", "linear": {"config": config("integer") | {"bypass": True}}}
    )
    assert isinstance(layer(mg, "seq_blocks.2"), QuantizedModule)
    assert torch.equal(mg.model(X.clone()), expected)


def test_convolution_keeps_its_bias() -> None:
    graph = graph_of(ConvNet(), 2, 3, 8, 8)
    x = torch.randn(2, 3, 8, 8)
    expected = graph.model(x)
    fine = rule("integer", width=24, frac_width=16)
    quantize_transform_pass(graph, {"by": "type", "conv2d": fine, "linear": fine})
    assert torch.allclose(graph.model(x), expected, atol=1e-3)


@pytest.mark.parametrize("first", ["prune", "quantize"])
def test_both_orders_of_pruning_and_quantising_agree(first: str) -> None:
    graph = graph_of(ConvNet(), 2, 3, 8, 8)
    steps = {
        "prune": lambda: prune_transform_pass(
            graph, {"weight": {"sparsity": 0.5, "method": "l1-norm"}}
        ),
        "quantize": lambda: quantize_transform_pass(
            graph, {"by": "type", "conv2d": rule("integer"), "linear": rule("integer")}
        ),
    }
    torch.manual_seed(0)
    other = deepcopy_mase_graph(graph)
    steps[first]()
    steps["quantize" if first == "prune" else "prune"]()
    prune_transform_pass(other, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    fmt = Integer(width=8, frac_width=4)
    for name in ("conv1", "conv2", "fc"):
        weight = layer(other, name).weight
        assert torch.equal(layer(graph, name).get_quantized_weight(), fmt(weight))
    x = torch.randn(2, 3, 8, 8)
    assert graph.model(x).isfinite().all()
    # And back to floating point with the zeros still there.
    quantize_transform_pass(graph, {"by": "type", "default": rule(None)})
    assert torch.equal(graph.model(x), other.model(x))


def test_training_reaches_the_float_weights(mg: MaseGraph) -> None:
    quantize_transform_pass(mg, {"by": "type", "linear": rule("integer")})
    mg.model(X.clone()).sum().backward()
    assert layer(mg, "seq_blocks.2").weight.grad is not None


FLOAT_ONLY = nn.Sequential(nn.Flatten(), nn.Identity())
BIAS = {"config": {"name": "mxint8", "bias_block_size": 4}}
NOTHING = {
    "no rule": ({"by": "type"}, "there is no rule; operations of this graph that can be: batch_no"),
    "no rule by name": ({"by": "name"}, "there is no rule"),
    "a default without settings that fit": (
        {"by": "type", "batch_norm1d": rule(None), "linear": rule(None), "default": BIAS},
        "the rule 'default' sets bias, but node 'seq_blocks_1' has data_in",
    ),
    "a type without settings that fit": (
        {"by": "type", "relu": BIAS},
        "the rule 'relu' sets bias, but node 'seq_blocks_1' has data_in",
    ),
    "all nodes taken by a rule for floats": (
        {"by": "regex_name", "seq.*": rule(None), "seq_blocks_2": rule("integer")},
        "no node is left for the rule 'seq_blocks_2'",
    ),
    "a default that is for none": (
        {"by": "type", "default": rule("integer") | {"only": ["conv2d"]}},
        "no node is left for the rule 'default'; operations of this graph that can be: batch",
    ),
    "a default beside rules for all": (
        {"by": "type", **dict.fromkeys(("batch_norm1d", "linear", "relu"), rule(None)),
         "default": rule("integer")},
        "no node is left for the rule 'default'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTHING)
def test_quantising_nothing_is_an_error_that_says_why(mg: MaseGraph, case: str) -> None:
    args, message = NOTHING[case]
    before = snapshot(mg), [type(m) for m in mg.model.modules()]
    with pytest.raises(ConfigError) as caught:
        quantize_transform_pass(mg, args)
    assert f"pass 'quantize': no operation would be rounded: {message}" in str(caught.value)
    assert (snapshot(mg), [type(m) for m in mg.model.modules()]) == before


def test_a_network_without_anything_to_quantise() -> None:
    graph = graph_of(FLOAT_ONLY, 2, 4)
    with pytest.raises(ConfigError, match="; no operation of this graph can be"):
        quantize_transform_pass(graph, {"by": "type", "default": rule("integer")})


def test_a_layer_without_the_only_operand_of_its_rule() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(4, 2, bias=False)), 2, 4)
    with pytest.raises(ConfigError, match="sets bias, but node '_0' has data_in, weight"):
        quantize_transform_pass(graph, {"by": "type", "linear": BIAS})


@pytest.mark.parametrize(
    "args",
    [
        {"by": "type", "default": rule(None)},
        {"by": "name", "seq_blocks_2": {"config": {"name": "NA"}}},
        {"by": "regex_name", ".*": rule(None)},
        {"by": "type", "linear": rule(None), "default": rule(None)},
        {"by": "type", "default": {"config": config("integer") | {"bypass": True}}},
    ],
)
def test_a_wish_to_leave_all_in_floating_point_is_none(
    mg: MaseGraph, args: dict[str, object]
) -> None:
    expected = mg.model(X.clone())
    quantize_transform_pass(mg, args)
    assert torch.equal(mg.model(X.clone()), expected)


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (
            {"by": "type", "flatten": rule("integer")},
            "operations of this graph that can be: linear",
        ),
        ({"by": "name", "_0": rule("integer")}, "nodes of this graph that can be: _1"),
        ({"by": "regex_name", "_0": rule("integer")}, "nodes of this graph that can be: _1"),
        ({"by": "type", "conv2d": rule("integer")}, "known are flatten, linear"),
    ],
)
def test_what_cannot_be_quantised_comes_with_what_can(args: dict[str, object], remedy: str) -> None:
    graph = graph_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 2, 4)
    with pytest.raises(ConfigError) as caught:
        quantize_transform_pass(graph, args)
    assert str(caught.value).endswith(remedy)


ORIGINAL = ["add", "bmm", "conv1d", "conv2d", "linear", "matmul", "mul", "relu", "sub"]
"""The operations that the default of the original is for."""


@pytest.mark.parametrize(
    "args",
    [
        {"by": "type", "batch_norm1d": rule(None), "default": rule("integer")},
        {"by": "type", "default": rule("integer") | {"only": ORIGINAL}},
        {"by": "name", "default": rule("integer") | {"only": ORIGINAL}},
        {"by": "regex_name", "default": rule("integer") | {"only": ("linear", "relu")}},
        # An operation that the network lacks may be left in floating point, too.
        {"by": "type", "batch_norm1d": rule(None), "batch_norm2d": rule(None),
         "default": rule("integer")},
    ],
)  # fmt: skip
def test_the_default_can_be_restricted(mg: MaseGraph, args: dict[str, object]) -> None:
    _, info = quantize_transform_pass(mg, args)
    assert set(info["quantized"].values()) == {"LinearInteger", "ReLUInteger"}
    assert len(info["quantized"]) == 5


def test_the_default_is_for_everything_that_can_be_quantised(mg: MaseGraph) -> None:
    _, info = quantize_transform_pass(mg, {"by": "type", "default": rule("integer")})
    assert "BatchNorm1dInteger" in info["quantized"].values()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"default": rule("integer") | {"only": ["linaer"]}}, "did you mean 'linear'"),
        ({"default": rule("integer") | {"only": ["flatten"]}}, "unknown operation 'flatten'"),
        ({"default": rule("integer") | {"onyl": []}}, "unknown key 'onyl': did you mean 'only'"),
        ({"linear": rule("integer") | {"only": ["relu"]}}, "unknown key 'only'"),
        ({"linaer": rule(None)}, "unknown operation 'linaer': did you mean 'linear'"),
    ],
)
def test_mistakes_in_a_restriction_are_named(args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PASSES["quantize"].parse({"by": "type", **args})
    assert message in str(caught.value)


def test_a_node_may_be_called_like_a_key_without_effect() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.report = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.report(x)
            return out

    _, info = quantize_transform_pass(graph_of(Net(), 3, 4), {"by": "name", "report": rule("log")})
    assert info["quantized"] == {"report": "LinearLog"}
