"""A bench for Verilator and Icarus that compares a circuit with rows of the engine, bit for bit.

Both ends wait at random, and a reset comes in between. What it drives is a pipeline with an enable,
a stream with valid and ready, or both.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop.errors import ConfigError, GraphError
from chop.export.tools import run_tool
from chop.export.verilog.emit import AXIS, BusPort, bus_wires, in_bytes
from chop.files import write_text
from chop.lowering.program import Codes

ROWS, EXPECTED = "rows.hex", "expected.hex"
VERILATOR = (
    "--cc", "--exe", "--build", "-Wall", "-j", "1", "--top-module", "bench",
    # Without the second the compiler needs minutes for one huge function (seen with Verilator
    # 5.006). Small files cost more: each reads a header with all wires, a second for 90,000 LUTs.
    "--output-split", "40000", "--output-split-cfuncs", "500",
)  # fmt: skip
BUILT_FAST = "OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"
PER_LAST = 3
"""Rows of a packet, for a wrapper whose beats are rows."""

CPP = """\
// The clock of bench.sv.
#include "Vbench.h"
#include "verilated.h"

int main() {
    Vbench bench;
    for (bench.clk = 0; !Verilated::gotFinish(); bench.clk = !bench.clk) bench.eval();
    bench.final();
}
"""

BENCH = """\
// Compares a circuit with {expected}, what the engine gives for {rows}.
/* verilator lint_off DECLFILENAME */
/* verilator lint_off WIDTH */
/* verilator lint_off UNUSEDSIGNAL */
/* verilator lint_off UNUSEDPARAM */
/* verilator lint_off BLKSEQ */
/* verilator lint_off VARHIDDEN */
`timescale 1ns / 1ns
{drivers}
`ifdef VERILATOR
module bench (input wire clk);
`else
module bench;
  reg clk = 0;
  always #1 clk = ~clk;
`endif
{duts}
  always @(posedge clk) if ({done}) begin
{report}
    $display("%0d rows, %0d differ, first %0d", {count}, {wrong}, {first});
    $finish;
  end
endmodule
"""

PIPELINE = """\
// Rows for a pipeline: first one in each cycle, then with pauses, rows and cycles alike, and a
// reset. Whatever happens, valid and the result must be those of a model of LATENCY registers.
module drive_rows #(parameter IN = 8, parameter OUT = 8, parameter COUNT = 1, parameter LATENCY = 1)
(
  input wire clk, output reg enable, output reg reset, output reg given, output reg [IN-1:0] data,
  input wire valid, input wire [OUT-1:0] result, output reg done, output integer wrong,
  output integer first
);
  localparam D = LATENCY > 0 ? LATENCY : 1;
  reg [IN-1:0] rows [0:COUNT-1];
  reg [OUT-1:0] wanted [0:COUNT-1];
  reg [D-1:0] held;
  integer index [0:D-1], next = 0, place, row, k;
  reg pausing = 0, expected, was_reset = 0;
  reg [31:0] noise = 32'h2545f491;
  initial begin
    $readmemh("{rows}", rows);
    $readmemh("{expected}", wanted);
    enable = 1; reset = 1; given = 0; data = 0; done = 0; wrong = 0; first = -1; held = 0;
  end
  always @(posedge clk) begin
    noise <= {{noise[30:0], noise[31] ^ noise[21] ^ noise[1] ^ noise[0]}};
    if (!reset && !done) begin
      expected = LATENCY == 0 ? given : held[D-1];
      row = LATENCY == 0 ? next : index[D-1];
      if ((LATENCY != 0 && valid !== expected) || (expected && result !== wanted[row])) begin
        wrong <= wrong + 1;
        if (first < 0) first <= expected ? row : 0;
      end
    end
    if (reset) held <= 0;
    else if (enable) begin
      held <= D == 1 ? given : {{held, given}};
      index[0] <= next;
      for (k = 1; k < D; k = k + 1) index[k] <= index[k-1];
    end
    place = next + (enable & given & !reset);
    enable <= LATENCY == 0 || !pausing || noise[3];
    reset <= pausing && !was_reset && place >= COUNT / 2 && LATENCY != 0;
    if (pausing && place >= COUNT / 2) was_reset <= 1;
    given <= place < COUNT && (!pausing || noise[9] | noise[14]);
    data <= place < COUNT && (!pausing || noise[9] | noise[14]) ? rows[place] : ~data;
    next <= place;
    if (place == COUNT && held == 0 && !given) begin
      if (pausing || LATENCY == 0) done <= 1;
      else begin next <= 0; pausing <= 1; end
    end
  end
