"""The cost of one node, of a sample and of a whole graph."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from chop.nn.dispatched import ProductsSeen


@dataclass(frozen=True)
class NodeCount:
    """The cost of one node; work that could not be counted is None."""

    op: str
    macs: int | None = 0
    rounded_macs: int | None = 0
    half_rounded_macs: int | None = 0
    flops: int | None = 0
    backward_flops: int | None = 0
    bitops: int | None = 0
    parameters: int = 0
    parameter_bits: int = 0
    input_buffer_size: int = 0
    input_buffer_bits: int = 0
    output_buffer_size: int = 0
    output_buffer_bits: int = 0


NUMBERS = tuple(NodeCount.__dataclass_fields__)[1:]
OF_BITS = ("input_buffer_bits", "output_buffer_bits")
OF_WORK = ("macs", "rounded_macs", "half_rounded_macs", "flops", "backward_flops", "bitops")
OF_A_BATCH = (*OF_WORK, "input_buffer_size", "output_buffer_size", *OF_BITS)
"""What a larger batch has more of."""


def with_products(count: NodeCount, seen: ProductsSeen | None) -> NodeCount:
    """The count of a node, corrected by the products that ran in it.

    What ran in a node of which nothing is known is all there is to know; of others, products that
    their rule does not have are added, and no more count as rounded than were seen to be.
    """
    if seen is None:
        return count
    if count.macs is None:
        bitops = None if seen.rounded or seen.half_rounded else seen.bitops
        return replace(count, macs=seen.macs, rounded_macs=seen.rounded,
                       half_rounded_macs=seen.half_rounded, bitops=bitops)  # fmt: skip
    macs = max(count.macs, seen.macs)
    both = min(count.rounded_macs or 0, macs * seen.rounded // seen.macs)
    touched = (count.rounded_macs or 0) + (count.half_rounded_macs or 0)
    touched = min(touched, macs * (seen.rounded + seen.half_rounded) // seen.macs)
    added = seen.bitops * (macs - count.macs) // seen.macs
    return replace(count, macs=macs, rounded_macs=both, half_rounded_macs=touched - both,
                   bitops=(count.bitops or 0) + added)  # fmt: skip


def scales(whole: NodeCount, doubled: NodeCount) -> bool:
    """True if every count is a part for each sample and a part for all of them together.

    Counts of bits are left aside: blocks of elements that share bits may straddle samples.
    """
    pairs = [(getattr(whole, n), getattr(doubled, n)) for n in OF_A_BATCH if n not in OF_BITS]
    return all(one == two or (one is not None and one <= two <= 2 * one) for one, two in pairs)


def of_one(whole: NodeCount, doubled: NodeCount, batch: int) -> NodeCount:
    """The counts of a batch of one: what a sample adds, and what is there without any."""
    pairs = {name: (getattr(whole, name), getattr(doubled, name)) for name in OF_A_BATCH}
    ones = {
        name: -((one - two) // batch) + (2 * one - two)
        for name, (one, two) in pairs.items()
        if one is not None
    }
    return replace(whole, **ones)


def totals(counts: Iterable[NodeCount], parameters: Mapping[nn.Parameter, int]) -> dict[str, int]:
    """The sum over nodes; parameters that several nodes share are counted once."""
    counts = list(counts)
    work = {name: sum(getattr(count, name) or 0 for count in counts) for name in OF_A_BATCH}
    stored = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_bits": sum(parameters.values()),
    }
    return {name: (work | stored)[name] for name in NUMBERS}
