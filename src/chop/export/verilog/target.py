"""The target ``verilog``: the files of a circuit, and their check by simulation."""

import json
import re
import shutil
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chop import __version__
from chop.errors import ConfigError
from chop.export.ends import RawFormat, rows_with_ends, with_class, with_scaling
from chop.export.rows import CheckedRows
from chop.export.targets import TargetOptions, WrittenFiles, export_target, program_checksum
from chop.export.verilog.bench import (
    EXPECTED,
    ROWS,
    hex_rows,
    pipeline_part,
    simulate,
    simulator_found,
    wrapper_part,
    write_bench,
)
from chop.export.verilog.build import OUTPUT, build_step, layer_names, netlist_of
from chop.export.verilog.emit import AXIS, BusPort, axis_wrapper, emit_circuit
from chop.export.verilog.estimate import estimated_luts, least_luts, luts
from chop.export.verilog.folded.circuit import check_circuit, plan_circuit, write_circuit
from chop.export.verilog.folded.handover import FOLDED, WRAPPER, cocotb_files
from chop.export.verilog.netlist import CircuitError, Netlist
from chop.export.verilog.prove import RoundingShape, prove_roundings, rounding_shapes
from chop.export.verilog.schedule import schedule_netlist
from chop.export.verilog.synthesis import DEVICE_SIZES, synthesise, synthesise_folded
from chop.files import write_text
from chop.lowering.program import IntegerProgram, Value
from chop.preprocessing import Preprocessing

CIRCUIT = "circuit.json"
OF_LINE = 32
"""Elements whose binary points stand in one line."""
MOST_STAGES = 1000
"""As the option ``--stages`` says."""


@dataclass(frozen=True)
class Hardware(TargetOptions):
    """The settings of a circuit."""

    title = "hardware"

    stages: int | None = None
    """Pipeline registers from the inputs to the outputs; 0 for none."""
    clock_ns: float | None = None
    """A clock period to place registers for, in place of a number of stages."""
    stream: bool = False
    """Whether to add an AXI-stream wrapper."""
    synthesise: bool = False
    """Whether to map the circuit to devices."""
    most_luts: int = 200_000
    """Refuse circuits that are estimated to need more look-up tables."""
    folded: bool = False
    """Whether layers share multipliers, and pixels come one after the other."""
    cycles: int | None = None
    """Cycles that a folded circuit may take for an image; else as few as `most_luts` allows."""
    argmax: bool = False
    """Whether the circuit gives the class, the first of the largest scores, in place of scores."""
    raw: str | None = None
    """The format of features as they are measured, such as ``u8``, which are scaled inside."""
    device: str | None = None
    """Refuse circuits that are estimated not to fit this device of `DEVICE_SIZES`."""
    cocotb: bool = False
    """Whether to add a bench in Python, for people who continue by hand."""
    preprocessing: Preprocessing | None = None
    """How the features are scaled; by default as those that the network was trained on."""

    @property
    def usual_rows(self) -> int:
        """Rows, or the images of a folded circuit, that files are checked with."""
        return 50 if self.folded else super().usual_rows

    def for_graph(self, preprocessing: Preprocessing | None) -> "Hardware":
        """The settings with the scaling of a graph, where none is given."""
        return self if self.preprocessing else replace(self, preprocessing=preprocessing)

    def with_ends(self, program: IntegerProgram) -> IntegerProgram:
        """A program with what the circuit does before and after it."""
        if self.raw is not None:
            if self.preprocessing is None:
                raise ConfigError(
                    "verilog: raw features cannot be scaled: nothing says how the network's were"
                )
            program = with_scaling(program, RawFormat.parse(self.raw), self.preprocessing)
        return with_class(program) if self.argmax else program

    def __post_init__(self) -> None:
        _ = self.raw is None or RawFormat.parse(self.raw)
        _ = self.device is None or DEVICE_SIZES[self.device]
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        if self.cocotb and not (self.folded or self.stream):
            raise ConfigError("verilog: cocotb drives streams: give folded or stream as well")
        if self.cycles is not None and not self.folded:
            raise ConfigError("verilog: cycles are for a folded circuit: give folded as well")
        if self.cycles is not None and self.cycles < 1:
            raise ConfigError(f"verilog: cycles must be 1 or more (got {self.cycles})")
        if self.folded and (self.stages is not None or self.clock_ns is not None or self.stream):
            raise ConfigError("verilog: stages, clock_ns and stream are not for a folded circuit")
        if self.stages is not None and self.clock_ns is not None:
            raise ConfigError("verilog: give stages or clock_ns, not both")
        if self.stages is not None and not 0 <= self.stages <= MOST_STAGES:
            raise ConfigError(f"verilog: stages must be 0 to {MOST_STAGES:,} (got {self.stages})")
        if self.clock_ns is not None and not self.clock_ns > 0:
            raise ConfigError(f"verilog: clock_ns must be more than 0 (got {self.clock_ns})")


