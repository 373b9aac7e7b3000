"""Arithmetic that has no module: sums, products, reductions."""

import operator
from typing import Any

import torch
import torch.nn.functional as F

from chop.ops import composed, cost
from chop.ops.op import MaseType, Op, Order, Reads, takes
from chop.ops.stepwise import TABLE
from chop.ops.torch_names import named_functions, named_methods

BUILTIN = MaseType.BUILTIN_FUNC
DATA_AND_WEIGHT = ("data_in", "weight")
WITH_BIAS = (*DATA_AND_WEIGHT, "bias")
ROWS_BY_COLUMNS = {"data_in": -1, "weight": -2}


def function_row(name: str, description: str, rule: cost.CostRule, **facts: Any) -> Op:
    """A function of torch: its forms are the functions and methods with its name."""
    names = (name, *facts.pop("aliases", ()))
    operators = facts.pop("operators", ())
    fields: dict[str, Any] = {
        "functions": named_functions(*names) + operators,
        "methods": named_methods(*names),
    }
    return Op(name=name, mase_type=BUILTIN, description=description, cost=rule, **fields | facts)


def binary_row(name: str, description: str, *operators: Any, **facts: Any) -> Op:
    """Arithmetic of two operands, either of which may be a number."""
    fields: dict[str, Any] = {
        "operators": operators,
        "arguments": takes("input:data_in", "other:data_in"),
        "inputs": ("data_in", "data_in"),
        "reads": Reads.PLACE,
    }
    return function_row(name, description, cost.elementwise_cost(1), **fields | facts)


def unary_row(name: str, description: str, *operators: Any, flops: int = 1) -> Op:
    """A function of each element."""
    rule = cost.elementwise_cost(flops)
    return function_row(name, description, rule, operators=operators, reads=Reads.PLACE)


ARITHMETIC = [
    binary_row("add", "Sum", operator.add, operator.iadd),
    binary_row("sub", "Difference", operator.sub, operator.isub, aliases=("subtract",)),
    binary_row("mul", "Product", operator.mul, operator.imul, aliases=("multiply",), summed={}),
    binary_row(
        "div",
        "Quotient",
        operator.truediv,
        operator.itruediv,
        aliases=("divide", "true_divide"),
    ),
    binary_row("floor_divide", "Quotient rounded down", operator.floordiv, operator.ifloordiv),
    binary_row("remainder", "Remainder of a division", operator.mod, operator.imod),
    binary_row(
        "pow",
        "Power",
        operator.pow,
        operator.ipow,
        arguments=takes("input:data_in", "exponent:data_in"),
    ),
    binary_row("maximum", "Larger of two, element by element"),
    binary_row("minimum", "Smaller of two, element by element"),
    unary_row("neg", "Negation", operator.neg),
    unary_row("abs", "Absolute value", operator.abs, abs),
    unary_row("sqrt", "Square root"),
    unary_row("rsqrt", "Reciprocal of the square root", flops=2),
    unary_row("reciprocal", "One divided by the element"),
    unary_row("square", "Square"),
    unary_row("exp", "Exponential"),
    unary_row("log", "Natural logarithm"),
    unary_row("log2", "Logarithm to base two"),
    unary_row("log1p", "Logarithm of one more", flops=2),
    unary_row("erf", "Error function"),
    unary_row("sin", "Sine"),
    unary_row("cos", "Cosine"),
    unary_row("tan", "Tangent"),
    unary_row("sinh", "Hyperbolic sine"),
    unary_row("cosh", "Hyperbolic cosine"),
    unary_row("floor", "Next integer below"),
    unary_row("ceil", "Next integer above"),
    unary_row("round", "Nearest integer", round),
    function_row(
        "clamp",
        "Limit to a range",
        cost.elementwise_cost(2),
        aliases=("clip",),
        aten=("clamp_min", "clamp_max"),
        reads=Reads.PLACE,
        limits=True,
    ),
]


def product_row(name: str, description: str, *arguments: str, **facts: Any) -> Op:
    """A product of two operands, added to the first argument if the function takes three."""
    is_added = len(arguments) == 3
    rule = cost.added_matrix_product if is_added else cost.matrix_product
    fields: dict[str, Any] = {
        "arguments": takes(*arguments),
        "inputs": WITH_BIAS if is_added else DATA_AND_WEIGHT,
    }
    return function_row(name, description, facts.pop("rule", rule), **fields | facts)