endmodule
"""

STREAM = """\
// Beats for a stream: with pauses on both ends until SPOILT of them are in, then a reset; from the
// start FREE of them without pauses, then all with pauses. A beat that waits must not change.
module drive_stream #(
  parameter IN = 8, parameter OUT = 8, parameter SENT = 1, parameter COUNT = 1,
  parameter FREE_SENT = 1, parameter FREE_COUNT = 1, parameter SPOILT = 1,
  parameter LAST_IN = 3, parameter LAST_OUT = 3, parameter QUIET = 1000, parameter PAUSE = 64
) (
  input wire clk, output reg resetn, output reg s_valid, input wire s_ready,
  output reg [IN-1:0] s_data, output reg s_last,
  input wire m_valid, output reg m_ready, input wire [OUT-1:0] m_data, input wire m_last,
  output reg stuck, output reg done, output integer wrong, output integer first,
  output integer begun, output integer early, output integer ended
);
  reg [IN-1:0] rows [0:SENT-1];
  reg [OUT-1:0] wanted [0:COUNT-1];
  integer sent = 0, got = 0, place, phase = 0, quiet = 0, cycle = 0, most_in, most_out;
  reg pausing, waiting = 0, was_last, go, taken, given, no_give, no_take;
  reg [OUT-1:0] was;
  reg [31:0] noise = 32'h9e3779b9;
  initial begin
    $readmemh("{rows}", rows);
    $readmemh("{expected}", wanted);
    resetn = 0; s_valid = 0; s_data = 0; s_last = 0; m_ready = 0; begun = 0; early = 0; ended = 0;
    stuck = 0; done = 0; wrong = 0; first = -1;
  end
  always @(posedge clk) begin
    noise <= {{noise[30:0], noise[31] ^ noise[21] ^ noise[1] ^ noise[0]}};
    pausing = phase != 1;
    most_in = phase == 1 ? FREE_SENT : SENT;
    most_out = phase == 1 ? FREE_COUNT : COUNT;
    cycle <= cycle + 1;
    taken = resetn & s_valid & s_ready === 1'b1;
    given = resetn & m_ready & m_valid === 1'b1;
    place = sent + taken;
    sent <= place;
    // Each end has busy and lazy times: 256 cycles of few pauses, 256 of many; and long ones.
    no_give = cycle % (4 * PAUSE) < PAUSE
      | ~(cycle[8] ? noise[3] & noise[17] : noise[3] | noise[17]);
    no_take = cycle % (4 * PAUSE) >= 3 * PAUSE
      | ~(cycle[9] ? noise[7] & noise[23] : noise[7] | noise[23]);
    go = (!pausing | ~no_give) & place < most_in;
    m_ready <= !pausing | ~no_take;
    if (!s_valid | taken) begin
      s_valid <= go;
      s_data <= go ? rows[place] : ~s_data;
      s_last <= place % LAST_IN == LAST_IN - 1;
    end
    waiting <= resetn & m_valid === 1'b1 & !m_ready;
    was <= m_data;
    was_last <= m_last;
    if (resetn & !done & (m_valid === 1'bx
        | (waiting & (m_valid !== 1'b1 | m_data !== was | m_last !== was_last))
        | (given & (got >= most_out | m_data !== wanted[got < COUNT ? got : 0]
        | m_last !== (got % LAST_OUT == LAST_OUT - 1))))) begin
      wrong <= wrong + 1;
      if (first < 0) first <= got;
    end
    if (given) begin
      got <= got + 1;
      if (phase == 1 && got == LAST_OUT - 1) early <= cycle;
      if (phase == 1 && got == FREE_COUNT - 1) ended <= cycle;
    end
    if (phase == 1 && sent == 0) begun <= cycle;
    quiet <= taken | given | !resetn ? 0 : quiet + 1;
    if (got > most_out + 4) done <= 1;  // wrong, and there may be no end to it
    if (quiet > QUIET) begin stuck <= 1; done <= 1; wrong <= wrong + (wrong == 0); end
    if (!resetn) resetn <= cycle[2:0] == 7;
    else if ((phase == 0 && place >= SPOILT) | (phase == 1 && got == most_out && quiet == 99)) begin
      resetn <= 0; phase <= phase + 1; s_valid <= 0; sent <= 0; got <= 0; waiting <= 0;
    end else if (phase == 2 && got == most_out && quiet == 99) done <= 1;
  end
endmodule
"""


@dataclass(frozen=True)
class DrivenPart:
    """A circuit under test with what drives it, as text; its wires begin with its name."""

    name: str
    driver: str
    text: str
    report: str = ""
    """Statements of the bench at its end, such as those that print more than what was wrong."""


def pipeline_part(
    inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int, rows: int
) -> DrivenPart:
    """The module ``top`` of all layers at once, driven by rows."""
    reads, gives = (sum(port.bits for port in ports) for ports in (inputs, outputs))
    clocked = ".clk(clk), .enable(rows_enable), .reset(rows_reset), .valid_in(rows_given), "
    wires = [*bus_wires("rows_data", inputs), *bus_wires("rows_result", outputs)]
    text = f"""\
  wire rows_enable, rows_reset, rows_given, rows_valid, rows_done;
  wire [{reads - 1}:0] rows_data;
  wire [{gives - 1}:0] rows_result;
  wire integer rows_wrong, rows_first;
  drive_rows #(.IN({reads}), .OUT({gives}), .COUNT({rows}), .LATENCY({latency})) rows_driver (
    .clk(clk), .enable(rows_enable), .reset(rows_reset), .given(rows_given), .data(rows_data),
    .valid(rows_valid), .result(rows_result), .done(rows_done), .wrong(rows_wrong),
    .first(rows_first));
  top rows_dut (
    {clocked + ".valid_out(rows_valid), " if latency else ""}{", ".join(wires)});
"""
    return DrivenPart("rows", PIPELINE, text)


@dataclass(frozen=True)
class StreamBeats:
    """The drive of a stream: bits of a beat, beats in all, beats of a packet, for both ends."""

    bits: tuple[int, int]
    beats: tuple[int, int]
    packet: tuple[int, int]
    free: int
    """Packets without any pause."""
    spoilt: int
    """Beats that go in before the reset."""
    quiet: int
    """Cycles without a beat on either end after which it is stuck."""
    pause: int = 64
    """Cycles of a long pause of either end."""


def stream_part(module: str, ports: str, beats: StreamBeats, report: str = "") -> DrivenPart:
    """A module with valid and ready, driven by beats.

    Args:
        ports: the connections of the module, to the wires below.
    """
    (reads, gives), (sent, count), (pixels, scores) = beats.bits, beats.beats, beats.packet
    free = min(beats.free, sent // pixels)
    text = f"""\
  wire stream_resetn, stream_s_valid, stream_s_ready, stream_s_last, stream_done, stream_stuck;
  wire stream_m_valid, stream_m_ready, stream_m_last;
  wire [{reads - 1}:0] stream_s_data;
  wire [{gives - 1}:0] stream_m_data;
  wire integer stream_wrong, stream_first, stream_begun, stream_early, stream_ended;
  drive_stream #(.IN({reads}), .OUT({gives}), .SENT({sent}), .COUNT({count}),
    .FREE_SENT({free * pixels}), .FREE_COUNT({free * scores}), .SPOILT({beats.spoilt}),
    .LAST_IN({pixels}), .LAST_OUT({scores}), .QUIET({beats.quiet}),
    .PAUSE({beats.pause})) stream_driver (
    .clk(clk), .resetn(stream_resetn), .s_valid(stream_s_valid), .s_ready(stream_s_ready),
    .s_data(stream_s_data), .s_last(stream_s_last), .m_valid(stream_m_valid),
    .m_ready(stream_m_ready), .m_data(stream_m_data), .m_last(stream_m_last),
    .stuck(stream_stuck), .done(stream_done), .wrong(stream_wrong), .first(stream_first),
    .begun(stream_begun), .early(stream_early), .ended(stream_ended));
  {module} stream_dut ({ports});