AS_USUAL = Hardware()


def fitting_netlist(program: IntegerProgram, most_luts: int) -> tuple[Netlist, int]:
    """The netlist of a program and how many look-up tables it needs; refused if too many."""
    refuse_more_luts(least_luts(program), most_luts, "at least ")
    net = netlist_of(program)
    needed = estimated_luts(net)
    refuse_more_luts(needed, most_luts, "about ")
    return net, needed


def refuse_more_luts(needed: int, most: int, how: str) -> None:
    """Raise if there are more look-up tables than allowed."""
    if needed > most:
        raise CircuitError(
            f"verilog: every layer at once would need {how}{needed:,} look-up tables of "
            f"six inputs, and {most:,} are allowed: take narrower formats or a smaller network, or "
            "raise most_luts"
        )


@dataclass(frozen=True)
class CircuitCost:
    """The estimated look-up tables of a circuit, and its latency."""

    luts: int
    latency_cycles: int
    nodes: dict[str, int]
    """Look-up tables of each node of the network that is a layer of the circuit."""


def circuit_cost(program: IntegerProgram, hardware: Hardware = AS_USUAL) -> CircuitCost:
    """The cost of a program as a circuit, without any tool."""
    net, needed = fitting_netlist(program, hardware.most_luts)
    layers: defaultdict[str, float] = defaultdict(float)
    for signal in net.alive():
        layers[signal.layer] += luts(signal)
    nodes: defaultdict[str, float] = defaultdict(float)
    for layer, step in dict(zip(layer_names(program), program.steps, strict=True)).items():
        if layer in layers:
            nodes[step.node] += layers[layer]
    latency = schedule_netlist(net, hardware.stages, hardware.clock_ns).latency
    return CircuitCost(needed, latency, {name: round(each) for name, each in nodes.items()})


def _missing_simulator() -> str | None:
    return None if simulator_found() else "there is no simulator"


@export_target("verilog", options=Hardware, steps=build_step, missing=_missing_simulator)
def write_verilog(program: IntegerProgram, hardware: Hardware, folder: Path) -> WrittenFiles:
    """SystemVerilog: a circuit of all layers at once or a folded one, and a bench that runs it."""
    program = hardware.with_ends(program)
    if hardware.folded:
        return write_folded(program, hardware, folder)
    net, needed = fitting_netlist(program, hardware.most_luts)
    if hardware.device is not None:
        DEVICE_SIZES[hardware.device].refuse(hardware.device, needed, 0.0)
    plan = schedule_netlist(net, hardware.stages, hardware.clock_ns)
    circuit = emit_circuit(
        net, plan, headers(program, f"a result for each clock cycle, after {plan.latency} cycles")
    )
    files = dict(circuit.files)
    if hardware.stream:
        files[f"{AXIS}.sv"] = axis_wrapper(circuit.inputs, circuit.outputs, circuit.latency)
        files |= cocotb_files(WRAPPER) if hardware.cocotb else {}
    for name, text in files.items():
        write_text(folder / name, text)
    facts: dict[str, Any] = {
        "latency_cycles": circuit.latency,
        "estimated_luts": needed,
        "estimated_period_ns": round(plan.period, 2),
        "registers": circuit.register_bits,
        "program_sha256": program_checksum(program),
        "roundings": [asdict(shape) for shape in rounding_shapes(circuit.primitives.rounds)],
        "input_ports": [asdict(port) for port in circuit.inputs],
        "output_ports": [asdict(port) for port in circuit.outputs],
    }
    if hardware.synthesise:
        ports = circuit.inputs, circuit.outputs
        facts["synthesis"] = synthesise(folder, *ports, circuit.latency)
    write_text(folder / CIRCUIT, json.dumps(facts, indent=2) + "\n")
    return WrittenFiles({"circuit": facts})


def write_folded(program: IntegerProgram, hardware: Hardware, folder: Path) -> WrittenFiles:
    """Write a circuit that shares multipliers."""
    size = None if hardware.device is None else DEVICE_SIZES[hardware.device]
    most = hardware.most_luts
    if size is not None and hardware.cycles is None:  # as fast as the device allows
        most = min(most, size.six_inputs)
    plan = plan_circuit(program, hardware.cycles, most)
    facts = write_circuit(plan, folder, headers(program, f"{plan.cycles:,} cycles for an image"))
    facts["program_sha256"] = program_checksum(program)
    if size is not None:
        needed = facts["estimated_luts"], facts["estimated_block_rams"]
        size.refuse(str(hardware.device), *needed)
    for name, text in (cocotb_files(FOLDED) if hardware.cocotb else {}).items():
        write_text(folder / name, text)
    if hardware.synthesise:
        facts["synthesis"] = synthesise_folded(folder)
    write_text(folder / CIRCUIT, json.dumps(facts, indent=2) + "\n")
    return WrittenFiles({"circuit": facts})


