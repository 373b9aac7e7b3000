"""Hardware metrics of integer programs: what they take as circuits and as C on small devices.

A metric is a row of `chop.search.metrics.METRICS`, with its unit and direction, and a function here
that computes it, alone or with others, from `candidate.program`.
"""

from pydantic import Field

from chop.export.verilog.target import Hardware, circuit_cost
from chop.lowering import analyse
from chop.search.runners.runner import RunnerArgs, hardware_runner
from chop.search.spaces.space import Candidate


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
    cost = circuit_cost(candidate.program, asked)
    return {"luts": cost.luts, "latency_cycles": cost.latency_cycles}
