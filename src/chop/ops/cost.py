"""The cost of one forward call of an operation, counted from shapes alone.

Conventions: one multiply-accumulate (MAC) is two floating-point operations (FLOPs). A bias is the
first value of the accumulator and costs nothing. Additions, multiplications, comparisons,
divisions, roots and exponentials cost one FLOP each. Moving values costs nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import NamedTuple

from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallShapes:
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


class PairedMacs(NamedTuple):
    """Multiply-accumulates in which the same two operands meet.

    An operand is a role or a parameter; any other name is something that the operation makes
    itself, such as the scores of attention, which is not rounded.
    """

    macs: int
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a call: products of pairs of operands, and all other arithmetic.

    Bit operations are each MAC times the widths of the two operands that meet in it.
    """

    products: tuple[PairedMacs, ...] = ()
    other_flops: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(product.macs for product in self.products)

    @property
    def flops(self) -> int:
        """Floating-point operations, two for each MAC."""
        return 2 * self.macs + self.other_flops


CostRule = Callable[[CallShapes], Cost | None]


def unknown_cost(call: CallShapes) -> None:
    """Not counted."""


def free(call: CallShapes) -> Cost:
    """Nothing."""
    return Cost()


def elementwise_cost(flops: int) -> CostRule:
    """A fixed number of FLOPs for each element of the output."""

    def rule(call: CallShapes) -> Cost:
        return Cost(other_flops=flops * prod(call.output))

    rule.__doc__ = f"{flops} FLOP{'s' * (flops > 1)} for each element of the output."
    return rule


def reduction_cost(call: CallShapes) -> Cost:
    """One FLOP for each element that is read."""
    return Cost(other_flops=prod(call.inputs[0]))


def macs_only(macs: int, *operands: str) -> Cost:
    """Nothing but multiply-accumulates of two operands."""
    return Cost((PairedMacs(macs, operands),) if macs else ())


def linear_cost(call: CallShapes) -> Cost:
    """One MAC for each input feature of each output."""
    return macs_only(prod(call.output) * call.params["weight"][-1], "data_in", "weight")


def convolution_cost(call: CallShapes) -> Cost:
    """One MAC for each place of the kernel and input channel of the group, for each output."""
    return macs_only(prod(call.output) * prod(call.params["weight"][1:]), "data_in", "weight")


def transposed_convolution_cost(call: CallShapes) -> Cost:
    """One MAC for each place of the kernel and output channel of the group, for each input."""
    return macs_only(prod(call.inputs[0]) * prod(call.params["weight"][1:]), "data_in", "weight")


def bilinear_cost(call: CallShapes) -> Cost:
    """Two MACs for each pair of features of each output; what the first makes is not rounded."""
    macs = prod(call.output) * prod(call.params["weight"][1:])
    return Cost((PairedMacs(macs, ("data_in", "weight")), PairedMacs(macs, ("product", "data_in"))))


def matrix_product(call: CallShapes) -> Cost:
    """One MAC for each index of the shared dimension of each output."""
    return macs_only(prod(call.output) * call.inputs[0][-1], "data_in", "weight")


def added_matrix_product(call: CallShapes) -> Cost:
    """One MAC for each index of the shared dimension of each output; the first argument is free."""
    data, weight = call.inputs[1:3]
    return macs_only(prod(data) * (weight[-1] if len(weight) > 1 else 1), "data_in", "weight")


def contraction(call: CallShapes) -> Cost:
    """One MAC for each index of the shared dimensions of each output."""
    one, other = map(prod, call.inputs[:2])  # each the shared size times its part of the output
    return macs_only(isqrt(one * other * prod(call.output)), "data_in", "weight")


def vector_products(call: CallShapes) -> Cost:
    """One MAC for each element of the vectors of each output."""
    dim = call.attributes.get("dim", -1)
    size = call.inputs[0][dim if isinstance(dim, int) else -1]
    return macs_only(prod(call.output) * size, "data_in", "weight")


