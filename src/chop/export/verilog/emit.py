"""A scheduled netlist as SystemVerilog: a module for each layer, one that joins them, a wrapper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chop.errors import ConfigError
from chop.export.verilog.netlist import Netlist, Port, Signal, Term, code_bits
from chop.export.verilog.primitives import Primitives, driver, part, width_literal
from chop.export.verilog.schedule import PipelineSchedule, layers_of, leaving

NETTYPE = "`default_nettype none\n"
RESTORE = "`default_nettype wire\n"
CLOCKED = ("input wire clk", "input wire enable")
AXIS = "top_axis"


@dataclass
class ModuleText:
    """The body of a module, with registers for wires that are read later than they are made."""

    body: list[str] = field(default_factory=list)
    registers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Name of a register: its width and what it takes over."""

    def delayed(self, name: str, width: int, cycles: int) -> str:
        """A wire as it was so many cycles before."""
        for cycle in range(1, cycles + 1):
            later = f"{name}_d{cycle}"
            source = name if cycle == 1 else f"{name}_d{cycle - 1}"
            self.registers.setdefault(later, (width, source))
        return f"{name}_d{cycles}" if cycles else name

    def text(self) -> list[str]:
        """Wires, then one block for all registers."""
        if not self.registers:
            return self.body
        declared = [f"  reg [{width - 1}:0] {name};" for name, (width, _) in self.registers.items()]
        taken = [f"    {name} <= {source};" for name, (_, source) in self.registers.items()]
        clocked = ["  always @(posedge clk) if (enable) begin", *taken, "  end"]
        return [*declared, *self.body, *clocked]


@dataclass(frozen=True)
class CircuitLayer:
    """The text of a layer's module, and what is connected to it."""

    text: str
    reads: dict[str, list[Signal]]
    """Signals by the layer that they come from."""
    gives: list[Signal]
    clocked: bool
    register_bits: int


@dataclass(frozen=True)
class BusPort:
    """An input or output of the circuit: elements of equal width, the first in the lowest bits."""

    name: str
    elements: int
    width: int
    signed: bool

    @property
    def bits(self) -> int:
        return self.elements * self.width


@dataclass(frozen=True)
class CircuitFiles:
    """The text of a circuit, and what is known of it."""

    files: dict[str, str]
    primitives: Primitives
    inputs: list[BusPort]
    outputs: list[BusPort]
    latency: int
    register_bits: int


def pack_bus(signals: Sequence[Signal]) -> dict[Signal, int]:
    """The first bit of each signal on a bus."""
    places, start = {}, 0
    for signal in signals:
        places[signal] = start
        start += signal.width
    return places


def width_of(signals: Sequence[Signal]) -> int:
    """Bits of signals side by side."""
    return sum(signal.width for signal in signals)


def layer_module(
    name: str, signals: Sequence[Signal], gives: list[Signal], plan: PipelineSchedule,
    made: Primitives, header: str,
) -> CircuitLayer:  # fmt: skip
    """The module of one layer."""
    lines = ModuleText()
    reads: dict[str, list[Signal]] = {}
    names: dict[Signal, str] = {}
    for operand in dict.fromkeys(o for signal in signals for o in signal.operands):
        if operand.layer != name:
            reads.setdefault(operand.layer, []).append(operand)
    for source, operands in reads.items():
        for operand, start in pack_bus(operands).items():
            names[operand] = f"x{len(names)}"
            wire = f"  wire [{operand.width - 1}:0] {names[operand]}"
            lines.body.append(f"{wire} = {part(source, start + operand.width - 1, start)};")
    for place, signal in enumerate(signals):
        names[signal] = f"t{place}"
        cycle = plan.cycles[signal]
        given = [
            lines.delayed(names[each], each.width, cycle - plan.available(each, name))
            for each in signal.operands
        ]
        module, expression = driver(signal, made, *given)
        wire = f"  wire [{signal.width - 1}:0] t{place}"
        if module:
            wired = ", ".join(f".{port}({each})" for port, each in zip("ab", given, strict=False))
            lines.body.append(f"{wire}; {module} u{place} ({wired}, .y(t{place}));")
        else:
            lines.body.append(f"{wire} = {expression};")
    results = [
        lines.delayed(names[each], each.width, plan.leaves[name] - plan.cycles[each])
        for each in gives
    ]
    lines.body.append(f"  assign y = {{{', '.join(reversed(results))}}};")
    clocked = bool(lines.registers)
    ports = list(CLOCKED) if clocked else []
    ports += [f"input wire [{width_of(each) - 1}:0] {source}" for source, each in reads.items()]
    ports.append(f"output wire [{width_of(gives) - 1}:0] y")
    head = f"module {name} (\n  " + ",\n  ".join(ports) + "\n);"
    text = "\n".join([header + NETTYPE, head, *lines.text(), "endmodule", RESTORE])
    size = sum(width for width, _ in lines.registers.values())
    return CircuitLayer(text, reads, gives, clocked, size)


