"""What C takes before it is flashed: estimates, compilers, the terminal, the page and searches."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from circuits import needs
from lowering_nets import example, integer, quantised
from torch import manual_seed, nn, randn

import chop
from chop.cli import main
from chop.errors import ConfigError
from chop.export import EXPORT_TARGETS, export
from chop.export.c.boards import devices
from chop.export.c.boards.devices import DEVICES, TooSmallDeviceError, run_on
from chop.export.c.boards.estimate import estimate_cost
from chop.export.c.boards.report import device_costs, largest_layer, live_bytes
from chop.export.c.source import c_program
from chop.export.c.target import COptions
from chop.export.rows import checked_rows
from chop.lowering import IntegerProgram, lower, save_program
from chop.results.devices import CodeReport

ARM = needs("arm-none-eabi-gcc", "qemu-system-arm")


@pytest.fixture(scope="module")
def network() -> IntegerProgram:
    manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3),
        nn.ReLU(), nn.Flatten(), nn.Linear(12 * 25, 10),
    )  # fmt: skip
    rules = {name: integer(8, 4, 8, 6) for name in ("conv2d", "linear")}
    return lower(quantised(model, randn(2, 3, 14, 14), rules))


@ARM
def test_an_estimate_is_near_what_compiler_and_simulator_say(
    network: IntegerProgram, tmp_path: Path
) -> None:
    EXPORT_TARGETS["c"](network, tmp_path)
    made = c_program(network)
    cost, codes = estimate_cost(made), checked_rows(network, 2).flat_codes.tolist()
    layers = len(made.layers) + 1
    ran = run_on(DEVICES["cortex-m4"], tmp_path, "model", network, codes, layers=layers)
    assert ran.instructions == pytest.approx(cost.instructions, rel=0.15)
    assert ran.flash_bytes == pytest.approx(cost.flash_bytes, rel=0.15)
    assert sum(ran.layers) == pytest.approx(ran.instructions, rel=0.02)
    for own, guess in zip(ran.layers, cost.layers, strict=True):
        assert own == pytest.approx(guess.instructions, rel=0.4, abs=200)


def test_layers_have_the_memory_that_lives_while_they_run(network: IntegerProgram) -> None:
    made = c_program(network)
    live = [live_bytes(made, place) for place in range(len(made.layers))]
    assert max(live) <= made.scratch_bytes
    assert live[0] == max(live)
    assert largest_layer(made, "memory").startswith("layer 0 (")
    assert estimate_cost(made).ram_bytes == made.scratch_bytes + 3 * 14 * 14 + 10 * 4


@needs("avr-gcc", "simavr")
def test_a_device_that_is_too_small_says_by_how_much_and_which_layer(
    network: IntegerProgram, tmp_path: Path
) -> None:
    EXPORT_TARGETS["c"](network, tmp_path)
    found = device_costs(c_program(network), tmp_path, "model", simulate=True)["atmega328"]
    assert "more than the 2,048 that there are; layer 0 (" in found
    assert issubclass(TooSmallDeviceError, Exception)


@needs("avr-gcc")
def test_a_table_that_no_compiler_of_16_bits_takes_is_a_device_that_is_too_small(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(nn.Linear(250, 140), nn.ReLU(), nn.Linear(140, 2))
    program = lower(chop.quantize(model, width=8, calibrate=[randn(8, 250)]).graph)
    EXPORT_TARGETS["c"](program, tmp_path)
    found = device_costs(c_program(program), tmp_path, "model", simulate=False)["atmega328"]
    assert re.match(r"does not fit: it needs at least 3\d,\d{3} bytes of flash, ", found)
    assert "; layer 0 (" in found


@needs("cc")
def test_the_command_prints_a_row_for_each_layer_and_compiler(
    network: IntegerProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_program(network, tmp_path / "program")
    given = ["export", "--load", str(tmp_path / "program"), "--to", "c", "--rows", "20"]
    assert main([*given, "--output", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr().out
    assert "cortex-m4, by estimate" in shown
    assert "host" in shown
    report = CodeReport.of(json.loads((tmp_path / "c" / "manifest.json").read_text()))
    assert len(report.memory.layers) == len(c_program(network).layers)
    assert main([*given, "--output", str(tmp_path / "c"), "--name", "other"]) == 0
    assert (tmp_path / "c-v1" / "other.h").exists()  # the other export is left alone
    assert not (tmp_path / "c" / "other.h").exists()


def test_verify_takes_the_word_qemu_and_says_what_is_missing(
    network: IntegerProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    which = devices.shutil.which
    monkeypatch.setattr(
        devices.shutil, "which", lambda name: which(name) if name in ("cc", "size") else None
    )
    save_program(network, tmp_path / "program")
    given = ["export", "--load", str(tmp_path / "program"), "--to", "c", "--rows", "5"]
    assert main([*given, "--verify", "qemu", "--output", str(tmp_path / "c")]) == 2
    assert "no device can be simulated: install arm-none-eabi-gcc" in capsys.readouterr().err
    assert main([*given, "--verify", "paper"]) == 2
    assert "no choice 'paper': known are file, qemu" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["2nd", "a-b", "int", "näh", ""])
def test_a_name_that_is_not_one_of_c(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a name for C: take a letter"):
        COptions(name=name)


def test_without_a_compiler(
    network: IntegerProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no C compiler 'cc' was found, and the check needs it"):
        export(network, "c", tmp_path / "c", rows=5)
    done = export(network, "c", tmp_path / "c", rows=0, report=True)
    assert done.manifest["c"]["devices"]["host"] == "cc is not installed"


def test_a_search_can_measure_small_devices(network: IntegerProgram) -> None:
    from chop.search.runners import HW_RUNNERS

    runner = HW_RUNNERS["small_device"]
    sizes = [
        runner(given, runner.parse({"optimise": "size"}, "test"))
        for given in (
            SimpleNamespace(program=network),
            SimpleNamespace(program=lower(example("jsc-tiny")[0])),
        )
    ]
    assert sizes[0].keys() == {"flash_bytes", "ram_bytes", "instructions"}
    assert all(sizes[0][name] > 5 * sizes[1][name] > 0 for name in ("ram_bytes", "instructions"))


def test_the_page_draws_the_plan_of_memory(network: IntegerProgram, tmp_path: Path) -> None:
    from chop.runs import open_run
    from chop.views.page import build_page

    folder = tmp_path / "run" / "software" / "transform"
    folder.mkdir(parents=True)
    (folder.parent / "run_transform.json").write_text("{}")
    done = export(network, "c", folder / "export_c", rows=0)
    page = build_page(open_run(tmp_path / "run"))
    assert "Plan of the scratch memory" in page
    buffers: list[dict[str, Any]] = done.manifest["c"]["memory"]["buffers"]
    assert all(f"{each['bytes']:,} bytes at {each['offset']:,}" in page for each in buffers)
