"""The table of operations as the page `docs/operations.md`."""

import builtins
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from chop.ops import composed
from chop.ops.op import Op
from chop.ops.table import OPS

PLACES = (
    ("F.", F),
    ("torch.", torch),
    ("torch.linalg.", torch.linalg),
    ("operator.", operator),
    ("", builtins),
    ("composed.", composed),
)
HEAD = """# Operations

The operations that a graph recognises, however they are written, and the cost of a forward call.
This page is generated from the table: `make generate` writes it.

Operands are the roles that begin the keys of a configuration (`data_in_width`,
`weight_frac_width`). An operation without operands only moves values, or is supported only in
floating point, and is never quantised.

How an operation is quantised, in any number format, as a module or as a function:

- Each operand is rounded, then the float operation runs; `data_out_*` also rounds the result.
- By default a bias uses the weight's format; the second operand of a product, and the query, key
  and value of an attention, use that of `data_in`. A missing weight is an error.
- Formats that need no settings (`mxint8`, `binary` …) round every operand if the rule names none,
  otherwise only the named ones.
- The input of `relu` is unsigned unless `data_in_signed` is set. Blocks skip the first dimension of
  data, but not of weights and biases, unless `…_skip_first_dim` is set.
- Python numbers, integer and boolean tensors, attention masks and the running statistics of
  normalisations are not rounded.
- In-place operations stay in place.
- A quantised module shares parameters and buffers with the module that it replaces. Without
  gradients, parameters are rounded once, and later calls only compare them bit by bit.

Costs: one multiply-accumulate (MAC) is two FLOPs, a bias is free, any other arithmetic is one FLOP.

| operation | MASE type | what it is | written as | operands | cost |
|---|---|---|---|---|---|
"""


def operations_page() -> str:
    """The whole page."""
    return HEAD + "".join(f"| {' | '.join(page_row(op))} |\n" for op in OPS.values())


def page_row(op: Op) -> tuple[str, ...]:
    """One operation as the cells of its row."""
    module = [f"nn.{op.module.__name__}"] if op.module else []
    functions = [function_spelling(function) for function in op.functions]
    methods = [f"x.{name}()" for name in op.methods]
    operands = _code(dict.fromkeys(op.roles)) if op.quantizable else ""
    cost = (op.cost.__doc__ or "").partition("\n")[0].rstrip(".")
    forms = _code([*module, *functions, *methods])
    return f"`{op.name}`", f"`{op.mase_type}`", op.description, forms, operands, cost


def function_spelling(function: Callable[..., Any]) -> str:
    """The way a user writes a function: ``F.relu``, ``torch.add``, ``operator.matmul``."""
    return next(
        prefix + name
        for prefix, place in PLACES
        for name in sorted(vars(place), key=lambda name: (name.startswith("_"), name))
        if vars(place)[name] is function
    )


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
