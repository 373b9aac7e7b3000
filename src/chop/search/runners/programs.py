"""Hardware metrics of integer programs: what they take as circuits and as C on small devices.

A metric is a row of `chop.search.metrics.METRICS`, with its unit and direction, and a function here
that computes it, alone or with others, from `candidate.program`.
"""

from typing import Literal

from pydantic import Field

from chop.export.c.boards.estimate import estimate_cost
from chop.export.c.source import c_program
from chop.export.verilog.folded.circuit import plan_circuit
from chop.export.verilog.folded.cost import plan_cost
from chop.export.verilog.synthesis import DEVICE_SIZES
from chop.export.verilog.target import Hardware, circuit_cost
from chop.lowering import IntegerProgram, analyse, lower
from chop.ops.op import op_of_node
from chop.search.runners.runner import RunnerArgs, hardware_runner
from chop.search.spaces.space import Candidate


def whole_program(candidate: Candidate) -> IntegerProgram:
    """Return the integers of a candidate, refused if a layer with products is not among them."""
    program = candidate.program
    if program.tail:
        modules, tail = candidate.graph.modules, program.tail
        left = [op_of_node(each, modules) for each in candidate.graph.nodes if each.name in tail]
        if any(op is not None and op.multiplies for op in left):
            return lower(candidate.graph)  # which raises the reason
    return program


@hardware_runner("accumulator_bits", metrics=("accumulator_bits",))
def accumulator_bits(candidate: Candidate) -> dict[str, float]:
    """Bits of the widest sum or product in integers, for any input."""
    return {"accumulator_bits": analyse(candidate.program).accumulator_bits}


class CircuitArgs(RunnerArgs):
    """The places of the registers of the circuit, as in an export."""

    stages: int | None = Field(None, ge=0)
    clock_ns: float | None = Field(None, gt=0)
    most_luts: int = Field(200_000, ge=1)


@hardware_runner("circuit", metrics=("luts", "latency_cycles"))
def circuit(candidate: Candidate, args: CircuitArgs) -> dict[str, float]:
    """Look-up tables and clock cycles of the candidate as a fully parallel circuit."""
    asked = Hardware(args.stages, args.clock_ns, most_luts=args.most_luts)
    cost = circuit_cost(whole_program(candidate), asked)
    return {"luts": cost.luts, "latency_cycles": cost.latency_cycles}


class SmallDeviceArgs(RunnerArgs):
    """The aim that the forms of weights are chosen for, as in an export."""

    optimise: Literal["speed", "size"] = "speed"


@hardware_runner("small_device", metrics=("flash_bytes", "ram_bytes", "instructions"))
def small_device(candidate: Candidate, args: SmallDeviceArgs) -> dict[str, float]:
    """Flash, memory and instructions of the candidate as C on a Cortex-M4, without a compiler."""
    cost = estimate_cost(c_program(whole_program(candidate), args.optimise))
    return {
        "flash_bytes": cost.flash_bytes,
        "ram_bytes": cost.ram_bytes,
        "instructions": cost.instructions,
    }


class FoldedArgs(RunnerArgs):
    """The cycles of a folded circuit and the device that it has to fit, as in an export."""

    cycles: int | None = Field(None, ge=1)
    most_luts: int = Field(200_000, ge=1)
    device: str | None = None


@hardware_runner("folded_circuit", metrics=("luts", "block_rams", "cycles_per_image"))
def folded_circuit(candidate: Candidate, args: FoldedArgs) -> dict[str, float]:
    """Look-up tables, block memories and cycles of the candidate as a folded circuit."""
    size = None if args.device is None else DEVICE_SIZES[args.device]
    most = args.most_luts if size is None else min(args.most_luts, size.six_inputs)
    plan = plan_circuit(whole_program(candidate), args.cycles, most)
    cost = plan_cost(plan)
    if size is not None:
        size.refuse(str(args.device), cost.luts, cost.block_rams)
    return {"luts": cost.luts, "block_rams": cost.block_rams, "cycles_per_image": plan.cycles}
