import csv
from pathlib import Path

import pytest
from torch import nn
from transform_nets import Jsc, JscNew, Mixed, graph_of, rule

from chop.errors import ChopError, ConfigError
from chop.logger import set_logging_verbosity
from chop.passes.graph import (
    conv_bn_fusion_transform_pass,
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.utils import deepcopy_mase_graph

SEED_001 = """
| Original type   | OP           |   Total |   Changed |   Unchanged |
|-----------------+--------------+---------+-----------+-------------|
| BatchNorm1d     | batch_norm1d |       1 |         0 |           1 |
| Linear          | linear       |       1 |         1 |           0 |
| ReLU            | relu         |       2 |         0 |           2 |
| output          | output       |       1 |         0 |           1 |
| x               | placeholder  |       1 |         0 |           1 |"""

SEED_000 = """
| Original type   | OP           |   Total |   Changed |   Unchanged |
|-----------------+--------------+---------+-----------+-------------|
| BatchNorm1d     | batch_norm1d |       4 |         0 |           4 |
| Linear          | linear       |       3 |         3 |           0 |
| ReLU            | relu         |       4 |         0 |           4 |
| output          | output       |       1 |         0 |           1 |
| x               | placeholder  |       1 |         0 |           1 |"""

LINEAR = {"by": "type", "default": {"config": {"name": None}}, "linear": rule("integer")}


@pytest.mark.parametrize(
    ("model", "expected", "macs"),
    [(Jsc(16, 5), SEED_001, 8 * 80), (JscNew(), SEED_000, 8 * 232)],
    ids=["001", "000"],
)
def test_histograms_of_the_seeds(
    model: nn.Module, expected: str, macs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    mg = graph_of(model, 8, 16)
    ori_mg = deepcopy_mase_graph(mg)
    mg, _ = quantize_transform_pass(mg, LINEAR)
    set_logging_verbosity("info")
    capsys.readouterr()
    graph, info = summarize_quantization_analysis_pass(ori_mg, mg)
    printed = capsys.readouterr().out
    rounded = (
        f"MACs with both operands rounded: 100.0% ({macs:,} of {macs:,}); "
        "with one of the two: 0.0%."
    )
    assert printed == (
        f"INFO     Quantized graph histogram:\nINFO     {expected}\nINFO     {rounded}\n"
    )
    assert graph is mg
    assert sum(row["Total"] for row in info["histogram"]) == len(mg.nodes)


def test_both_ways_of_calling_write_the_same_files(tmp_path: Path) -> None:
    mg = graph_of(Jsc(16, 5), 8, 16)
    ori_mg = deepcopy_mase_graph(mg)
    mg, _ = quantize_transform_pass(mg, LINEAR)
    summarize_quantization_analysis_pass(ori_mg, mg, save_dir=tmp_path / "a")
    args = {"save_dir": str(tmp_path / "b"), "original_graph": ori_mg}
    summarize_quantization_analysis_pass(mg, args)
    for name in ("quantize_table.csv", "quantize_histogram.csv"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()
    rows = list(csv.reader((tmp_path / "a" / "quantize_table.csv").read_text().splitlines()))
    assert rows[0][1:] == [
        "Ori name", "New name", "MASE_TYPE", "Mase_OP", "Original type", "Quantized type",
        "Changed",
    ]  # fmt: skip
    assert rows[4] == [
        "3", "seq_blocks_2", "seq_blocks_2", "module_related_func", "linear", "Linear",
        "LinearInteger", "True",
    ]  # fmt: skip
    rows = list(csv.reader((tmp_path / "a" / "quantize_histogram.csv").read_text().splitlines()))
    assert rows[:2] == [
        ["Original type", "OP", "Total", "Changed", "Unchanged"],
        ["BatchNorm1d", "batch_norm1d", "1", "0", "1"],
    ]


def test_function_nodes_count_as_changed() -> None:
    mg = graph_of(Mixed(), 5, 6)
    ori_mg = deepcopy_mase_graph(mg)
    mg, _ = quantize_transform_pass(mg, {"by": "type", "relu": rule("integer", "data_in")})
    _, info = summarize_quantization_analysis_pass(ori_mg, mg)
    changed = {row["New name"]: row["Quantized type"] for row in info["nodes"] if row["Changed"]}
    assert changed == {"relu": "relu_integer", "relu_1": "relu_integer"}


def test_nodes_are_paired_by_name() -> None:
    mg = graph_of(nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.Conv1d(2, 3, 1)), 2, 2, 4)
    ori_mg = deepcopy_mase_graph(mg)
    mg, _ = conv_bn_fusion_transform_pass(mg)
    assert len(mg.nodes) == len(ori_mg.nodes) - 1
    _, info = summarize_quantization_analysis_pass(ori_mg, mg)
    assert all(row["Ori name"] == row["New name"] for row in info["nodes"])
    assert not any(row["Changed"] for row in info["nodes"])
    with pytest.raises(ChopError, match="no node '_1'"):
        summarize_quantization_analysis_pass(mg, ori_mg)


def test_wrong_arguments() -> None:
    mg = graph_of(Jsc(16, 5), 8, 16)
    with pytest.raises(ConfigError, match="original_graph"):
        summarize_quantization_analysis_pass(mg)
    with pytest.raises(ConfigError, match="did you mean 'save_dir'"):
        summarize_quantization_analysis_pass(mg, {"original_graph": mg, "save_dri": "x"})


def test_the_summary_tells_what_part_of_the_macs_is_rounded() -> None:
    mg = graph_of(Jsc(16, 8, 5), 8, 16)
    ori_mg = deepcopy_mase_graph(mg)
    mg, _ = quantize_transform_pass(mg, {"by": "name", "seq_blocks_2": rule("integer")})
    _, info = summarize_quantization_analysis_pass(ori_mg, mg)
    share = 16 * 8 / (16 * 8 + 8 * 5)
    assert info["macs"] == {
        "macs": 8 * 168,
        "rounded_macs": 8 * 128,
        "half_rounded_macs": 0,
        "rounded_share": pytest.approx(share),
    }
    _, info = summarize_quantization_analysis_pass(mg, ori_mg)
    assert info["macs"]["rounded_share"] == 0.0
