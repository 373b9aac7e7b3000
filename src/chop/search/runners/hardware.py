"""What a candidate costs: bits, bytes and operations."""

from typing import Any

from pydantic import Field

from chop.passes.graph.analysis.flops.count_operations import count_operations_analysis_pass
from chop.passes.graph.analysis.flops.widths import model_parameters
from chop.search.context import Candidate
from chop.search.runners.base import RunnerArgs, hardware_runner


class BitwidthArgs(RunnerArgs):
    """What to compare the stored bits with."""

    compare_to: float = Field(32, gt=0)


@hardware_runner("average_bitwidth", metrics=("average_bitwidth", "memory_density"))
def average_bitwidth(candidate: Candidate, args: BitwidthArgs) -> dict[str, float]:
    """Bits of a parameter, averaged over all of them; an unquantised one counts in full."""
    bits = candidate.parameter_width()
    return {"average_bitwidth": bits, "memory_density": args.compare_to / bits}


@hardware_runner("activation_bitwidth", metrics=("activation_bitwidth",))
def activation_bitwidth(candidate: Candidate) -> dict[str, float]:
    """Bits of an activation that arithmetic reads, averaged over all of them."""
    return {"activation_bitwidth": candidate.activation_width()}


@hardware_runner("model_size", metrics=("model_size",))
def model_size(candidate: Candidate) -> dict[str, float]:
    """Bytes of all parameters as codes of their formats, packed tensor by tensor, and buffers."""
    parameters = model_parameters(candidate.model)
    packed = sum(-(-bits // 8) for bits in parameters.values())
    return {"model_size": packed + sum(buffer.nbytes for buffer in candidate.model.buffers())}


@hardware_runner("flops", metrics=("flops",))
def flops(candidate: Candidate) -> dict[str, float]:
    """Floating-point operations of one sample."""
    return {"flops": _counts(candidate)["flops"]}


@hardware_runner("bitops", metrics=("bitops",))
def bitops(candidate: Candidate) -> dict[str, float]:
    """Bit operations of one sample: each multiplication times the widths that meet in it."""
    return {"bitops": _counts(candidate)["bitops"]}


def _counts(candidate: Candidate) -> dict[str, Any]:
    _, found = count_operations_analysis_pass(candidate.graph, {"report": False})
    total: dict[str, Any] = found["total"]
    return total
