"""A plan as SystemVerilog: the module that joins the blocks, memories, functions of codes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np

from chop.export.verilog.build import OUTPUT, netlist_of
from chop.export.verilog.emit import NETTYPE, RESTORE, CircuitFiles, emit_circuit
from chop.export.verilog.folded.estimate import in_block
from chop.export.verilog.folded.nodes import Mapped, settings_of
from chop.export.verilog.folded.plan import Block, Rom, Stream, StreamPlan, address_bits
from chop.export.verilog.netlist import Netlist
from chop.export.verilog.primitives import Primitives
from chop.export.verilog.schedule import REGISTER, Scheduler
from chop.lowering.program import Input, IntegerProgram, Step, Value

BLOCKS, MAPS, TOP, MEMORIES = "blocks.sv", "maps.sv", "top.sv", "memories.sv"
PRIMITIVES = "primitives.sv"
PARTS = ("data", "valid", "ready")
UNCLOCKED = ("chop_beside",)
CLOCK_NS = 5.0
"""The clock that functions of codes have registers for, by estimated delays; nextpnr finds up to
twice as much."""


@dataclass(frozen=True)
class FoldedFiles:
    """The files of a folded circuit, and the modules that functions of codes are made of."""

    files: dict[str, str]
    primitives: Primitives


def map_netlist(place: int, block: Block) -> Netlist:
    """The functions of codes of a block as a netlist."""
    node, stream = block.node, block.ports["s"]
    assert isinstance(node, Mapped)
    first = value = lane_value("given", stream.lanes, stream.limits)
    made = []
    for number, step in enumerate(node.steps):
        out = lane_value(f"map{number}", stream.lanes, step.out.limits)
        own = {key: array[: stream.lanes] for key, array in settings_of(step).items()}
        more: dict[str, object] = {"node": f"{step.node}_{place}", "out": out}
        made.append(replace_step(step, sources=(value.name,), **more, **own))
        value = out
    source = Input(first, first.name, None)
    return netlist_of(IntegerProgram((source,), tuple(made), (value.name,)))


def function_circuit(place: int, block: Block, made: Primitives) -> CircuitFiles:
    """The functions of codes of a block as modules, with registers for a clock of `CLOCK_NS`."""
    net = map_netlist(place, block)
    plan = Scheduler(net)
    stages = None if any(plan.delays.values()) else 0  # more bits alone need no registers
    schedule = plan.within(CLOCK_NS - REGISTER, stages)
    return emit_circuit(net, schedule, {}, made)


def replace_step(step: Step, **fields: object) -> Step:
    """A step with other fields."""
    return replace(step, **fields)  # type: ignore[arg-type]


def lane_value(name: str, lanes: int, limits: tuple[int, int]) -> Value:
    """A value of so many elements of one range."""
    low, high = (np.full((lanes,), end, np.int64) for end in limits)
    return Value(name, (lanes,), np.zeros((), np.int64), low, high)


def folded_files(plan: StreamPlan, headers: Mapping[str, str]) -> FoldedFiles:
    """All files of a plan; `headers` are comments for the top module and its parts."""
    found = {BLOCKS: (files(__package__) / BLOCKS).read_text(encoding="utf-8")}
    primitives, circuits, texts = Primitives(), {}, []
    for place, block in enumerate(plan.blocks):
        if block.kind == "map":
            circuits[place] = function_circuit(place, block, primitives)
            own = dict(circuits[place].files)
            own[TOP] = own.pop(TOP).replace("module top (", f"module map_{place} (")
            texts += [re.sub(rf"\b{OUTPUT}\b", f"{OUTPUT}_{place}", text) for text in own.values()]
    lint = "/* verilator lint_off DECLFILENAME */\n/* verilator lint_off UNUSEDSIGNAL */\n"
    if texts:
        found[MAPS] = "\n".join([lint, *texts])
    if primitives.modules:
        library = "\n".join(primitives.modules.values())
        found[PRIMITIVES] = f"{headers.get('primitives', '')}{NETTYPE}\n{library}\n{RESTORE}"
    roms = [rom for block in plan.blocks for rom in block.roms]
    found[MEMORIES] = "\n".join(
        ["/* verilator lint_off DECLFILENAME */", NETTYPE, *map(rom_module, roms), RESTORE]
    )
    for rom in roms:
        found |= rom_files(rom)
    found[TOP] = headers.get("top", "") + top_text(plan, circuits)
    return FoldedFiles(found, primitives)


def rom_files(rom: Rom) -> dict[str, str]:
    """The words of each memory of constants, with zeros up to a power of two."""
    digits, found = -(-rom.width // 4), {}
    for part, given in enumerate(rom.parts):
        words = [*given, *[0] * ((1 << address_bits(len(given))) - len(given))]
        found[f"{rom.name}_{part}.hex"] = "".join(f"{word:0{digits}x}\n" for word in words)
    return found


def rom_module(rom: Rom) -> str:
    """The module of constants: one memory, or one for the first half of addresses and another."""
    lines, clocked = [], []
    for part, given in enumerate(rom.parts):
        bits = address_bits(len(given))
        style = "block" if in_block(1 << bits, rom.width) else "logic"
        lines += [
            f'  (* rom_style = "{style}", ram_style = "{style}" *)',
            f"  reg [{rom.width - 1}:0] memory{part} [0:{(1 << bits) - 1}];",
            f'  initial $readmemh("{rom.name}_{part}.hex", memory{part});',
            f"  reg [{rom.width - 1}:0] word{part};",
        ]
        clocked.append(f"word{part} <= memory{part}[at[{bits - 1}:0]];")
    chosen = "word0"
    if len(rom.parts) > 1:
        lines.append("  reg second;")
        clocked.append(f"second <= at[{rom.address - 1}];")
        chosen = "second ? word1 : word0"
    return "\n".join([
        f"module {rom.name} (",
        f"  input wire clk, input wire go, input wire [{rom.address - 1}:0] at,",
        f"  output wire [{rom.width - 1}:0] word", ");",
        *lines,
        f"  always @(posedge clk) if (go) begin {' '.join(clocked)} end",
        f"  assign word = {chosen};", "endmodule", "",
    ])  # fmt: skip


def stream_ports(ports: Mapping[str, Stream]) -> list[str]:
    """The connections of streams."""
    return [f".{port}_{part}({each.name}_{part})" for port, each in ports.items() for part in PARTS]


def parameter(name: str, value: int) -> str:
    """A parameter of a block; a word of more than 32 bits has its width."""
    width = f"{value.bit_length()}'d" if value > 0x7FFFFFFF else ""
    return f".{name}({width}{value})"


def block_text(place: int, block: Block) -> str:
    """The instance of a block, its memories beside it."""
    ports, lines = dict(block.ports), []
    wires = [] if block.kind in UNCLOCKED else [".clk(clk)", ".reset(reset)"]
    if block.kind == "chop_fork":
        branches = block.given
        lines += [f"  assign {each.name}_data = {ports['s'].name}_data;" for each in branches]
        for part in ("valid", "ready"):
            names = ", ".join(f"{each.name}_{part}" for each in reversed(branches))
            wires.append(f".m_{part}({{{names}}})")
        wires += [".m_data()", *stream_ports({"s": ports["s"]})]
    elif block.kind == "chop_lookup":
        (rom,), source, result = block.roms, ports["s"], ports["m"]
        wires += [f".go(go{place})"]
        wires += [f".{p}_{t}({each.name}_{t})" for p, each in ports.items() for t in PARTS[1:]]
        lines.append(f"  wire go{place};")
        for lane in range(source.lanes):
            at = f"{source.name}_data[{lane * source.width} +: {source.width}]"
            word = f"{result.name}_data[{lane * result.width} +: {result.width}]"
            lines.append(f"  {rom.name} r{place}_{lane} (.clk(clk), .go(go{place}), .at({at}), "
                         f".word({word}));")  # fmt: skip
    else:
        wires += stream_ports(ports)
    if block.kind == "chop_matrix":
        weights, bias = block.roms
        lines.append(f"  wire go{place};")
        wires.append(f".go(go{place})")
        for rom, at, word in ((weights, "at", "weights"), (bias, "group", "bias")):
            lines.append(f"  wire [{rom.address - 1}:0] {at}{place};")
            lines.append(f"  wire [{rom.width - 1}:0] {word}{place};")
            lines.append(f"  {rom.name} {word}_rom{place} (.clk(clk), .go(go{place}), "
                         f".at({at}{place}), .word({word}{place}));")  # fmt: skip
            wires += [f".{at}({at}{place})", f".{word}({word}{place})"]
    given = ", ".join(parameter(name, value) for name, value in block.parameters.items())
    return "\n".join([
        f"  // {block.layer}", *lines, f"  {block.kind} #({given}) b{place} (",
        "    " + ", ".join(wires) + ");",
    ])  # fmt: skip


def map_text(place: int, block: Block, circuit: CircuitFiles) -> str:
    """The instance of functions of codes, with their results as wide as the stream is."""
    source, result = block.ports["s"], block.ports["m"]
    (port,) = circuit.outputs
    wires = [f".input0({source.name}_data)", f".{port.name}(y{place})"]
    lines = [f"  // {block.layer}", f"  wire [{port.bits - 1}:0] y{place};"]
    more = result.width - port.width
    for lane in range(result.lanes):
        low = lane * port.width
        sign = f"y{place}[{low + port.width - 1}]" if port.signed else "1'b0"
        fill = f"{{{more}{{{sign}}}}}, " if more else ""
        value = f"{{{fill}y{place}[{low} +: {port.width}]}}"
        place_of = f"{result.name}_data[{lane * result.width} +: {result.width}]"
        lines.append(f"  assign {place_of} = {value};")
    if circuit.latency:
        go = f"go{place}"
        lines.append(f"  wire {go} = ~{result.name}_valid | {result.name}_ready;")
        lines.append(f"  assign {source.name}_ready = {go};")
        wires += [".clk(clk)", f".enable({go})", ".reset(reset)"]
        wires += [f".valid_in({source.name}_valid)", f".valid_out({result.name}_valid)"]
    else:
        lines.append(f"  assign {result.name}_valid = {source.name}_valid;")
        lines.append(f"  assign {source.name}_ready = {result.name}_ready;")
    return "\n".join([*lines, f"  map_{place} m{place} ({', '.join(wires)});"])


def top_text(plan: StreamPlan, circuits: Mapping[int, CircuitFiles]) -> str:
    """The module that joins the blocks."""
    source, result = plan.input, plan.output
    streams = [source, *(each for block in plan.blocks for each in block.given)]
    lines = []
    for each in streams:
        lines.append(f"  wire [{each.bits - 1}:0] {each.name}_data;  // {each.edge}")
        lines.append(f"  wire {each.name}_valid, {each.name}_ready;")
    for place, block in enumerate(plan.blocks):
        is_map = place in circuits
        lines.append(
            map_text(place, block, circuits[place]) if is_map else block_text(place, block)
        )
    return "\n".join([
        "/* verilator lint_off PINCONNECTEMPTY */", NETTYPE,
        "module top (",
        "  input wire clk, input wire resetn,",
        f"  input wire [{source.bits - 1}:0] s_data, input wire s_valid, output wire s_ready,",
        f"  output wire [{result.bits - 1}:0] m_data, output wire m_valid, output wire m_last,",
        "  input wire m_ready", ");",
        "  reg reset;", "  always @(posedge clk) reset <= ~resetn;",
        *lines,
        f"  assign {source.name}_data = s_data;",
        f"  assign {source.name}_valid = s_valid & ~reset;",
        f"  assign s_ready = {source.name}_ready & ~reset;",
        f"  assign m_data = {result.name}_data;",
        f"  assign m_valid = {result.name}_valid & ~reset;",
        f"  assign {result.name}_ready = m_ready;",
        f"  chop_last #(.BEATS({result.beats})) ending (",
        "    .clk(clk), .reset(reset), .moved(m_valid & m_ready), .last(m_last));",
        "endmodule", RESTORE,
    ])  # fmt: skip
