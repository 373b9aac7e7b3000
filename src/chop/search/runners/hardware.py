"""Hardware metrics of networks: widths, sizes and counts."""

from pydantic import AliasChoices, Field

from chop.errors import SearchError
from chop.passes.graph.analysis.flops.count import count
from chop.passes.graph.analysis.flops.ebops import EBOPS_ROWS, ebops
from chop.passes.graph.analysis.flops.operands import model_parameters
from chop.search.runners.runner import RunnerArgs, hardware_runner
from chop.search.runners.software import LoaderName
from chop.search.spaces.space import Candidate, SearchContext


class BitwidthArgs(RunnerArgs):
    """Reference width for memory_density."""

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
    """Bit operations of a sample: each multiplication counts the product of the two widths."""
    return {"bitops": _counts(candidate)["bitops"]}


class CalibrationArgs(RunnerArgs):
    """Rows to observe activations on: random ones of a loader, the same for every seed, or all."""

    data_loader: LoaderName = Field(
        "train_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(EBOPS_ROWS, ge=1)


def all_rows(context: SearchContext, args: CalibrationArgs) -> CalibrationArgs | None:
    """The settings for all rows, if the sample is not all of them."""
    if args.num_samples is None:
        return None
    rows = context.row_count(args.data_loader)
    is_all = rows is not None and rows <= args.num_samples
    return None if is_all else args.model_copy(update={"num_samples": None})


@hardware_runner("ebops", metrics=("ebops",), in_full=all_rows)
def effective_bitops(candidate: Candidate, args: CalibrationArgs) -> dict[str, float]:
    """Effective bit operations: each product times the bits that its weight and input use.

    Fewer rows than asked for are no mistake: all of them are looked at.
    """
    rows = candidate.context.features(args.data_loader, args.num_samples)
    found = ebops(candidate.graph, rows)
    if found.uncounted:
        node, reason = next(iter(found.uncounted.items()))
        raise SearchError(f"EBOPs cannot be counted: {node}: {reason}")
    return {"ebops": found.total}


def _counts(candidate: Candidate) -> dict[str, int]:
    return count(candidate.graph, only_work=True).total