def bus_port(name: str, limits: Sequence[tuple[int, int]]) -> BusPort:
    """The port for elements of these ranges."""
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    return BusPort(name, len(limits), code_bits(low, high), low < 0)


class Top:
    """The module that joins the layers."""

    def __init__(
        self, layers: Mapping[str, CircuitLayer], inputs: list[BusPort], plan: PipelineSchedule
    ) -> None:
        self.layers, self.inputs, self.plan = layers, inputs, plan
        self.lines = ModuleText()
        self.places = {name: pack_bus(layer.gives) for name, layer in layers.items()}

    def bits_of(self, signal: Signal) -> tuple[str, int]:
        """The bus that holds a signal, and its first bit there."""
        if isinstance(signal, Port):
            port = self.inputs[signal.number]
            return port.name, signal.element * port.width
        return f"{signal.layer}_y", self.places[signal.layer][signal]

    def results(self, terms: Sequence[Term]) -> dict[Signal, tuple[str, int]]:
        """Return the place of each output's signals in the last cycle: a bus for each layer."""
        layers: dict[str, list[Signal]] = {}
        for signal in dict.fromkeys(term.signal for term in terms):
            if signal is not None:
                layers.setdefault(signal.layer, []).append(signal)
        found: dict[Signal, tuple[str, int]] = {}
        for layer, signals in layers.items():
            width = width_of(signals)
            self.lines.body.append(f"  wire [{width - 1}:0] {layer}_out = {self.bus(signals)};")
            cycles = self.plan.latency - self.plan.leaves.get(layer, 0)
            name = self.lines.delayed(f"{layer}_out", width, cycles)
            found |= {signal: (name, start) for signal, start in pack_bus(signals).items()}
        return found

    def bus(self, signals: Sequence[Signal]) -> str:
        """Signals side by side, the first in the lowest bits; neighbours as one range."""
        ranges: list[tuple[str, int, int]] = []
        for signal in signals:
            name, start = self.bits_of(signal)
            if ranges and ranges[-1][0] == name and ranges[-1][2] + 1 == start:
                ranges[-1] = name, ranges[-1][1], start + signal.width - 1
            else:
                ranges.append((name, start, start + signal.width - 1))
        parts = [part(name, high, low) for name, low, high in ranges]
        return parts[0] if len(parts) == 1 else f"{{{', '.join(reversed(parts))}}}"

    def instances(self) -> None:
        for name, layer in self.layers.items():
            wires = [".clk(clk)", ".enable(enable)"] if layer.clocked else []
            wires += [f".{source}({self.bus(each)})" for source, each in layer.reads.items()]
            wires.append(f".y({name}_y)")
            self.lines.body.append(f"  wire [{width_of(layer.gives) - 1}:0] {name}_y;")
            self.lines.body.append(f"  {name} {name}_i (" + ", ".join(wires) + ");")

    def unused(self, signals: Sequence[Signal]) -> None:
        """One line that reads the bits of inputs that nothing depends on, for the sake of lint."""
        used = {(each.number, each.element): each.width for each in signals
                if isinstance(each, Port)}  # fmt: skip
        idle = [
            part(port.name, (element + 1) * port.width - 1, element * port.width + own)
            for number, port in enumerate(self.inputs)
            for element in range(port.elements)
            if (own := used.get((number, element), 0)) < port.width
        ]
        if idle:
            self.lines.body.append(f"  wire unused = &{{1'b0, {', '.join(idle)}}};")


