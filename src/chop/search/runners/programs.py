"""Hardware metrics of integer programs: what they take as circuits and as C on small devices.

A metric is a row of `chop.search.metrics.METRICS`, with its unit and direction, and a function here
that computes it, alone or with others, from `candidate.program`.
"""

from typing import Literal

from pydantic import Field

from chop.export.c.boards.estimate import estimate_cost
from chop.export.c.source import c_program
from chop.export.verilog.target import Hardware, circuit_cost
from chop.lowering import analyse
from chop.search.runners.runner import RunnerArgs, hardware_runner
from chop.search.spaces.space import Candidate


@hardware_runner("accumulator_bits", metrics=("accumulator_bits",))
def accumulator_bits(candidate: Candidate) -> dict[str, float]:
    """Bits of the widest sum or product in integers, for any input."""
    return {"accumulator_bits": analyse(candidate.program).accumulator_bits}


class CircuitArgs(RunnerArgs):
    """Where the registers of the circuit are, as in an export."""

    stages: int | None = Field(None, ge=0)
    clock_ns: float | None = Field(None, gt=0)
    most_luts: int = Field(200_000, ge=1)


@hardware_runner("circuit", metrics=("luts", "latency_cycles"))
def circuit(candidate: Candidate, args: CircuitArgs) -> dict[str, float]:
    """Look-up tables and clock cycles of the candidate as a fully parallel circuit."""
    asked = Hardware(args.stages, args.clock_ns, most_luts=args.most_luts)
    cost = circuit_cost(candidate.program, asked)
    return {"luts": cost.luts, "latency_cycles": cost.latency_cycles}


class SmallDeviceArgs(RunnerArgs):
    """What the forms of weights are chosen for, as in an export."""

    optimise: Literal["speed", "size"] = "speed"


@hardware_runner("small_device", metrics=("flash_bytes", "ram_bytes", "instructions"))
def small_device(candidate: Candidate, args: SmallDeviceArgs) -> dict[str, float]:
    """Flash, memory and instructions of the candidate as C on a Cortex-M4, without a compiler."""
    cost = estimate_cost(c_program(candidate.program, args.optimise))
    return {
        "flash_bytes": cost.flash_bytes,
        "ram_bytes": cost.ram_bytes,
        "instructions": cost.instructions,
    }
