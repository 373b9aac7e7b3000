"""The passes of lab 4, the metrics of searches and the command, each on a small network."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from circuits import needs
from lowering_nets import example, integer

import chop.passes as passes
from chop.cli import main
from chop.errors import ConfigError, GraphError
from chop.export.verilog import bench
from chop.ir.graph.mase_graph import MaseGraph, metadata_of
from chop.lowering import lower, save_program
from chop.models.toys.toy import ToyNet

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


def test_hardware_metadata_of_a_float_graph_says_what_is_missing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = MaseGraph(ToyNet(image_size=(1, 2, 2), num_classes=2))
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(
        graph, {"dummy_in": {"x": torch.ones(1, 4)}}
    )
    graph, info = passes.add_hardware_metadata_analysis_pass(graph, {})
    assert "floating point" in info["reason"]
    assert info["nodes"] == {}
    assert info["reason"] in caplog.text
    graph, table = passes.report_node_hardware_type_analysis_pass(graph, {})
    assert table["luts"] == {}
    assert "LUTs" in capsys.readouterr().out


def test_hardware_metadata_is_reported_and_verified(capsys: pytest.CaptureFixture[str]) -> None:
    graph, _ = example("jsc-tiny", rules=RULES)
    graph, cost = passes.add_hardware_metadata_analysis_pass(graph, {})
    graph, table = passes.report_node_hardware_type_analysis_pass(graph, pass_args={})
    assert table["luts"] == cost["nodes"]
    assert "seq_blocks_2" in capsys.readouterr().out
    passes.verify_hardware_metadata_analysis_pass(graph)
    metadata_of(next(iter(graph.nodes))).parameters["hardware"]["luts"] = -1
    with pytest.raises(GraphError, match="-1 is not a number of look-up tables"):
        passes.verify_hardware_metadata_analysis_pass(graph)


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

    save_program(lower(example("jsc-tiny", rules=RULES)[0]), tmp_path / "program")
    words = ["export", "--load", str(tmp_path / "program"), "--rows", "0", "--output"]
    assert main([*words, str(tmp_path / "v"), "--to", "verilog", "--stages", "2"]) == 0
    assert "after 2 cycles" in (tmp_path / "v" / "top.sv").read_text()
    assert main([*words, str(tmp_path / "w"), "--to", "c", "--clock-ns", "5"]) == 2
    assert "settings of hardware are for verilog, not for c" in capsys.readouterr().err


def test_a_circuit_of_a_front_stands_beside_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from chop.runs import open_run
    from chop.views.page import build_page

    search = tmp_path / "run" / "software" / "search_ckpts"
    graph, _ = example("jsc-tiny", rules=RULES)
    passes.save_mase_graph_interface_pass(graph, search / "graphs" / "epoch_7")
    trials = [
        {"number": epoch, "state": "COMPLETE", "value": 0.7, "user_attrs_software_metrics":
         {"accuracy": 0.7}, "user_attrs_sampled_config": {"epoch": epoch}}
        for epoch in (7, 8)
    ]  # fmt: skip
    (search / "log.json").write_text(json.dumps({str(n): each for n, each in enumerate(trials)}))
    best = {str(n): {"number": each["number"]} for n, each in enumerate(trials)}
    (search / "best.json").write_text(json.dumps(best))
    assert main(["export", "--load", str(tmp_path / "run"), "--to", "verilog"]) == 2
    assert "1 graphs, of its whole front: name one, such as" in capsys.readouterr().err

    words = ["export", "--load", str(search / "graphs" / "epoch_7"), "--to", "verilog"]
    assert main([*words, "--verify", "--rows", "0"]) == 2
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main([*words, "--verify"]) == 2
    assert "neither verilator nor iverilog was found" in capsys.readouterr().err
    assert main([*words, "--stages", "3"]) == 0
    assert "not checked, as there is no simulator" in capsys.readouterr().out
    manifest = json.loads((search / "export_verilog_epoch_7" / "manifest.json").read_text())
    assert manifest["verified"]["rows"] == 0

    page = build_page(open_run(tmp_path / "run"))
    assert "Could not be shown" not in page
    front = page[page.index("<h3>The front</h3>") :]
    estimate = manifest["circuit"]["estimated_luts"]
    first, second = (
        re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><td.*?</tr>", front)[:2]
    )
    cells = ["not checked", "3", f"{estimate}"]
    assert (first[-4:-1], second[-4:-1]) == (cells, ["", "", ""])
    assert "Clock on ECP5, MHz" not in front  # nothing was synthesised


def test_a_whole_front_is_exported_with_a_reason_for_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = tmp_path / "run" / "software" / "search_ckpts"
    graph, _ = example("jsc-tiny", rules=RULES)
    passes.save_mase_graph_interface_pass(graph, search / "graphs" / "epoch_7")
    found = {"state": "COMPLETE", "value": 0.7, "user_attrs_software_metrics": {"accuracy": 0.7}}
    log = {str(n): {"number": n, **found} for n in (0, 1)}
    (search / "log.json").write_text(json.dumps(log))
    (search / "best.json").write_text(json.dumps({str(n): {"number": n} for n in (0, 1)}))
    for place, epoch in enumerate((7, 8)):
        (search / f"best_{place}.toml").write_text(f'load_name = "graphs/epoch_{epoch}"\n')
    words = ["export", "--load", str(tmp_path / "run"), "--to", "verilog", "--all", "--rows", "0"]
    assert main([*words, "--output", "circuits"]) == 2
    assert main(words) == 0
    said = capsys.readouterr().out
    manifest = json.loads((search / "export_verilog_epoch_7" / "manifest.json").read_text())
    first, second = (next(line for line in said.splitlines() if line.startswith(name))
                     for name in ("best_0", "best_1"))  # fmt: skip
    assert "accuracy 0.7 " in first
    assert str(manifest["circuit"]["estimated_luts"]) in first
    assert "none: " in second
    assert main([*words[:-2], "--rows", "0", "--most-luts", "3"]) == 2


def test_a_search_can_measure_circuits() -> None:
    from chop.search.runners import HW_RUNNERS

    runner = HW_RUNNERS["circuit"]
    given: Any = SimpleNamespace(program=lower(example("jsc-tiny", rules=RULES)[0]))
    found = runner(given, runner.parse({"stages": 3}, "test"))
    assert found["latency_cycles"] == 3
    assert 50 < found["luts"] < 1000


def test_the_report_shows_exports_and_a_damaged_manifest_costs_its_section(tmp_path: Path) -> None:
    from chop.runs import open_run
    from chop.views.page import build_page

    folder = tmp_path / "run" / "software" / "transform" / "export_verilog"
    folder.mkdir(parents=True)
    device = {"luts": 372, "lut_sites": 498, "registers": 38, "fmax_mhz": 162.2, "latency_ns": 6.2}
    synthesis = {"tool": "Yosys", "xcup": device, "ecp5": device}
    manifest: dict[str, Any] = {"form": "verilog", "verified": {"rows": 2000}}
    manifest["checked_with"] = "<b>Verilator</b>"
    manifest["circuit"] = {"latency_cycles": 1, "estimated_luts": 380, "synthesis": synthesis}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder.parent.parent / "run_transform.json").write_text("{}")
    page = build_page(open_run(tmp_path / "run"))
    assert "372 (498)" in page
    assert "&lt;b&gt;Verilator" in page
    assert "not compared</td>" in page  # a manifest of before does not tell
    manifest["verified"] |= {"compared": {"graph": 7, "file": 2000}, "distinct_outputs": 1}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    page = build_page(open_run(tmp_path / "run"))
    assert "7 rows</td>" in page
    assert "1: the network may be constant" in page
    manifest["verified"] |= {"compared": {}, "not_compared": {"graph": "float32 may round"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "not compared: float32 may round" in build_page(open_run(tmp_path / "run"))
    (folder / "manifest.json").write_text('{"form": 3}')
    damaged = build_page(open_run(tmp_path / "run"))
    assert "Could not be shown" in damaged
    assert "manifest.json" in damaged
