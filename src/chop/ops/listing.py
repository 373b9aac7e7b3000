"""The table of operations as the page `docs/operations.md`."""

import builtins
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from chop.ops import composed
from chop.ops.op import Op
from chop.ops.table import OPS

PLACES = (
    ("F.", F),
    ("torch.", torch),
    ("operator.", operator),
    ("", builtins),
    ("composed.", composed),
)
HEAD = """# Operations

What a graph recognises, however it is written, and what each forward call costs. Operands are the
roles that begin the keys of a configuration (`data_in_width`, `weight_frac_width`); an operation
without operands only moves values, or is known only in floating point, and is never quantised.

How an operation is quantised, in any number format, as a module or as a function:

- Each operand is rounded, then the float operation runs; `data_out_*` rounds its result as well.
- Without its own settings a bias uses the weight's format; the second operand of a product, and
  the query, key and value of an attention, use that of `data_in`. A missing weight is an error.
- Formats that need no settings (`mxint8`, `binary` …) round every operand if none is mentioned,
  else only those that are.
- The input of `relu` is unsigned unless `data_in_signed` is set. Blocks skip the first dimension of
  data, not of weights and biases, unless `…_skip_first_dim` is set.
- Python numbers, integer and boolean tensors, attention masks and the running statistics of
  normalisations are not rounded.
- What writes in place still does.
- A quantised module shares parameters and buffers with the module whose place it takes. Where no
  gradient is recorded, parameters are rounded once and compared bit by bit from then on.

Costs: one multiply-accumulate (MAC) is two FLOPs, a bias is free, any other arithmetic is one FLOP.

This page is generated from the table: `make generate` writes it.

| operation | MASE type | what it is | written as | operands | cost |
|---|---|---|---|---|---|
"""


def markdown() -> str:
    """The whole page."""
    return HEAD + "".join(f"| {' | '.join(row(op))} |\n" for op in OPS.values())


def write(path: str) -> None:
    """Write the page."""
    Path(path).write_text(markdown(), encoding="utf-8")


def row(op: Op) -> tuple[str, ...]:
    """One operation as the cells of its row."""
    module = [f"nn.{op.module.__name__}"] if op.module else []
    functions = [written(function) for function in op.functions]
    methods = [f"x.{name}()" for name in op.methods]
    operands = _code(dict.fromkeys(op.roles)) if op.quantizable else ""
    cost = (op.cost.__doc__ or "").partition("\n")[0].rstrip(".")
    forms = _code([*module, *functions, *methods])
    return f"`{op.name}`", f"`{op.mase_type}`", op.description, forms, operands, cost


def written(function: Callable[..., Any]) -> str:
    """The way a user writes a function: ``F.relu``, ``torch.add``, ``operator.matmul``."""
    return next(
        prefix + name
        for prefix, place in PLACES
        for name in sorted(vars(place), key=lambda name: (name.startswith("_"), name))
        if vars(place)[name] is function
    )


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
