"""C on simulated devices: the engine's codes, bit for bit, and what it takes there."""

from dataclasses import replace
from pathlib import Path

import pytest
from circuits import needs
from lowering_nets import example, integer, quantised
from torch import manual_seed, nn, rand_like, randn

from chop.errors import ConfigError, GraphError
from chop.export import EXPORT_TARGETS, export
from chop.export.c import source as c_source
from chop.export.c.boards import devices
from chop.export.c.boards.devices import DEVICES, TooSmallDeviceError, run_on
from chop.export.c.costs import FORMS
from chop.export.c.entries import FloatEntries
from chop.export.c.target import float_rows
from chop.export.rows import checked_rows
from chop.lowering import IntegerProgram, lower
from chop.lowering.program import Requantise

ARM = needs("arm-none-eabi-gcc", "qemu-system-arm")


@pytest.fixture(scope="module")
def network() -> IntegerProgram:
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3, stride=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9, 3),
    )  # fmt: skip
    rules = {name: integer(8, 4, 8, 6) for name in ("conv2d", "linear")}
    return lower(quantised(model, randn(2, 3, 14, 14), rules))


@ARM
def test_rows_are_equal_on_every_device_that_is_there(
    network: IntegerProgram, tmp_path: Path
) -> None:
    done = export(network, "c", tmp_path / "c", rows=100, qemu=True)
    assert "100 rows on simulated cortex-m0plus, cortex-m3, cortex-m4, cortex-m33" in str(
        done.manifest["checked_with"]
    )
    found = done.manifest["c"]["devices"]
    assert found["cortex-m4"]["instructions"] < found["cortex-m3"]["instructions"]
    assert found["cortex-m3"]["instructions"] < found["cortex-m0plus"]["instructions"]
    assert 2000 < found["cortex-m4"]["flash_bytes"] < 6000
    assert 50 < found["cortex-m4"]["stack_bytes"] < 500


@ARM
def test_dsp_instructions_change_no_bit(network: IntegerProgram, tmp_path: Path) -> None:
    EXPORT_TARGETS["c"](network, tmp_path)
    rows = checked_rows(network, 10)
    ran = [
        run_on(DEVICES["cortex-m4"], tmp_path, "model", network, rows.flat_codes.tolist(),
               defines=defines)
        for defines in ((), ("MODEL_PORTABLE",))
    ]  # fmt: skip
    assert (ran[0].codes == rows.flat_outputs).all()
    assert (ran[1].codes == rows.flat_outputs).all()
    assert ran[0].instructions < 0.9 * ran[1].instructions


@ARM
@pytest.mark.parametrize("form", ["rows", "packed 4", "sparse", "code"])
def test_costs_are_those_of_the_compiler(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 24))
    for layer in (model[0], model[2]):
        layer.weight.data *= (rand_like(layer.weight) < 0.3) * 4
    rules = {"linear": integer(8, 4, 4, 3, rounding="half_up")}
    program = lower(quantised(model, randn(2, 40), rules))
    monkeypatch.setattr(c_source, "choose_forms", lambda all_of, _: dict.fromkeys(all_of, form))
    EXPORT_TARGETS["c"](program, tmp_path)
    rows = checked_rows(program, 2)
    ran = run_on(DEVICES["cortex-m4"], tmp_path, "model", program, rows.flat_codes.tolist())
    assert (ran.codes == rows.flat_outputs).all()
    found, costs = c_source.matrices(c_source.simplified(program)).values(), FORMS[form]
    flash = sum(map(costs.flash, found)) + max(map(costs.functions, found))
    assert ran.instructions == pytest.approx(sum(map(costs.instructions, found)), rel=0.25)
    assert ran.flash_bytes == pytest.approx(flash, rel=0.25)


@ARM
def test_wrong_codes_on_a_device_are_refused(
    network: IntegerProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tuple(
        replace(step, rounding="half_up") if isinstance(step, Requantise) else step
        for step in network.steps
    )
    EXPORT_TARGETS["c"](replace(network, steps=steps), tmp_path)
    from chop.export.c.target import COptions, check_on_devices

    with pytest.raises(GraphError, match="differ from the engine"):
        check_on_devices(tmp_path, checked_rows(network, 100), COptions(qemu=True))


def test_without_any_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = devices.shutil.which
    monkeypatch.setattr(
        devices.shutil, "which", lambda name: which(name) if name in ("cc", "ld") else None
    )
    graph, _ = example("jsc-tiny")
    with pytest.raises(ConfigError, match="no device can be simulated: install arm-none-eabi-gcc"):
        export(graph, "c", tmp_path / "c", rows=10, qemu=True)


AVR = needs("avr-gcc", "simavr")


@AVR
def test_an_atmega_runs_the_smallest_network(tmp_path: Path) -> None:
    program = lower(example("jsc-tiny")[0])
    EXPORT_TARGETS["c"](program, tmp_path)
    rows = checked_rows(program, 100)
    features, wanted = float_rows(rows, FloatEntries(program))
    device = DEVICES["atmega328"]
    ran = run_on(device, tmp_path, "model", program, rows.flat_codes.tolist(),
                 features.splitlines())  # fmt: skip
    assert (ran.codes == rows.flat_outputs).all()
    assert ran.scores == wanted
    assert 1000 < ran.instructions < 20_000
    assert ran.flash_bytes < 6000


@AVR
def test_a_device_that_is_too_small_is_named(network: IntegerProgram, tmp_path: Path) -> None:
    EXPORT_TARGETS["c"](network, tmp_path)
    rows = checked_rows(network, 1)
    with pytest.raises(TooSmallDeviceError, match=r"does not fit: it needs 3,\d+ bytes of memory"):
        run_on(DEVICES["atmega328"], tmp_path, "model", network, rows.flat_codes.tolist())