@write_verilog.check
def check_verilog(folder: Path, rows: CheckedRows, options: Hardware = AS_USUAL) -> str:
    """Simulate the files on rows and compare with the engine; the simulator.

    Rows and expected results stay with the files, so that anyone can run the bench again.
    """
    facts = json.loads((folder / CIRCUIT).read_text(encoding="utf-8"))
    if options.argmax or options.raw is not None:
        raw = None if options.raw is None else RawFormat.parse(options.raw)
        rows = rows_with_ends(
            rows, options.with_ends(rows.program), raw, options.preprocessing, options.argmax
        )
    if options.folded:
        plan = plan_circuit(rows.program, facts["folded_for"], options.most_luts)
        simulator, counted = check_circuit(plan, folder, rows)
        write_text(folder / CIRCUIT, json.dumps(facts | counted, indent=2) + "\n")
        simulator += "".join(
            f", {key} of {counted[key]:,} cycles" for key in ("latency", "interval")
            if key in counted
        )  # fmt: skip
        return proved_too(folder, facts, simulator)
    ins, outs = (
        [BusPort(**each) for each in facts[side]] for side in ("input_ports", "output_ports")
    )
    write_text(folder / ROWS, hex_rows(ins, [each.numpy() for each in rows.codes.values()]))
    write_text(folder / EXPECTED, hex_rows(outs, [each.numpy() for each in rows.outputs]))
    made = [pipeline_part, wrapper_part] if (folder / f"{AXIS}.sv").is_file() else [pipeline_part]
    parts = [part(ins, outs, facts["latency_cycles"], len(rows)) for part in made]
    write_bench(folder, parts, len(rows))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "bench"
        shutil.copytree(folder, place)
        simulator, *_ = simulate(place)
    return proved_too(folder, facts, simulator)


def proved_too(folder: Path, facts: dict[str, Any], tool: str) -> str:
    """Prove the roundings of a circuit; the tool that ran it, and how many there were."""
    proved = prove_roundings(folder, [RoundingShape(**each) for each in facts["roundings"]])
    return f"{tool}; {proved} roundings proved for all codes" if proved else tool


def headers(program: IntegerProgram, pace: str) -> dict[str, str]:
    """The comment at the top of each file."""
    values = program.values
    lines = [
        f"A quantised network in integers, by chop {__version__}",
        f"program sha256 {program_checksum(program)}",
        pace,
        *(f"input{n}: {each.value}" for n, each in enumerate(program.inputs)),
        *(f"output{n}: {values[name]}" for n, name in enumerate(program.outputs)),
        "element i of a port stands in bits [i * width +: width]; its number is code * 2**-frac",
        *(line for each in program.inputs for line in point_lines(each.value)),
        *(line for name in program.outputs for line in point_lines(values[name])),
    ]
    found: dict[str, list[str]] = {"top": lines}
    found[OUTPUT] = ["elements of outputs that are elements of inputs, with a factor and an offset"]
    for layer, step in zip(layer_names(program), program.steps, strict=True):
        kind = type(step).__name__.lower()
        found.setdefault(layer, []).append(f"{step.out} = {kind}({', '.join(step.sources)})")
    text = {
        name: "".join(f"// {comment_text(line)}\n" for line in each) for name, each in found.items()
    }
    for layer in found.keys() - {"top"}:
        text[layer] += (
            "/* verilator lint_off UNUSEDSIGNAL */ // roundings drop the last bits of sums\n"
        )
    text["primitives"] = (
        "// Adders, roundings and tables of the layers, one module for each shape. Not every bit\n"
        "// of every operand is needed: ranges say which results cannot occur.\n"
        "/* verilator lint_off DECLFILENAME */\n/* verilator lint_off UNUSEDSIGNAL */\n"
    )
    return text


def point_lines(value: Value) -> list[str]:
    """The binary point of every element of a value, where they differ."""
    fracs = np.broadcast_to(value.frac, value.shape).reshape(-1)
    if not np.ptp(fracs):
        return []
    parts = np.split(fracs, range(OF_LINE, len(fracs), OF_LINE))
    return [
        f"frac of {value.name} from element {n * OF_LINE}: {' '.join(map(str, part))}"
        for n, part in enumerate(parts)
    ]


def comment_text(text: str) -> str:
    """Text for a comment; whatever is in a name, it cannot end it."""
    return re.sub(r"[^A-Za-z0-9_.,:;=+*()\[\]<> -]", "_", text)[:200]