MATRICES = [
    product_row(
        "matmul",
        "Matrix product",
        "input:data_in",
        "other:weight",
        operators=(operator.matmul, operator.imatmul, torch.linalg.matmul),
        aten=("linalg_matmul",),
        order=Order.DENSE,
        summed=ROWS_BY_COLUMNS,
    ),
    product_row(
        "bmm",
        "Matrix product of each pair of a batch",
        "input:data_in",
        "mat2:weight",
        order=Order.DENSE,
        summed=ROWS_BY_COLUMNS,
    ),
    product_row(
        "mm",
        "Product of two matrices",
        "input:data_in",
        "mat2:weight",
        summed=ROWS_BY_COLUMNS,
    ),
    product_row("mv", "Product of a matrix and a vector", "input:data_in", "vec:weight"),
    product_row("dot", "Product of two vectors", "input:data_in", "tensor:weight"),
    product_row("inner", "Product over the last dimensions", "input:data_in", "other:weight"),
    product_row(
        "outer",
        "Product of each pair of elements of two vectors",
        "input:data_in",
        "vec2:weight",
        aliases=("ger",),
        rule=cost.contraction,
    ),
    function_row(
        "tensordot",
        "Product over several dimensions",
        cost.contraction,
        arguments=takes("a:data_in", "b:weight", "dims"),
        inputs=DATA_AND_WEIGHT,
    ),
    function_row(
        "vecdot",
        "Product of each pair of vectors",
        cost.vector_products,
        functions=(torch.linalg.vecdot,),
        aten=("linalg_vecdot",),
        arguments=takes("x:data_in", "y:weight", "dim"),
        inputs=DATA_AND_WEIGHT,
    ),
    product_row(
        "baddbmm",
        "Batched matrix product, added to the first argument",
        "input:bias",
        "batch1:data_in",
        "batch2:weight",
    ),
    product_row(
        "addbmm",
        "Sum of a batch of matrix products, added to the first argument",
        "input:bias",
        "batch1:data_in",
        "batch2:weight",
    ),
    product_row(
        "addmm",
        "Matrix product, added to the first argument",
        "input:bias",
        "mat1:data_in",
        "mat2:weight",
    ),
    product_row(
        "addmv",
        "Product of a matrix and a vector, added to the first argument",
        "input:bias",
        "mat:data_in",
        "vec:weight",
    ),
    function_row(
        "einsum",
        "Sum of products over named indices",
        cost.einsum_cost,
        arguments=takes("equation", "operands:data_in", "*rest:weight"),
        inputs=DATA_AND_WEIGHT,
        order=Order.ANY,
    ),
    function_row(
        "scaled_dot_product_attention",
        "Values weighted by the softmax of the products of queries and keys",
        cost.attention_cost,
        functions=(F.scaled_dot_product_attention,),
        run=composed.rounded_attention,
        arguments=takes("query:", "key:", "value:", "attn_mask"),
        inputs=("query", "key", "value"),
        inner=("scores", TABLE),
        unsigned=frozenset({TABLE}),
        aten=tuple(
            f"_scaled_dot_product_{kind}"
            for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention")
        ),
    ),
]

REDUCTIONS = [
    function_row(
        name,
        description,
        cost.reduction_cost,
        arguments=takes("input:data_in", "dim"),
        reads=Reads.SUMMED if name in ("sum", "mean", "cumsum") else Reads.ALL,
    )
    for name, description in (
        ("mean", "Mean"),
        ("sum", "Sum of elements"),
        ("prod", "Product of elements"),
        ("var", "Variance"),
        ("std", "Standard deviation"),
        ("logsumexp", "Logarithm of the sum of exponentials"),
        ("amax", "Largest element"),
        ("amin", "Smallest element"),
        ("cumsum", "Running sum"),
    )
] + [
    function_row(
        name,
        description,
        cost.reduction_cost,
        arguments=takes("input:data_in", "other:data_in"),
        inputs=("data_in", "data_in"),
    )
    for name, description in (
        ("max", "Largest element, or the larger of two tensors"),
        ("min", "Smallest element, or the smaller of two tensors"),
    )
]

NORM = function_row(
    "norm",
    "Norm",
    cost.reduction_cost,
    arguments=takes("input:data_in", "p", "dim"),
    aten=("linalg_vector_norm",),
)

MASKED_SOFTMAX = function_row(
    "masked_softmax",
    "Exponentials that sum to one, of what a mask leaves visible",
    cost.elementwise_cost(5),
    functions=(composed.masked_softmax,),
    run=composed.masked_softmax,
    arguments=takes("input:data_in", "visible", "dim"),
    inner=("data_in", TABLE),
    unsigned=frozenset({TABLE}),
    never_negative=True,
)

FUNCTIONS = [*ARITHMETIC, *MATRICES, *REDUCTIONS, NORM, MASKED_SOFTMAX]