"""
    return DrivenPart("stream", STREAM, text, report)


def wrapper_part(
    inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int, rows: int
) -> DrivenPart:
    """The module ``top_axis``, whose beats are rows."""
    wide = tuple(in_bytes(sum(port.bits for port in ports)) for ports in (inputs, outputs))
    ports = ", ".join(
        [".aclk(clk)", ".aresetn(stream_resetn)"]
        + [f".{side}_axis_t{each}(stream_{side}_{each})" for side in "sm"
           for each in ("data", "valid", "ready", "last")]
    )  # fmt: skip
    beats = StreamBeats(
        (wide[0], wide[1]),
        (rows, rows),
        (PER_LAST, PER_LAST),
        free=rows // PER_LAST,
        spoilt=-(-rows // 3),
        quiet=latency + 500,
    )
    return stream_part(AXIS, ports, beats)


def write_bench(folder: Path, parts: Sequence[DrivenPart], rows: int) -> None:
    """The bench, which prints how many rows differ, and its clock for Verilator."""
    files = {"rows": ROWS, "expected": EXPECTED}
    first = parts[-1]
    text = BENCH.format(
        **files,
        drivers="\n".join(part.driver.format(**files) for part in parts),
        duts="\n".join(part.text for part in parts),
        done=" & ".join(f"{part.name}_done" for part in parts),
        report="\n".join(part.report for part in parts if part.report),
        count=rows,
        wrong=" + ".join(f"{part.name}_wrong" for part in parts),
        first=f"{parts[0].name}_wrong ? {parts[0].name}_first : {first.name}_first",
    )
    write_text(folder / "bench.sv", text)
    write_text(folder / "bench.cpp", CPP)


def hex_rows(ports: Sequence[BusPort], codes: Iterable[Codes]) -> str:
    """Rows of codes as bits, a word for each: ports side by side, the first in the lowest bits."""
    total, start = 0, 0
    for port, rows in zip(ports, codes, strict=True):
        flat = rows.reshape(len(rows), -1).astype(object) & ((1 << port.width) - 1)
        places = [1 << (start + port.width * n) for n in range(port.elements)]
        total = total + (flat * np.array(places, object)).sum(1)
        start += port.bits
    return "".join(f"{int(row):0{-(-start // 4)}x}\n" for row in np.atleast_1d(total))


def simulate(folder: Path, simulator: str | None = None, make: str = BUILT_FAST) -> list[str]:
    """Build and run a bench in a folder; the version of the simulator, then what the bench said.

    Args:
        make: settings of the compiler behind Verilator.
    """
    name = simulator or simulator_found()
    if name is None:
        raise ConfigError(
            "verilog: neither verilator nor iverilog was found: install one, or give rows = 0"
        )
    files = sorted(path.name for path in folder.glob("*.sv"))
    if name == "verilator":
        flags = [*VERILATOR, "-MAKEFLAGS", make, "--Mdir", "obj"]
        run_tool([name, *flags, *files, "bench.cpp"], folder=folder)
        command = ["./obj/Vbench"]
    else:
        run_tool([name, "-g2012", "-s", "bench", "-o", "bench.vvp", *files], folder=folder)
        command = ["vvp", "-n", "bench.vvp"]
    said = run_tool(command, folder=folder).strip().splitlines()
    results = [line for line in said if " differ, first " in line]
    line = results[-1] if results else "no result"
    words = line.replace(",", "").split()
    if len(words) < 6 or words[2] != "0":
        blocked = "".join(f"\n{each}" for each in said if each.startswith("blocked: "))
        raise GraphError(f"verilog: {name} does not give what the engine does: {line}{blocked}")
    return [version(name), *said]


def simulator_found() -> str | None:
    """Verilator where it is there, else Icarus."""
    return next((name for name in ("verilator", "iverilog") if shutil.which(name)), None)


def version(name: str) -> str:
    """Return the version that a tool prints, in one line."""
    flag = {"verilator": "--version", "yosys": "-V"}.get(name, "-V")
    return run_tool([name, flag], good=(0, 1)).splitlines()[0].strip()
