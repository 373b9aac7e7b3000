"""The text of a circuit, simulated and proved with the tools that hardware people use."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from circuits import needs
from lowering_nets import example, integer, quantised

from chop.errors import ConfigError, GraphError
from chop.export import EXPORT_TARGETS
from chop.export.exporting import export
from chop.export.rows import checked_rows
from chop.export.verilog import bench, synthesis, target
from chop.export.verilog.emit import BusPort
from chop.export.verilog.prove import RoundingShape, prove_roundings
from chop.export.verilog.target import CIRCUIT, Hardware, check_verilog, write_verilog
from chop.lowering import IntegerProgram, lower
from chop.lowering.program import Requantise

SMALL = integer(4, 2, 3, 2)


@pytest.fixture(scope="module")
def program() -> IntegerProgram:
    rules = dict.fromkeys(("linear", "batch_norm1d"), SMALL)
    return lower(example("jsc-tiny", rules=rules)[0])


@pytest.fixture
def icarus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "simulator_found", lambda: "iverilog")


@needs("verilator")
def test_verilator_finds_no_fault_and_2000_equal_rows(
    program: IntegerProgram, tmp_path: Path
) -> None:
    done = export(program, "verilog", tmp_path / "v", options=Hardware(stages=2, stream=True))
    assert done.verified_rows == 2000
    assert done.manifest["checked_with"].startswith("Verilator 5")
    assert done.manifest["circuit"]["latency_cycles"] == 2
    names = {path.name for path in done.folder.iterdir()}
    assert {"top.sv", "primitives.sv", "layer_seq_blocks_2.sv", "top_axis.sv"} <= names
    assert {"bench.sv", "bench.cpp", "rows.hex", "expected.hex", "manifest.json"} <= names
    assert "_raised_" in (done.folder / "primitives.sv").read_text()
    modules = [name for name in names if name.endswith(".sv") and name != "bench.sv"]
    command = ["verilator", "--lint-only", "-Wall", "--top-module", "top_axis", *sorted(modules)]
    lint = subprocess.run(command, cwd=done.folder, capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stderr) == (0, "")


@needs("iverilog")
@pytest.mark.usefixtures("icarus")
@pytest.mark.parametrize(("name", "stages"), [("branches", 3), ("words", 0), ("words", None)])
def test_icarus_finds_equal_rows(name: str, stages: int | None, tmp_path: Path) -> None:
    graph, _ = example(name, rules={"linear": SMALL, "batch_norm1d": SMALL})
    done = export(graph, "verilog", tmp_path / "v", rows=300, options=Hardware(stages))
    assert done.manifest["checked_with"].startswith("Icarus Verilog")
    if stages is not None:
        assert done.manifest["circuit"]["latency_cycles"] == stages


def flipped_weight(folder: Path, program: IntegerProgram) -> None:
    """One bit of one weight, the smallest change that there is."""
    (place,) = (n for n, step in enumerate(program.steps) if type(step).__name__ == "Product")
    steps = list(program.steps)
    weight = steps[place].weight.copy()  # type: ignore[attr-defined]
    weight[2, 5] ^= 1
    steps[place] = replace(steps[place], weight=weight)
    write_verilog(replace(program, steps=tuple(steps)), folder, Hardware(stages=2))


def other_rounding(folder: Path, program: IntegerProgram) -> None:
    """Half-way goes up in place of to the even neighbour."""
    steps = [replace(step, rounding="half_up") if isinstance(step, Requantise) else step
             for step in program.steps]  # fmt: skip
    write_verilog(replace(program, steps=tuple(steps)), folder, Hardware(stages=2))


def register_too_many(folder: Path, program: IntegerProgram) -> None:
    """The circuit has three registers and says two."""
    write_verilog(program, folder, Hardware(stages=3))
    facts = json.loads((folder / CIRCUIT).read_text())
    (folder / CIRCUIT).write_text(json.dumps(facts | {"latency_cycles": 2}))


def wrong_valid(folder: Path, program: IntegerProgram) -> None:
    """Results come in time, and valid a cycle late."""
    write_verilog(program, folder, Hardware(stages=2))
    text = (folder / "top.sv").read_text()
    (folder / "top.sv").write_text(text.replace("valid_out = valid[1]", "valid_out = valid[0]"))


def changed_text(name: str, old: str, new: str) -> Callable[[Path, IntegerProgram], None]:
    """Other words in a file of a circuit with its wrapper."""

    def change(folder: Path, program: IntegerProgram) -> None:
        write_verilog(program, folder, Hardware(stages=2, stream=True))
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


ENABLED = "always @(posedge clk) if (enable)"
MUTATIONS = {
    "a flipped weight": flipped_weight,
    "another rounding": other_rounding,
    "a register too many": register_too_many,
    "a late valid": wrong_valid,
    "enable ignored in a layer": changed_text(
        "layer_seq_blocks_2.sv", ENABLED, "always @(posedge clk)"
    ),
    "enable ignored for valid": changed_text("top.sv", "else if (enable) valid", "else valid"),
    "a reset without effect": changed_text("top.sv", "if (reset) valid", "if (1'b0) valid"),
    "ready stuck high": changed_text("top_axis.sv", "s_axis_tready = enable", "s_axis_tready = 1"),
    "a beat doubled": changed_text("top_axis.sv", "spare_valid <= 1'b0;\n    end else", "end else"),
    "a beat dropped": changed_text("top_axis.sv", "if (~given_valid | m", "if (1'b1 | m"),
    "last of another row": changed_text("top_axis.sv", "if (enable) last", "last"),
}


@needs("iverilog")
@pytest.mark.usefixtures("icarus")
def test_every_mutation_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "prove_roundings", lambda *_: 0)  # it finds some of them itself
    rules = {"linear": SMALL, "batch_norm1d": SMALL, "relu": integer(4, 1)}
    program = lower(example("jsc-tiny", rules=rules)[0])
    rows = checked_rows(program, 300)
    folders = {name: tmp_path / str(place) for place, name in enumerate(MUTATIONS)}
    (right := tmp_path / "right").mkdir()
    write_verilog(program, right, Hardware(stages=2, stream=True))
    check_verilog(right, rows)
    for name, mutate in MUTATIONS.items():
        folders[name].mkdir()
        mutate(folders[name], program)
        match = "iverilog does not give what the engine does: 300 rows"
        with pytest.raises(GraphError, match=match):
            check_verilog(folders[name], rows)


@needs("yosys")
def test_roundings_are_proved_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    write_verilog(lower(example("branches", rules={"linear": SMALL})[0]), tmp_path)
    facts = json.loads((tmp_path / CIRCUIT).read_text())
    shapes = [RoundingShape(**each) for each in facts["roundings"]]
    assert any(shape.even for shape in shapes)
    assert prove_roundings(tmp_path, shapes) == len(shapes)
    for change in ({"drop": shapes[0].drop + 1}, {"most": shapes[0].most - 1}):
        with pytest.raises(GraphError, match="a rounding is not what its format says"):
            prove_roundings(tmp_path, [replace(shapes[0], **change)])


@needs("yosys")
def test_synthesis_is_in_the_manifest_and_the_estimate_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesis, "PLACERS", ())
    torch.manual_seed(0)
    program = lower(quantised(torch.nn.Linear(6, 3), torch.zeros(2, 6), {"linear": SMALL}))
    hardware = Hardware(stages=2, synthesise=True)
    circuit = export(program, "verilog", tmp_path / "v", rows=0, options=hardware).manifest[
        "circuit"
    ]
    found = circuit["synthesis"]
    assert found["tool"].startswith("Yosys")
    assert found["xcup"]["registers"] == circuit["registers"]
    assert found["xcup"]["luts"] <= found["xcup"]["lut_sites"]
    assert circuit["estimated_luts"] == pytest.approx(found["xcup"]["luts"], rel=0.2)
    assert found["ecp5"]["carries"] > 0


def test_rows_as_bits() -> None:
    ports = [BusPort("input0", 3, 4, True), BusPort("input1", 1, 9, False)]
    text = bench.hex_rows(ports, [np.array([[1, -1, 7], [0, 0, -8]]), np.array([[300], [5]])])
    assert text == "12c7f1\n005800\n"


def test_without_a_simulator(
    program: IntegerProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="neither verilator nor iverilog was found"):
        export(program, "verilog", tmp_path / "v")
    assert not (tmp_path / "v").exists()
    assert export(program, "verilog", tmp_path / "v", rows=0).verified_rows == 0
    with pytest.raises(ConfigError, match="yosys was not found"):
        export(program, "verilog", rows=0, options=Hardware(synthesise=True))
    assert "verilog" in EXPORT_TARGETS


@needs("iverilog")
@pytest.mark.usefixtures("icarus")
def test_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 4)
    layer.weight.data = torch.tensor([[1.0, 0, 0], [0, -0.5, 0], [0, 0, 0], [0.5, 0, 0.25]])
    layer.bias.data = torch.tensor([0.0, 0.5, -0.75, 0.0])
    graph = quantised(layer, torch.zeros(2, 3), {"linear": SMALL})
    for stages in (0, 2):
        done = export(graph, "verilog", tmp_path / "v", rows=100, options=Hardware(stages))
        assert done.verified_rows == 100
