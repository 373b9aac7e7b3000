"""Arithmetic that has no module: sums, products, reductions."""

import operator
from typing import Any

import torch
import torch.nn.functional as F

from chop.ops import composed, cost
from chop.ops.op import MaseType, Op, Order, Reads, takes
from chop.ops.torch_names import named_functions, named_methods

BUILTIN = MaseType.BUILTIN_FUNC
DATA_AND_WEIGHT = ("data_in", "weight")
WITH_BIAS = (*DATA_AND_WEIGHT, "bias")
ROWS_BY_COLUMNS = {"data_in": -1, "weight": -2}


def function(name: str, description: str, rule: cost.CostRule, **facts: Any) -> Op:
    """A function of torch: its forms are the functions and methods with its name."""
    names = (name, *facts.pop("aliases", ()))
    operators = facts.pop("operators", ())
    fields: dict[str, Any] = {
        "functions": named_functions(*names) + operators,
        "methods": named_methods(*names),
    }
    return Op(name=name, mase_type=BUILTIN, description=description, cost=rule, **fields | facts)


def binary(name: str, description: str, *operators: Any, **facts: Any) -> Op:
    """Arithmetic of two operands, either of which may be a number."""
    fields: dict[str, Any] = {
        "operators": operators,
        "arguments": takes("input:data_in", "other:data_in"),
        "inputs": ("data_in", "data_in"),
        "reads": Reads.PLACE,
    }
    return function(name, description, cost.elementwise(1), **fields | facts)


def unary(name: str, description: str, *operators: Any, flops: int = 1) -> Op:
    """A function of each element."""
    rule = cost.elementwise(flops)
    return function(name, description, rule, operators=operators, reads=Reads.PLACE)


ARITHMETIC = [
    binary("add", "Sum", operator.add, operator.iadd),
    binary("sub", "Difference", operator.sub, operator.isub, aliases=("subtract",)),
    binary("mul", "Product", operator.mul, operator.imul, aliases=("multiply",), summed={}),
    binary(
        "div",
        "Quotient",
        operator.truediv,
        operator.itruediv,
        aliases=("divide", "true_divide"),
    ),
    binary("floor_divide", "Quotient rounded down", operator.floordiv, operator.ifloordiv),
    binary("remainder", "Remainder of a division", operator.mod, operator.imod),
    binary(
        "pow",
        "Power",
        operator.pow,
        operator.ipow,
        arguments=takes("input:data_in", "exponent:data_in"),
    ),
    binary("maximum", "Larger of two, element by element"),
    binary("minimum", "Smaller of two, element by element"),
    unary("neg", "Negation", operator.neg),
    unary("abs", "Absolute value", operator.abs, abs),
    unary("sqrt", "Square root"),
    unary("rsqrt", "Reciprocal of the square root", flops=2),
    unary("reciprocal", "One divided by the element"),
    unary("square", "Square"),
    unary("exp", "Exponential"),
    unary("log", "Natural logarithm"),
    unary("log2", "Logarithm to base two"),
    unary("log1p", "Logarithm of one more", flops=2),
    unary("erf", "Error function"),
    unary("sin", "Sine"),
    unary("cos", "Cosine"),
    unary("tan", "Tangent"),
    unary("sinh", "Hyperbolic sine"),
    unary("cosh", "Hyperbolic cosine"),
    unary("floor", "Next integer below"),
    unary("ceil", "Next integer above"),
    unary("round", "Nearest integer", round),
    function(
        "clamp",
        "Limit to a range",
        cost.elementwise(2),
        aliases=("clip",),
        aten=("clamp_min", "clamp_max"),
        reads=Reads.PLACE,
    ),
]


def product(name: str, description: str, *arguments: str, **facts: Any) -> Op:
    """A product of two operands, added to the first argument if the function takes three."""
    is_added = len(arguments) == 3
    rule = cost.added_matrix_product if is_added else cost.matrix_product
    fields: dict[str, Any] = {
        "arguments": takes(*arguments),
        "inputs": WITH_BIAS if is_added else DATA_AND_WEIGHT,
    }
    return function(name, description, facts.pop("rule", rule), **fields | facts)


