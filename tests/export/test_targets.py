"""Export targets: each is registered where it is defined, and each can write every step."""

from pathlib import Path
from typing import Any

import pytest
from lowering_nets import example

from chop.catalogue import read_catalogue
from chop.errors import ConfigError
from chop.export import EXPORT_TARGETS, export, export_target
from chop.export.targets import ExportTarget, TargetOptions, WrittenFiles, target_options
from chop.export.verilog.target import Hardware
from chop.lowering.engine import kernel
from chop.lowering.program import STEPS, IntegerProgram
from chop.lowering.ranges import bounds


@pytest.mark.parametrize("name", sorted(EXPORT_TARGETS))
def test_every_step_can_be_written_in_every_form(name: str) -> None:
    assert EXPORT_TARGETS[name].lacking_steps == []


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_every_step_can_be_computed_and_has_a_range(step: type[Any]) -> None:
    assert kernel.dispatch(step) is not kernel.dispatch(object)
    if step.__name__ != "Constant":  # its codes are its range
        assert bounds.dispatch(step) is not bounds.dispatch(object)


def test_a_step_that_a_writer_lacks_is_named() -> None:
    from functools import singledispatch

    from chop.lowering import program

    @singledispatch
    def write(step: program.Step) -> None:
        raise NotImplementedError

    for kind in STEPS.values():
        if kind is not program.Pool:
            write.register(kind, lambda step: None)
    target = ExportTarget(lambda *_: WrittenFiles(), None, TargetOptions, write, lambda: None)
    assert target.lacking_steps == ["Pool"]


def test_all_targets_are_in_the_catalogue_with_a_line_each() -> None:
    assert read_catalogue()["targets"] == EXPORT_TARGETS.descriptions()
    assert all(EXPORT_TARGETS.descriptions().values())


def test_a_target_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXPORT_TARGETS, "_entries", dict(EXPORT_TARGETS._entries))

    @export_target("listing")
    def write(program: IntegerProgram, options: TargetOptions, folder: Path) -> WrittenFiles:
        """The program as text."""
        (folder / "program.txt").write_text(str(program))
        return WrittenFiles(
            {"lines": len(str(program).splitlines())}, {"program.txt": "it is text"}
        )

    write.check(lambda folder, rows, options: "eyes")
    graph, _ = example("jsc-tiny")
    done = export(graph, "listing", tmp_path / "text", rows=10)
    assert done.manifest["checked_with"] == "eyes"
    assert done.manifest["lines"] > 3
    assert "program.txt: not compared, as it is text" in done.said


def test_settings_of_another_target_are_refused() -> None:
    assert target_options("verilog", None, {"stages": 2}) == Hardware(stages=2)
    assert target_options("verilog", Hardware(stages=2), {}) == Hardware(stages=2)
    with pytest.raises(ConfigError, match="settings of hardware are for verilog, not for onnx"):
        target_options("onnx", None, {"stages": 2})
    with pytest.raises(ConfigError, match="settings of hardware are for verilog, not for onnx"):
        target_options("onnx", Hardware(), {})
    with pytest.raises(ConfigError, match="unknown setting 'stage'"):
        target_options("verilog", None, {"stage": 2})
    with pytest.raises(ConfigError, match="options or settings by name, not both"):
        target_options("verilog", Hardware(), {"stages": 2})
