"""An integer program as QONNX: standard operators, and ``Quant`` nodes where numbers are rounded.

It is made from the program like every other form, so that what the executor of qonnx computes is
what the engine does; the graph's formats are the scales and widths of its nodes.
"""

import contextlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from chop.export.onnx.write.code import (
    IR_VERSION,
    OnnxCode,
    code_numbers,
    import_optional,
    power_array,
    write_model,
)
from chop.export.onnx.write.rounding import RoundingTarget, write_limits
from chop.export.onnx.write.standard import FILE, Plain, input_arrays, refuse_other_numbers
from chop.export.onnx.write.steps import onnx_model, write_onnx_step
from chop.export.onnx.write.windows import Weights
from chop.export.rows import CheckedRows
from chop.export.targets import TargetOptions, WrittenFiles, export_target
from chop.lowering import IntegerProgram
from chop.lowering.program import Codes
from chop.lowering.ranges import bit_width, compact, trailing_zeros

DOMAIN = "qonnx.custom_op.general"
NOTES = "Bit-equal to its integer program in the executor of qonnx"
WIDEST = 8
"""Bits of weights with one scale; wider ones have one for each row, if that makes them shorter."""


class QuantNodes(Plain):
    """Rounding and weights as ``Quant`` nodes."""

    most_bits = 24  # its executor knows float32 only

    def rounded(self, code: OnnxCode, x: str, to: RoundingTarget, dtype: Any) -> str:
        """Numbers of a format."""
        low, high = int(to.low.min()), int(to.high.max())
        width, signed = (bit_width(low, high), 1) if low < 0 else (high.bit_length(), 0)
        if (to.rounding, to.overflow) != ("half_even", "saturate") or width < 2:
            return super().rounded(code, x, to, dtype)  # one bit has a meaning of its own there
        if (to.low != full_range(width, signed)[0]).any() or (
            to.high != full_range(width, signed)[1]
        ).any():
            # Widths that differ between channels: the executor takes one for all.
            x = write_limits(
                code, x, *(code_numbers(side, to.frac, dtype) for side in (to.low, to.high))
            )
        return add_quant(code, x, to.frac, width, signed)

    def weights(self, code: OnnxCode, weights: Weights, dtype: Any) -> str:
        """Constants of a product as numbers that a ``Quant`` leaves as they are."""
        codes, frac = weights.codes, weights.frac
        if bit_width(int(codes.min()), int(codes.max())) > WIDEST:
            zeros = trailing_zeros(codes).reshape((-1,) + (1,) * (codes.ndim - 1))
            codes, frac = codes >> zeros, compact(frac - zeros, codes.shape)
        width = max(bit_width(int(codes.min()), int(codes.max())), 2)
        values = code_numbers(codes, frac, dtype)
        return add_quant(code, code.constant(values, weights.name), frac, width, 1)


def full_range(width: int, signed: int) -> tuple[int, int]:
    """The smallest and the largest code of a width."""
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)


def add_quant(code: OnnxCode, x: str, frac: Codes, width: int, signed: int) -> str:
    """A node that rounds to the even code and saturates."""
    code.domains[DOMAIN] = 1
    inputs = [
        code.constant(power_array(-frac, np.float32)),
        code.constant(np.array(0, np.float32)),
        code.constant(np.array(width, np.float32)),
    ]
    settings = {"signed": signed, "narrow": 0, "rounding_mode": "ROUND"}
    return code.node("Quant", x, *inputs, domain=DOMAIN, **settings)


@export_target("qonnx", extra="onnx", steps=write_onnx_step)
def write_qonnx(program: IntegerProgram, options: TargetOptions, folder: Path) -> WrittenFiles:
    """ONNX with the Quant nodes of QONNX, for one row, as tools for hardware expect it."""
    write_model(onnx_model(program, QuantNodes(), NOTES, 1), folder / FILE)
    return WrittenFiles()


@write_qonnx.check
def check_qonnx(folder: Path, rows: CheckedRows, options: TargetOptions) -> str:
    """Run the file in the executor of qonnx, all rows as one batch, and compare with the engine."""
    wrapper = import_optional("qonnx.core.modelwrapper").ModelWrapper
    model = import_optional("onnx").load(folder / FILE, load_external_data=False)
    for edge in (*model.graph.input, *model.graph.output):
        edge.type.tensor_type.shape.dim[0].dim_value = len(rows)
    wrapped = wrapper(model).transform(
        import_optional("qonnx.transformation.infer_shapes").InferShapes()
    )
    with readable_versions(), np.errstate(over="ignore"):  # of numbers far beyond all codes
        found = import_optional("qonnx.core.onnx_exec").execute_onnx(wrapped, input_arrays(rows))
    results = [found[edge.name] for edge in model.graph.output]
    refuse_other_numbers(results, rows, "qonnx's executor")
    return f"qonnx {version('qonnx')}"


@contextlib.contextmanager
def readable_versions() -> Iterator[None]:
    """Let the executor make files that onnxruntime reads.

    It makes one of each node, in the newest version that onnx has, which may be newer than that.
    """
    onnx = import_optional("onnx")
    newest = onnx.IR_VERSION
    onnx.IR_VERSION = IR_VERSION
    try:
        yield
    finally:
        onnx.IR_VERSION = newest
