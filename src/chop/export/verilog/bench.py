"""Benches for Verilator and Icarus that compare a circuit with rows of the engine, bit for bit."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from chop.errors import ConfigError, GraphError
from chop.export.tools import run_tool
from chop.export.verilog.emit import BusPort
from chop.files import write_text
from chop.lowering.program import Codes

ROWS, EXPECTED = "rows.hex", "expected.hex"
VERILATOR = (
    "--cc", "--exe", "--build", "-Wall", "-j", "1", "--top-module", "top",
    # Without the second the compiler needs minutes for one huge function (seen with Verilator
    # 5.006). Small files cost more: each reads a header with all wires, a second for 90,000 LUTs.
    "--output-split", "40000", "--output-split-cfuncs", "500",
    "-MAKEFLAGS", "OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0",
)  # fmt: skip

CPP = """\
// Runs top on the rows of {rows} and compares with {expected}. The first result is expected after
// exactly {latency} clock edges, whatever valid_out says; valid_out is compared as well.
#include "Vtop.h"
#include "verilated.h"
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

static const int LATENCY = {latency};

// Hexadecimal digits into bytes, the last digit first.
static void fill(const std::string& digits, void* port, size_t size) {{
    std::vector<uint8_t> bytes(size, 0);
    for (size_t i = 0; i < digits.size() && i / 2 < size; i++) {{
        char c = digits[digits.size() - 1 - i];
        int value = c <= '9' ? c - '0' : c - 'a' + 10;
        bytes[i / 2] |= value << (i % 2 * 4);
    }}
    memcpy(port, bytes.data(), size);
}}

static bool equal(const std::string& digits, const void* port, size_t size) {{
    std::vector<uint8_t> bytes(size);
    fill(digits, bytes.data(), size);
    return memcmp(bytes.data(), port, size) == 0;
}}

static std::vector<std::vector<std::string>> read(const char* name, int columns) {{
    std::vector<std::vector<std::string>> rows;
    FILE* file = fopen(name, "r");
    std::vector<std::string> row;
    std::string word;
    for (int c; file && (c = fgetc(file)) != EOF;) {{
        if (c != ' ' && c != '\\n') {{ word += (char)c; continue; }}
        if (!word.empty()) row.push_back(word);
        word.clear();
        if ((int)row.size() == columns) {{ rows.push_back(row); row.clear(); }}
    }}
    if (file) fclose(file);
    return rows;
}}

int main() {{
    Vtop top;
    auto rows = read("{rows}", {inputs}), wanted = read("{expected}", {outputs});
    long wrong = 0, first = -1;
    {start}
    for (long step = 0; step < (long)rows.size() + LATENCY; step++) {{
        bool given = step < (long)rows.size();
        if (given) {{ {set} }}
        {clock}
        long done = LATENCY ? step - LATENCY + 1 : step;
        if (done < 0) {{ {quiet} continue; }}
        if (done >= (long)rows.size()) continue;
        bool good = {valid};
        {compare}
        if (!good) {{ wrong++; if (first < 0) first = done; }}
    }}
    printf("%ld rows, %ld differ, first %ld\\n", (long)rows.size(), wrong, first);
    return rows.empty() || wrong ? 1 : 0;
}}
"""

SV = """\
// Runs top on the rows of {rows} and compares with {expected}. The first result is expected after
// exactly {latency} clock edges, whatever valid_out says; valid_out is compared as well.
module bench;
  integer rows, wanted, step, done, status, wrong = 0, first = -1, count = 0;
{declared}
  reg clk = 0, good;
  top dut ({connected});
  initial begin
    rows = $fopen("{rows}", "r");
    wanted = $fopen("{expected}", "r");
    {start}
    for (step = 0; step < {count} + {latency}; step = step + 1) begin
      if (step < {count}) begin {set} end
      {clock}
      done = {latency} == 0 ? step : step - {latency} + 1;
      if (done < 0) begin {quiet} end
      else if (done < {count}) begin
        good = {valid};
        {compare}
        count = count + 1;
        if (!good) begin wrong = wrong + 1; if (first < 0) first = done; end
      end
    end
    $display("%0d rows, %0d differ, first %0d", count, wrong, first);
    $finish;
  end
