"""Which nodes a key is for, and the small readers."""

import pytest
import torch
from torch import nn

from chop.errors import ConfigError, GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ops.op import MaseType
from chop.ops.table import OPS
from chop.passes.graph import add_common_metadata_analysis_pass
from chop.passes.graph.common import MASE_TYPE_MAP, MASE_TYPES
from chop.passes.graph.utils import (
    By,
    deepcopy_mase_graph,
    get_mase_op,
    get_mase_type,
    get_module_by_name,
    get_node_actual_target,
    get_node_by_name,
    get_parent_name,
    select,
)


@pytest.fixture
def graph() -> MaseGraph:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2)))
    graph = MaseGraph(model)
    return add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(1, 4)}})[0]


@pytest.mark.parametrize(
    ("by", "keys", "chosen"),
    [
        ("type", ["linear"], {"_0": "linear", "_2_0": "linear"}),
        ("type", ["relu", "linear"], {"_0": "linear", "_1": "relu", "_2_0": "linear"}),
        ("name", ["_1"], {"_1": "_1"}),
        ("regex_name", ["_2_.*", r"_\d.*"], {"_0": r"_\d.*", "_1": r"_\d.*", "_2_0": "_2_.*"}),
        ("regex_name", [r"_\d.*", "_2_0"], dict.fromkeys(["_0", "_1", "_2_0"], r"_\d.*")),
        ("type", [], {}),
    ],
)
def test_keys_choose_nodes(
    graph: MaseGraph, by: By, keys: list[str], chosen: dict[str, str]
) -> None:
    found = select(graph.nodes, by, keys, "test")
    assert {node.name: key for node, key in found.items()} == chosen


@pytest.mark.parametrize(
    ("by", "key", "message"),
    [
        ("type", "linaer", "test: no node has the type 'linaer': did you mean 'linear'?"),
        ("name", "_2", "test: no node has the name '_2': did you mean '_2_0'?"),
        ("regex_name", "conv.*", "test: the pattern 'conv.*' matches no node"),
        ("regex_name", "(", "test: '(' is not a regular expression"),
    ],
)
def test_a_key_that_matches_nothing_is_an_error(
    graph: MaseGraph, by: By, key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        select(graph.nodes, by, [key], "test")
    assert str(error.value).startswith(message)


def test_readers(graph: MaseGraph) -> None:
    node = get_node_by_name(graph.fx_graph, "_2_0")
    assert (get_mase_op(node), get_mase_type(node)) == ("linear", "module_related_func")
    assert get_node_actual_target(node) is graph.modules["2.0"]
    assert get_node_actual_target(next(iter(graph.nodes))) == "input"
    assert get_parent_name("a.b.c") == ("a.b", "c")
    assert get_parent_name("a") == ("", "a")
    assert get_module_by_name(graph.model, "2.0") is graph.modules["2.0"]
    with pytest.raises(GraphError, match=r"no module '2\.1': did you mean '2\.0'"):
        get_module_by_name(graph.model, "2.1")
    with pytest.raises(GraphError, match="no node '_2': did you mean '_2_0'"):
        get_node_by_name(graph, "_2")
    node.meta["mase"].parameters["common"] = {}
    with pytest.raises(GraphError, match="no mase_op: run add_common_metadata_analysis_pass"):
        get_mase_op(node)


def test_a_deep_copy_is_its_own_but_shares_recorded_values(graph: MaseGraph) -> None:
    twin = deepcopy_mase_graph(graph)
    for ours, theirs in zip(graph.nodes, twin.nodes, strict=True):
        mine, other = ours.meta["mase"], theirs.meta["mase"]
        assert other.node is theirs
        assert other.model is twin.model
        results, copied = mine["common"]["results"], other["common"]["results"]
        assert copied["data_out_0"]["value"] is results["data_out_0"]["value"]
        copied["data_out_0"]["type"] = "changed"
        assert results["data_out_0"]["type"] == "float"
    first, other = graph.modules["0"], twin.modules["0"]
    assert torch.equal(first.weight, other.weight)
    with torch.no_grad():
        other.weight.zero_()
    assert first.weight.any()
    assert twin.meta["mase"]["common"].keys() == graph.meta["mase"]["common"].keys()
    twin.meta["mase"]["common"]["nodes_in"].append("x")
    assert graph.meta["mase"]["common"]["nodes_in"] == ["_0"]


def test_types_are_derived_from_the_operations() -> None:
    assert list(MaseType) == MASE_TYPES
    assert {op for ops in MASE_TYPE_MAP.values() for op in ops} == {o.name for o in OPS.values()}
    assert "batch_norm2d" in MASE_TYPE_MAP["module"]
    assert "linear" in MASE_TYPE_MAP["module_related_func"]
