"""The passes of lab 4, the metrics of searches and the command, each on a small network."""

from pathlib import Path
from typing import Any

import pytest
from circuits import needs
from lowering_nets import example, integer

import chop.passes as passes
from chop.errors import ConfigError
from chop.export.verilog import bench
from chop.ir.graph.mase_graph import metadata_of
from chop.lowering import lower, save_program

RULES = dict.fromkeys(("linear", "batch_norm1d"), integer(4, 2, 3, 2))


def test_hardware_metadata_is_the_share_of_each_node() -> None:
    graph, _ = example("jsc-new", rules=RULES)
    graph, info = passes.add_hardware_metadata_analysis_pass(graph, {"stages": 4})
    assert info["latency_cycles"] == 4
    shares = {
        node.name: metadata_of(node).parameters["hardware"]["luts"]
        for node in graph.nodes
        if metadata_of(node).parameters["hardware"]
    }
    assert shares == info["nodes"]
    assert sum(shares.values()) == pytest.approx(info["luts"], abs=len(shares))
    assert shares["seq_blocks_5"] > shares["seq_blocks_2"] > 0


@needs("iverilog")
def test_the_pass_emits_what_was_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "simulator_found", lambda: "iverilog")
    graph, _ = example("jsc-tiny", rules=RULES)
    same, info = passes.emit_verilog_top_transform_pass(
        graph, {"project_dir": tmp_path, "stages": 1, "rows": 50}
    )
    assert same is graph
    assert info["verified"]["rows"] == 50
    assert (tmp_path / "hardware" / "rtl" / "top.sv").is_file()
    with pytest.raises(ConfigError, match="stages"):
        passes.emit_verilog_top_transform_pass(graph, {"project_dir": tmp_path, "stages": -1})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from chop.cli import main

    save_program(lower(example("jsc-tiny", rules=RULES)[0]), tmp_path / "program")
    words = ["export", "--load", str(tmp_path / "program"), "--rows", "0", "--output"]
    assert main([*words, str(tmp_path / "v"), "--to", "verilog", "--stages", "2"]) == 0
    assert "after 2 cycles" in (tmp_path / "v" / "top.sv").read_text()
    assert main([*words, str(tmp_path / "w"), "--to", "c", "--clock-ns", "5"]) == 2
    assert "settings of hardware are for verilog, not for c" in capsys.readouterr().err


def test_a_search_can_measure_circuits() -> None:
    from chop.search.runners import HW_RUNNERS

    class Given:
        graph, _ = example("jsc-tiny", rules=RULES)

    runner = HW_RUNNERS["circuit"]
    given: Any = Given()
    found = runner(given, runner.parse({"stages": 3}, "test"))
    assert found["latency_cycles"] == 3
    assert 50 < found["luts"] < 1000