def einsum_cost(call: CallShapes) -> Cost | None:
    """One MAC for each operand but one at every point of the index space.

    A third operand meets the product of the first two, which is not rounded. Operands given as a
    list are not counted.
    """
    equation = call.attributes.get("equation")
    if not isinstance(equation, str):
        return None
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(call.inputs):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, call.inputs, strict=True):
        for label, size in label_sizes(term, shape):
            sizes[label] = max(size, sizes.get(label, 1))  # what is behind an ellipsis broadcasts
    points = prod(sizes.values())
    if len(terms) == 1:
        return Cost(other_flops=points)
    others = (PairedMacs(points, ("product", "weight")),) * (len(terms) - 2)
    return Cost((PairedMacs(points, ("data_in", "weight")), *others))


def label_sizes(term: str, shape: Shape) -> Iterator[tuple[str, int]]:
    """Each size of an operand with its label; those of an ellipsis are numbered from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after) if dots else 0
    labels = [*before, *(f"...{place}" for place in reversed(range(hidden))), *after]
    return zip(labels, shape, strict=True)


SCALE_AND_SOFTMAX = 6  # FLOPs for each score: one to scale it, five as any softmax


def attention_cost(call: CallShapes) -> Cost:
    """MACs of scores and weighted sum; six FLOPs a score to scale and softmax, one to mask it."""
    query, key, value = call.inputs[:3]
    scores = prod(call.output[:-1]) * key[-2]
    masked = len(call.inputs) > 3 or bool(call.attributes.get("is_causal"))
    meetings = (
        PairedMacs(scores * query[-1], ("query", "key")),
        PairedMacs(scores * value[-1], ("scores", "value")),
    )
    return Cost(meetings, (SCALE_AND_SOFTMAX + masked) * scores)


def multihead_attention(call: CallShapes) -> Cost | None:
    """Projections and an attention for each head."""
    # Averaging the weights over the heads, which `need_weights` asks for, is left aside.
    layer = call.module
    if not isinstance(layer, nn.MultiheadAttention):
        return attention_function(call)
    key = call.inputs[1]
    keys = key[1] if layer.batch_first and len(key) == 3 else key[0]
    keys += (layer.bias_k is not None) + layer.add_zero_attn
    rows = prod(call.inputs[0][:-1])
    scores = rows * keys * layer.num_heads
    meetings = (
        *projections(call, layer),
        PairedMacs(scores * layer.head_dim, ("projected query", "projected key")),
        PairedMacs(scores * layer.head_dim, ("scores", "projected value")),
        PairedMacs(rows * layer.embed_dim**2, ("heads", "out_proj.weight")),
    )
    masked = len(call.inputs) > 3
    return Cost(meetings, (SCALE_AND_SOFTMAX + masked) * scores)


def attention_function(call: CallShapes) -> Cost | None:
    """The same for `F.multi_head_attention_forward`, whose sequences come first."""
    width, heads = call.attributes.get("embed_dim_to_check"), call.attributes.get("num_heads")
    if not isinstance(width, int) or not isinstance(heads, int):
        return None
    learned = (1, 1, width) in call.inputs[3:]  # a key and a value that belong to the layer
    extra = learned + bool(call.attributes.get("add_zero_attn"))
    rows, keys = prod(call.inputs[0][:-1]), call.inputs[1][0] + extra
    roles = ("query", "key", "value")
    meetings = (
        *(PairedMacs(prod(each) * width, (role, "weight"))
          for role, each in zip(roles, call.inputs, strict=False)),
        PairedMacs(rows * keys * width, ("projected query", "projected key")),
        PairedMacs(rows * keys * width, ("scores", "projected value")),
        PairedMacs(rows * width**2, ("heads", "out_proj.weight")),
    )  # fmt: skip
    return Cost(meetings, SCALE_AND_SOFTMAX * rows * keys * heads)


def projections(call: CallShapes, layer: nn.MultiheadAttention) -> list[PairedMacs]:
    """The products that make queries, keys and values of the inputs."""
    own = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    weights = own if layer.in_proj_weight is None else ("in_proj_weight",) * 3
    roles = ("query", "key", "value")
    return [
        PairedMacs(prod(shape) * layer.embed_dim, (role, weight))
        for role, weight, shape in zip(roles, weights, call.inputs[:3], strict=True)
    ]


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEP_FLOPS = {"LSTM": 21, "GRU": 18, "RNN": 5}
"""For each element of the hidden state: sums of the products, activations, and what joins them."""


def recurrent_cost(call: CallShapes) -> Cost | None:
    """The products of input and hidden state with the weights of each gate, at each step."""
    layer = call.module
    if not isinstance(layer, nn.RNNBase):
        return None
    kind = layer.mode.partition("_")[0]
    rows = prod(call.inputs[0][:-1])
    ways = 2 if layer.bidirectional else 1
    state = layer.proj_size or layer.hidden_size
    width = GATES[kind] * layer.hidden_size
    widths = [layer.input_size, *[state * ways] * (layer.num_layers - 1)]
    each = rows * ways
    projected = each * layer.num_layers * layer.hidden_size * layer.proj_size
    meetings = (
        PairedMacs(each * width * sum(widths), ("data_in", "weight")),
        PairedMacs(each * width * state * layer.num_layers + projected, ("hidden", "weight")),
    )
    return Cost(meetings, STEP_FLOPS[kind] * each * layer.hidden_size * layer.num_layers)


def recurrent_cell_cost(call: CallShapes) -> Cost | None:
    """The products of input and hidden state with the weights of each gate."""
    hidden = call.output[-1]
    rows = prod(call.output[:-1])
    weights = [shape for name, shape in call.params.items() if name.startswith("weight")]
    if not weights:
        return None
    gates = weights[0][0]
    kind = {count: name for name, count in GATES.items()}[gates // hidden]
    meetings = (
        PairedMacs(rows * gates * call.inputs[0][-1], ("data_in", "weight")),
        PairedMacs(rows * gates * hidden, ("hidden", "weight")),
    )
    return Cost(meetings, STEP_FLOPS[kind] * rows * hidden)


def batch_norm_cost(call: CallShapes) -> Cost:
    """Two FLOPs an element in evaluation (scale and shift), in training as other normalisations."""
    training = call.module.training if call.module else bool(call.attributes.get("training"))
    if training:
        return normalisation(call)
    return Cost(other_flops=2 * prod(call.output))


def normalisation(call: CallShapes) -> Cost:
    """Five FLOPs an element (mean, difference, square, its mean, scale), one for each parameter."""
    affine = sum(call.params.get(name) is not None for name in ("weight", "bias"))
    return Cost(other_flops=(5 + affine) * prod(call.output))


def rms_norm_cost(call: CallShapes) -> Cost:
    """Three FLOPs an element (square, its mean, scale), and one for the weight."""
    affine = call.params.get("weight") is not None
    return Cost(other_flops=(3 + affine) * prod(call.output))


def pooling(dimensions: int) -> CostRule:
    """One FLOP for each element of the window of each output, over so many dimensions."""

    def rule(call: CallShapes) -> Cost | None:
        """One FLOP for each element of the window of each output."""
        kernel = call.attribute("kernel_size")
        if isinstance(kernel, int):
            kernel = (kernel,) * dimensions
        if not isinstance(kernel, tuple | list):
            return None
        return Cost(other_flops=prod(kernel) * prod(call.output))

    return rule


PRODUCTS = frozenset((
    linear_cost, convolution_cost, transposed_convolution_cost, bilinear_cost, matrix_product,
    added_matrix_product, contraction, vector_products, einsum_cost, attention_cost,
    recurrent_cost, recurrent_cell_cost,
))  # fmt: skip
"""The rules of operations that multiply one operand by another, and sum."""