def bus_element(term: Term, width: int, places: Mapping[Signal, tuple[str, int]]) -> str:
    """An element of an output, with the sign extended to the width of the port."""
    if term.signal is None:
        return width_literal(term.offset, width)
    name, start = places[term.signal]
    last = start + term.signal.width - 1
    more = width - term.signal.width
    if not more:
        return part(name, last, start)
    fill = f"{{{more}{{{name}[{last}]}}}}" if term.signal.signed else f"{more}'d0"
    return f"{{{fill}, {part(name, last, start)}}}"


VALID = """\
  reg [{last}:0] valid;
  always @(posedge clk)
    if (reset) valid <= {zero};
    else if (enable) valid <= {next};
  assign valid_out = valid[{last}];"""


def top_module(top: Top, net: Netlist, outputs: list[BusPort], signals: list[Signal]) -> str:
    """The text of the joining module."""
    latency, lines = top.plan.latency, top.lines
    top.instances()
    places = top.results([term for terms in net.outputs for term in terms])
    for port, terms in zip(outputs, net.outputs, strict=True):
        parts = [bus_element(term, port.width, places) for term in terms]
        lines.body.append(f"  assign {port.name} = {{{', '.join(reversed(parts))}}};")
    top.unused(signals)
    ports = [f"input wire [{each.bits - 1}:0] {each.name}" for each in top.inputs]
    ports += [f"output wire [{each.bits - 1}:0] {each.name}" for each in outputs]
    if latency:
        ports = [*CLOCKED, "input wire reset", "input wire valid_in", *ports]
        ports.append("output wire valid_out")
        chain = "valid_in" if latency == 1 else f"{{valid[{latency - 2}:0], valid_in}}"
        zero = width_literal(0, latency)
        lines.body.append(VALID.format(last=latency - 1, zero=zero, next=chain))
    head = "module top (\n  " + ",\n  ".join(ports) + "\n);"
    return "\n".join([NETTYPE, head, *lines.text(), "endmodule", RESTORE])


def emit_circuit(
    net: Netlist, plan: PipelineSchedule, headers: Mapping[str, str], made: Primitives | None = None
) -> CircuitFiles:
    """The files of a netlist.

    Args:
        headers: comments for the layers and for the top module.
        made: the modules that other netlists have already, whose file is then not among these.
    """
    signals, shared = net.alive(), made is not None
    made = Primitives() if made is None else made
    gives = leaving(net, signals)
    layers = {
        name: layer_module(name, own, gives[name], plan, made, headers.get(name, ""))
        for name, own in layers_of(signals).items()
    }
    inputs = [bus_port(f"input{n}", ends) for n, ends in enumerate(net.inputs)]
    outputs = [
        bus_port(f"output{n}", [term.limits for term in terms])
        for n, terms in enumerate(net.outputs)
    ]
    top = Top(layers, inputs, plan)
    files = {f"{name}.sv": layer.text for name, layer in layers.items()}
    files["top.sv"] = headers.get("top", "") + top_module(top, net, outputs, signals)
    if made.modules and not shared:
        library = "\n".join(made.modules.values())
        files["primitives.sv"] = f"{headers.get('primitives', '')}{NETTYPE}\n{library}\n{RESTORE}"
    size = sum(layer.register_bits for layer in layers.values())
    size += sum(width for width, _ in top.lines.registers.values()) + plan.latency
    return CircuitFiles(files, made, inputs, outputs, plan.latency, size)


