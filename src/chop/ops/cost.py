"""What one forward call of an operation costs, counted from shapes alone.

Conventions: one multiply-accumulate (MAC) is two floating-point operations (FLOPs). A bias is the
first value of the accumulator and costs nothing. Additions, multiplications, comparisons,
divisions, roots and exponentials cost one FLOP each. Moving values costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation, by its shapes.

    `inputs` are the tensors that flow in, in the order of the call, and `params` those that belong
    to the layer, also where a function takes them as arguments; `attributes` are the arguments of a
    function by name.
    """

    inputs: tuple[Shape, ...]
    output: Shape
    params: Mapping[str, Shape] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    module: nn.Module | None = None

    def attribute(self, name: str) -> object:
        """A setting of the operation, from the module or from the arguments of the function."""
        return getattr(self.module, name, None) if self.module else self.attributes.get(name)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call costs.

    `flops` include two for each of `macs`. Bit operations are each MAC times the widths of the
    `operands` that meet in it; other FLOPs work on the first operand only.
    """

    macs: int = 0
    flops: int = 0
    operands: tuple[str, ...] = ()


CostRule = Callable[[Call], Cost | None]


def uncounted(call: Call) -> None:
    """Not counted."""


def free(call: Call) -> Cost:
    """Nothing."""
    return Cost()


def elementwise(flops: int) -> CostRule:
    """A fixed number of FLOPs for each element of the output."""

    def rule(call: Call) -> Cost:
        return Cost(flops=flops * prod(call.output), operands=("data_in",))

    rule.__doc__ = f"{flops} FLOP{'s' * (flops > 1)} for each element of the output."
    return rule


def reduction(call: Call) -> Cost:
    """One FLOP for each element that is read."""
    return Cost(flops=prod(call.inputs[0]), operands=("data_in",))


def products(macs: int, *operands: str) -> Cost:
    """Nothing but multiply-accumulates of two operands."""
    return Cost(macs, 2 * macs, operands)


def linear(call: Call) -> Cost:
    """One MAC for each input feature of each output."""
    return products(prod(call.output) * call.params["weight"][-1], "data_in", "weight")


def convolution(call: Call) -> Cost:
    """One MAC for each place of the kernel and input channel of the group, for each output."""
    return products(prod(call.output) * prod(call.params["weight"][1:]), "data_in", "weight")


def transposed_convolution(call: Call) -> Cost:
    """One MAC for each place of the kernel and output channel of the group, for each input."""
    return products(prod(call.inputs[0]) * prod(call.params["weight"][1:]), "data_in", "weight")


def bilinear(call: Call) -> Cost:
    """Two MACs for each pair of features of each output."""
    return products(prod(call.output) * prod(call.params["weight"][1:]) * 2, "data_in", "weight")


def matrix_product(call: Call) -> Cost:
    """One MAC for each index of the shared dimension of each output."""
    return products(prod(call.output) * call.inputs[0][-1], "data_in", "weight")


def added_matrix_product(call: Call) -> Cost:
    """One MAC for each index of the shared dimension of each output; the first argument is free."""
    return products(prod(call.output) * call.inputs[1][-1], "data_in", "weight")


def einsum(call: Call) -> Cost | None:
    """One MAC for each operand but one at every point of the index space.

    Equations with an ellipsis, or operands given as a list, are not counted.
    """
    equation = call.attributes.get("equation")
    if not isinstance(equation, str) or "." in equation:
        return None
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(call.inputs):
        return None
    sizes = {
        label: size
        for term, shape in zip(terms, call.inputs, strict=True)
        for label, size in zip(term, shape, strict=True)
    }
    points = prod(sizes.values())
    if len(terms) == 1:
        return Cost(flops=points, operands=("data_in",))
    return products(points * (len(terms) - 1), "data_in", "weight")


def attention(call: Call) -> Cost:
    """MACs of the scores and of the weighted sum, and five FLOPs for the softmax of each score."""
    query, key, value = call.inputs[:3]
    scores = prod(query[:-1]) * key[-2]
    macs = scores * (query[-1] + value[-1])
    return Cost(macs, 2 * macs + 5 * scores, ("query", "key"))


def batch_norm(call: Call) -> Cost:
    """Two FLOPs an element in evaluation (scale and shift), in training as other normalisations."""
    training = call.module.training if call.module else bool(call.attributes.get("training"))
    if training:
        return normalisation(call)
    return Cost(flops=2 * prod(call.output), operands=("data_in",))


def normalisation(call: Call) -> Cost:
    """Five FLOPs an element (mean, difference, square, its mean, scale), one for each parameter."""
    affine = sum(call.params.get(name) is not None for name in ("weight", "bias"))
    return Cost(flops=(5 + affine) * prod(call.output), operands=("data_in",))


def rms_norm(call: Call) -> Cost:
    """Three FLOPs an element (square, its mean, scale), and one for the weight."""
    affine = call.params.get("weight") is not None
    return Cost(flops=(3 + affine) * prod(call.output), operands=("data_in",))


def pooling(dimensions: int) -> CostRule:
    """One FLOP for each element of the window of each output, over so many dimensions."""

    def rule(call: Call) -> Cost | None:
        """One FLOP for each element of the window of each output."""
        kernel = call.attribute("kernel_size")
        if isinstance(kernel, int):
            kernel = (kernel,) * dimensions
        if not isinstance(kernel, tuple | list):
            return None
        return Cost(flops=prod(kernel) * prod(call.output), operands=("data_in",))

    return rule