endmodule
"""


def write_benches(
    folder: Path, inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int, rows: int
) -> None:
    """The benches for both simulators."""
    shared = {"rows": ROWS, "expected": EXPECTED, "latency": latency}
    write_text(folder / "bench.cpp", cpp_bench(inputs, outputs, latency, shared))
    write_text(folder / "bench.sv", sv_bench(inputs, outputs, latency, rows, shared))


def cpp_bench(
    inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int, shared: dict[str, object]
) -> str:
    """The bench for Verilator."""
    clocked = latency > 0
    return CPP.format(
        **shared,
        inputs=len(inputs),
        outputs=len(outputs),
        start="top.enable = 1; top.reset = 1; top.valid_in = 0; top.clk = 0; top.eval();\n"
        "    top.clk = 1; top.eval(); top.reset = 0;" if clocked else "",
        set=" ".join(
            f"fill(rows[step][{n}], &top.{p.name}, sizeof(top.{p.name}));"
            for n, p in enumerate(inputs)
        ),
        clock="top.valid_in = given; top.clk = 0; top.eval(); top.clk = 1; top.eval();"
        if clocked else "top.eval();",
        quiet="if (top.valid_out) { wrong++; if (first < 0) first = 0; }" if clocked else "",
        valid="top.valid_out" if clocked else "true",
        compare="\n        ".join(
            f"good = good && equal(wanted[done][{n}], &top.{p.name}, sizeof(top.{p.name}));"
            for n, p in enumerate(outputs)
        ),
    )  # fmt: skip


def sv_bench(
    inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int, rows: int,
    shared: dict[str, object],
) -> str:  # fmt: skip
    """The bench for Icarus and others."""
    clocked = latency > 0
    declared = [f"  reg [{p.bits - 1}:0] {p.name};" for p in inputs]
    declared += [f"  wire [{p.bits - 1}:0] {p.name};" for p in outputs]
    declared += [f"  reg [{p.bits - 1}:0] want_{p.name};" for p in outputs]
    names = [p.name for p in (*inputs, *outputs)]
    if clocked:
        declared += ["  reg enable = 1, reset = 1, valid_in = 0;", "  wire valid_out;"]
        names += ["clk", "enable", "reset", "valid_in", "valid_out"]
    return SV.format(
        **shared,
        count=rows,
        declared="\n".join(declared),
        connected=", ".join(f".{name}({name})" for name in names),
        start="#1 clk = 1; #1 clk = 0; reset = 0;" if clocked else "",
        set=" ".join(f'status = $fscanf(rows, "%h", {p.name});' for p in inputs),
        clock=f"valid_in = step < {rows}; #1 clk = 1; #1 clk = 0;" if clocked else "#1;",
        quiet="if (valid_out !== 0) begin wrong = wrong + 1; first = 0; end" if clocked else "",
        valid="valid_out === 1" if clocked else "1",
        compare="\n        ".join(
            f'status = $fscanf(wanted, "%h", want_{p.name}); '
            f"good = good && {p.name} === want_{p.name};"
            for p in outputs
        ),
    )


def hex_rows(ports: Sequence[BusPort], codes: Iterable[Codes]) -> str:
    """Rows of codes as the bits of the ports: a line for each row, a word for each port."""
    words = []
    for port, rows in zip(ports, codes, strict=True):
        mask = (1 << port.width) - 1
        flat = rows.reshape(len(rows), -1).astype(object) & mask
        places = np.array([1 << (port.width * n) for n in range(port.elements)], object)
        digits = -(-port.bits // 4)
        words.append([f"{int(row):0{digits}x}" for row in (flat * places).sum(1)])
    return "\n".join(" ".join(row) for row in zip(*words, strict=True)) + "\n"


def simulate(folder: Path, simulator: str | None = None) -> str:
    """Build and run a bench in a folder; the simulator, with its version, if all rows are equal."""
    name = simulator or simulator_found()
    if name is None:
        raise ConfigError(
            "verilog: neither verilator nor iverilog was found: install one, or give rows = 0"
        )
    files = sorted(path.name for path in folder.glob("*.sv") if path.name != "bench.sv")
    if name == "verilator":
        run_tool([name, *VERILATOR, "--Mdir", "obj", *files, "bench.cpp"], folder=folder)
        command = ["./obj/Vtop"]
    else:
        run_tool([name, "-g2012", "-o", "bench.vvp", "bench.sv", *files], folder=folder)
        command = ["vvp", "-n", "bench.vvp"]
    said = run_tool(command, folder=folder, good=(0, 1)).strip().splitlines()
    line = said[-1] if said else "no result"
    words = line.replace(",", "").split()
    if len(words) < 6 or words[2] != "0":
        raise GraphError(f"verilog: {name} does not give what the engine does: {line}")
    return version(name)


def simulator_found() -> str | None:
    """Verilator where it is there, else Icarus."""
    return next((name for name in ("verilator", "iverilog") if shutil.which(name)), None)


def version(name: str) -> str:
    """Return the version that a tool prints, in one line."""
    flag = {"verilator": "--version", "yosys": "-V"}.get(name, "-V")
    return run_tool([name, flag], good=(0, 1)).splitlines()[0].strip()