AXIS_TEXT = """\
// AXI-stream: a row of codes in each beat, the first element in the lowest bits, padded to bytes;
// tlast of a row leaves with its result.
{nettype}
module {name} (
  input wire aclk,
  input wire aresetn,
  input wire [{in_top}:0] s_axis_tdata,
  input wire s_axis_tvalid,
  input wire s_axis_tlast,
  output wire s_axis_tready,
  output wire [{out_top}:0] m_axis_tdata,
  output wire m_axis_tvalid,
  output wire m_axis_tlast,
  input wire m_axis_tready
);
  wire [{row_top}:0] row;
  wire row_valid;
  reg [{last_top}:0] last;
  reg [{gives}:0] spare, given;
  reg spare_valid, given_valid;
  wire enable = ~row_valid | ~spare_valid;
{unused}  top core (
    .clk(aclk), .enable(enable), .reset(~aresetn),
    .valid_in(s_axis_tvalid), .valid_out(row_valid),
    {wires}
  );
  always @(posedge aclk) begin
    if (enable) last <= {chain};
    if (~given_valid | m_axis_tready) begin
      given <= spare_valid ? spare : {{last[{last_top}], row}};
      given_valid <= spare_valid | row_valid;
      spare_valid <= 1'b0;
    end else if (row_valid & ~spare_valid) begin
      spare <= {{last[{last_top}], row}};
      spare_valid <= 1'b1;
    end
    if (~aresetn) begin
      given_valid <= 1'b0;
      spare_valid <= 1'b0;
    end
  end
  assign s_axis_tready = enable;
  assign m_axis_tdata = {given};
  assign m_axis_tlast = given[{gives}];
  assign m_axis_tvalid = given_valid;
endmodule
{restore}"""


def in_bytes(bits: int) -> int:
    """Bits that a stream of whole bytes needs."""
    return -(-bits // 8) * 8


def bus_wires(bus: str, ports: Sequence[BusPort]) -> list[str]:
    """The connections of ports that lie side by side on a bus, the first in the lowest bits."""
    wires, start = [], 0
    for port in ports:
        wires.append(f".{port.name}({bus}[{start + port.bits - 1}:{start}])")
        start += port.bits
    return wires


def axis_wrapper(inputs: Sequence[BusPort], outputs: Sequence[BusPort], latency: int) -> str:
    """The module ``top_axis``: a beat is a row, and a receiver that waits stops the pipeline.

    Results leave through two registers, so that no path leads from its ready to the pipeline.
    """
    if latency == 0:
        raise ConfigError("verilog: a stream needs a clock: give stages of 1 or more")
    reads, gives = sum(port.bits for port in inputs), sum(port.bits for port in outputs)
    wires = bus_wires("s_axis_tdata", inputs) + bus_wires("row", outputs)
    wide_in, wide_out = in_bytes(reads), in_bytes(gives)
    padding, idle = wide_out - gives, wide_in - reads
    given = f"{{{padding}'d0, given[{gives - 1}:0]}}" if padding else f"given[{gives - 1}:0]"
    unused = f"  wire unused = &{{1'b0, s_axis_tdata[{wide_in - 1}:{reads}]}};\n" if idle else ""
    chain = "s_axis_tlast" if latency == 1 else f"{{last[{latency - 2}:0], s_axis_tlast}}"
    return AXIS_TEXT.format(
        name=AXIS, nettype=NETTYPE, restore=RESTORE, in_top=wide_in - 1, out_top=wide_out - 1,
        row_top=gives - 1, last_top=latency - 1, gives=gives, chain=chain, given=given,
        unused=unused, wires=", ".join(wires),
    )  # fmt: skip
