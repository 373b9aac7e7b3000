"""Passes as students wrote them run as they stand."""

from typing import Any

import pytest
import torch
from graph_zoo import ZOO, JSCTiny

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PASSES, analysis_pass
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target


def lab_graph(name: str = "jsc_tiny") -> Any:
    model, dummy_in = ZOO[name]
    mg = MaseGraph(model=model)
    mg, _ = init_metadata_analysis_pass(mg, None)
    mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in})
    mg, _ = add_software_metadata_analysis_pass(mg, None)
    return mg


def count_of(module: Any, in_data: Any, out_data: Any) -> dict[str, int]:
    size = 0 if in_data[0] is None else in_data[0].numel()
    return {"computations": size, "output_buffer_size": out_data[0].numel()}


def calculate_flops_mg_pass(mase_graph: Any) -> Any:
    """The loop of the lab report: values of inputs and outputs, node by node."""
    flops_breakdown = {}
    total_flops = 0
    for node in mase_graph.fx_graph.nodes:
        try:
            in_data = (node.meta["mase"].parameters["common"]["args"]["data_in_0"]["value"],)
        except KeyError:
            in_data = (None,)
        out_data = (node.meta["mase"].parameters["common"]["results"]["data_out_0"]["value"],)
        module = get_node_actual_target(node)
        if isinstance(module, torch.nn.Module):
            module_flops = count_of(module, in_data, out_data)
            flops_breakdown[module] = module_flops
            total_flops += module_flops["computations"]
    return mase_graph, {"flop_module_breakdown": flops_breakdown, "total_flops": total_flops}


@pytest.mark.parametrize("name", ZOO)
def test_values_are_there_for_every_node(name: str) -> None:
    _, info = calculate_flops_mg_pass(lab_graph(name))
    if name == "jsc_tiny":
        assert info["total_flops"] == 8 * (16 + 16 + 16 + 5)
        assert len(info["flop_module_breakdown"]) == 4


def test_a_pass_with_a_dictionary_as_default_can_be_registered() -> None:
    def flop_bitwise_pass(graph, pass_args={"dummy_in": None}):  # type: ignore[no-untyped-def]  # noqa: B006
        record_result = {"FLOP": None, "Bit-op": None}
        if pass_args["dummy_in"] is not None:
            record_result["FLOP"] = graph.model(pass_args["dummy_in"]).numel()
        return graph, record_result

    mg = MaseGraph(JSCTiny())
    assert flop_bitwise_pass(mg)[1] == {"FLOP": None, "Bit-op": None}
    registered = analysis_pass("flop_bitwise")(flop_bitwise_pass)
    try:
        assert PASSES["flop_bitwise"] is registered
        assert registered(mg)[1]["FLOP"] is None
        assert registered(mg, {"dummy_in": torch.ones(2, 16)})[1]["FLOP"] == 10
    finally:
        del PASSES._entries["flop_bitwise"]


def test_two_graphs_are_compared_node_by_node() -> None:
    ori_mg, mg = lab_graph(), lab_graph()
    for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes, strict=True):
        assert type(get_node_actual_target(n)) is type(get_node_actual_target(ori_n))
        assert get_mase_op(n) == get_mase_op(ori_n)
        assert get_mase_type(n) == get_mase_type(ori_n)
