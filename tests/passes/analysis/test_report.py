"""Reports look as in the labs, to the letter."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_zoo import ZOO, JSCTiny
from torch import nn

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    report_graph_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.graph.utils import get_node_by_name

HERE = Path(__file__).parent
# The statistics that the lab report printed.
STATISTICS = {
    ("seq_blocks_1", "data_in_0"): {
        "range_quantile": {
            "count": 512,
            "max": 2.2610883712768555,
            "min": -1.723684310913086,
            "range": 3.9847726821899414,
        }
    },
    ("seq_blocks_2", "bias"): {
        "variance_precise": {
            "count": 5,
            "mean": -0.002756827976554632,
            "variance": 0.07052876800298691,
        }
    },
    ("seq_blocks_2", "weight"): {
        "variance_precise": {
            "count": 80,
            "mean": 0.008668387308716774,
            "variance": 0.028130000457167625,
        }
    },
    ("seq_blocks_3", "data_in_0"): {
        "range_quantile": {
            "count": 160,
            "max": 1.6148279905319214,
            "min": -1.4658207893371582,
            "range": 3.080648899078369,
        }
    },
}


@pytest.fixture
def graph() -> MaseGraph:
    graph = MaseGraph(JSCTiny())
    dummy_in = {"x": torch.randn(8, 16)}
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in})
    return add_software_metadata_analysis_pass(graph)[0]


def test_the_graph_report_is_that_of_the_labs(
    graph: MaseGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    _, info = report_graph_analysis_pass(graph)
    printed = capsys.readouterr().out
    # Newer torch shows one more setting of BatchNorm.
    printed = printed.replace("affine=True, bias=True,", "affine=True,")
    assert printed == (HERE / "graph_report.txt").read_text(encoding="utf-8")
    assert info["counts"]["call_module"] == 4
    assert info["layer_types"] == ["BatchNorm1d", "ReLU", "Linear", "ReLU"]


def test_every_kind_of_node_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    _, info = report_graph_analysis_pass(MaseGraph(ZOO["functional"][0]))
    kinds = ["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
    assert list(info["counts"]) == kinds
    assert list(info["counts"].values()) == [1, 2, 4, 0, 0, 1]
    assert capsys.readouterr().out.endswith("\nLayer types:\n[]\n")


def test_a_shared_layer_is_listed_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    relu = nn.ReLU()
    _, info = report_graph_analysis_pass(MaseGraph(nn.Sequential(relu, relu)))
    assert info["layer_types"] == ["ReLU", "ReLU"]
    assert "[ReLU(), ReLU()]" in capsys.readouterr().out


def test_the_graph_report_goes_to_a_file(
    graph: MaseGraph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "report.txt"
    report_graph_analysis_pass(graph, {"file_name": str(path)})
    assert capsys.readouterr().out == ""
    report_graph_analysis_pass(graph, {"file_name": None})
    assert capsys.readouterr().out == path.read_text(encoding="utf-8")


def test_the_software_table_is_that_of_the_labs(
    graph: MaseGraph, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for (node, argument), statistics in STATISTICS.items():
        software = get_node_by_name(graph, node).meta["mase"].parameters["software"]
        software["args"][argument]["stat"] = statistics
    path = tmp_path / "table.txt"
    report_node_meta_param_analysis_pass(graph, {"which": ("software",), "save_path": path})
    printed = capsys.readouterr().out
    assert printed == (HERE / "software_table.txt").read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == printed


def test_common_metadata_is_abbreviated_only_in_print(
    graph: MaseGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    report_node_meta_param_analysis_pass(graph, {"which": ["common"]})
    printed = capsys.readouterr().out
    cell = "\n".join(
        line.split("|")[5].rstrip() for line in printed.splitlines() if line.startswith("|")
    )
    assert re.search(
        r"\{'args': \{'bias': \{'from': None,\s+'precision': \[32\],\s+'shape': \[5\],\s+"
        r"'type': 'float',\s+'value': '\.{6}'\},\s+"
        r"'data_in_0': \{'precision': \[32\],\s+'shape': \[8, 16\],\s+"
        r"'torch_dtype': 'torch\.float32',\s+'type': 'float',\s+'value': '\.{6}'\},\s+"
        r"'weight': \{'from': None,\s+'precision': \[32\],\s+'shape': \[5, 16\],\s+"
        r"'type': 'float',\s+'value': '\.{6}'\}\},\s+"
        r"'mase_op': 'linear',\s+'mase_type': 'module_related_func',\s+'results': ",
        cell,
    )
    value = get_node_by_name(graph, "x").meta["mase"]["common"]["results"]["data_out_0"]["value"]
    assert value.shape == (8, 16)


@pytest.mark.parametrize(
    ("which", "columns"),
    [
        (None, ["Common Param", "Hardware Param", "Software Param"]),
        (("all",), ["Common Param", "Hardware Param", "Software Param"]),
        (["software", "common"], ["Common Param", "Software Param"]),
        (["hardware"], ["Hardware Param"]),
    ],
)
def test_which_sections_are_shown(
    graph: MaseGraph, capsys: pytest.CaptureFixture[str], which: Any, columns: list[str]
) -> None:
    report_node_meta_param_analysis_pass(graph, {"which": which} if which else None)
    heading = capsys.readouterr().out.splitlines()[1]
    found = [cell.strip() for cell in heading.strip("|").split("|")]
    assert found == ["Node name", "Fx Node op", "Mase type", "Mase op", *columns]


def test_an_unknown_section_is_an_error(graph: MaseGraph) -> None:
    with pytest.raises(ConfigError, match=r"pass 'report_node_meta_param': which\.0: .*'softwear'"):
        report_node_meta_param_analysis_pass(graph, {"which": ("softwear",)})


def test_the_type_table(graph: MaseGraph, capsys: pytest.CaptureFixture[str]) -> None:
    _, info = report_node_type_analysis_pass(graph, {})
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["Node name", "Fx Node op", "Mase type", "Mase op", "Value type"]
    assert cells[2] == ["x", "placeholder", "placeholder", "placeholder", "NA"]
    assert cells[5] == ["seq_blocks_2", "call_module", "module_related_func", "linear", "float"]
    assert info["mase_types"]["seq_blocks_0"] == "module"


def test_the_shape_table(graph: MaseGraph, capsys: pytest.CaptureFixture[str]) -> None:
    _, info = report_node_shape_analysis_pass(graph)
    assert info["shapes"]["seq_blocks_2"] == {
        "in": {"data_in_0": [8, 16], "weight": [5, 16], "bias": [5]},
        "out": {"data_out_0": [8, 5]},
    }
    assert "| seq_blocks_2 | data_in_0: [8, 16] | data_out_0: [8, 5]  |" in capsys.readouterr().out