MATRICES = [
    product(
        "matmul",
        "Matrix product",
        "input:data_in",
        "other:weight",
        operators=(operator.matmul, operator.imatmul, torch.linalg.matmul),
        aten=("linalg_matmul",),
        order=Order.DENSE,
        summed=ROWS_BY_COLUMNS,
    ),
    product(
        "bmm",
        "Matrix product of each pair of a batch",
        "input:data_in",
        "mat2:weight",
        order=Order.DENSE,
        summed=ROWS_BY_COLUMNS,
    ),
    product(
        "mm",
        "Product of two matrices",
        "input:data_in",
        "mat2:weight",
        summed=ROWS_BY_COLUMNS,
    ),
    product("mv", "Product of a matrix and a vector", "input:data_in", "vec:weight"),
    product("dot", "Product of two vectors", "input:data_in", "tensor:weight"),
    product("inner", "Product over the last dimensions", "input:data_in", "other:weight"),
    product(
        "outer",
        "Product of each pair of elements of two vectors",
        "input:data_in",
        "vec2:weight",
        aliases=("ger",),
        rule=cost.contraction,
    ),
    function(
        "tensordot",
        "Product over several dimensions",
        cost.contraction,
        arguments=takes("a:data_in", "b:weight", "dims"),
        inputs=DATA_AND_WEIGHT,
    ),
    function(
        "vecdot",
        "Product of each pair of vectors",
        cost.vector_products,
        functions=(torch.linalg.vecdot,),
        aten=("linalg_vecdot",),
        arguments=takes("x:data_in", "y:weight", "dim"),
        inputs=DATA_AND_WEIGHT,
    ),
    product(
        "baddbmm",
        "Batched matrix product, added to the first argument",
        "input:bias",
        "batch1:data_in",
        "batch2:weight",
    ),
    product(
        "addbmm",
        "Sum of a batch of matrix products, added to the first argument",
        "input:bias",
        "batch1:data_in",
        "batch2:weight",
    ),
    product(
        "addmm",
        "Matrix product, added to the first argument",
        "input:bias",
        "mat1:data_in",
        "mat2:weight",
    ),
    product(
        "addmv",
        "Product of a matrix and a vector, added to the first argument",
        "input:bias",
        "mat:data_in",
        "vec:weight",
    ),
    function(
        "einsum",
        "Sum of products over named indices",
        cost.einsum,
        arguments=takes("equation", "operands:data_in", "*rest:weight"),
        inputs=DATA_AND_WEIGHT,
        order=Order.ANY,
    ),
    function(
        "scaled_dot_product_attention",
        "Values weighted by the softmax of the products of queries and keys",
        cost.attention,
        functions=(F.scaled_dot_product_attention,),
        run=composed.attention,
        arguments=takes("query:", "key:", "value:", "attn_mask"),
        inputs=("query", "key", "value"),
        inner=("scores",),
        aten=tuple(
            f"_scaled_dot_product_{kind}"
            for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention")
        ),
    ),
]

REDUCTIONS = [
    function(
        name,
        description,
        cost.reduction,
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
    function(
        name,
        description,
        cost.reduction,
        arguments=takes("input:data_in", "other:data_in"),
        inputs=("data_in", "data_in"),
    )
    for name, description in (
        ("max", "Largest element, or the larger of two tensors"),
        ("min", "Smallest element, or the smaller of two tensors"),
    )
]

NORM = function(
    "norm",
    "Norm",
    cost.reduction,
    arguments=takes("input:data_in", "p", "dim"),
    aten=("linalg_vector_norm",),
)

FUNCTIONS = [*ARITHMETIC, *MATRICES, *REDUCTIONS, NORM]
