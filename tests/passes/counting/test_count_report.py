"""The table, and the pass under its names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from passes.counting.examples import perceptron
from torch import nn

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import PASSES, count_operations_analysis_pass
from chop.passes.graph.analysis.flops import report_counts

ARGS: dict[str, Any] = {"dummy_in": {"input": torch.zeros(2, 16)}}


def test_the_pass_has_two_names_in_files() -> None:
    assert PASSES["count_operations"] is PASSES["calculate_flops"] is count_operations_analysis_pass


@pytest.mark.parametrize(
    "name",
    ["calculate_avg_bits", "add_pruning_metadata", "add_natural_sparsity", "hook_inspection"],
)
def test_the_other_passes_are_known_by_name(name: str) -> None:
    assert PASSES[name].kind == "analysis"


def test_the_table_is_printed_and_saved(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    graph = MaseGraph(perceptron())
    _, info = count_operations_analysis_pass(graph, {**ARGS, "save_path": path})
    printed = capsys.readouterr().out
    assert printed == path.read_text() == report_counts(info) + "\n"
    assert "| _1 " in printed
    assert "1,024" in printed
    assert printed.endswith("Per sample, counted on a batch of 2.\n")
    assert "Backward" not in printed


def test_the_table_is_not_printed_unless_wanted(capsys: Any) -> None:
    count_operations_analysis_pass(MaseGraph(perceptron()), {**ARGS, "report": False})
    assert capsys.readouterr().out == ""


def test_the_table_says_what_is_missing() -> None:
    graph = MaseGraph(nn.Sequential(nn.Upsample(scale_factor=2)))
    pass_args = {"dummy_in": {"input": torch.zeros(3, 5, 4)}, "report": False, "backward": True}
    table = report_counts(count_operations_analysis_pass(graph, pass_args)[1])
    assert table.endswith("Not counted: _0 (interpolate).")
    assert " ? |" in table
    assert "Backward FLOPs" in table


def test_a_misspelt_argument_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'backward'"):
        count_operations_analysis_pass(MaseGraph(perceptron()), {"backwards": True})
