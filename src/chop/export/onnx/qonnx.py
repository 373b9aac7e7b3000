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

from chop.export.onnx.code import IR_VERSION, OnnxCode, needed, numbers, power, write_model
from chop.export.onnx.standard import FILE, Plain, fed, refuse_differences
from chop.export.onnx.steps import Rounding, limited, onnx_model
from chop.export.onnx.windows import Weights
from chop.export.rows import CheckedRows
from chop.lowering import IntegerProgram
from chop.lowering.program import Codes
from chop.lowering.ranges import bits, compact, trailing_zeros

DOMAIN = "qonnx.custom_op.general"
NOTES = "Bit-equal to its integer program in the executor of qonnx"
WIDEST = 8
"""Bits of weights with one scale; wider ones have one for each row, if that makes them shorter."""


class QuantNodes(Plain):
    """Rounding and weights as ``Quant`` nodes."""

    most_bits = 24  # its executor knows float32 only

    def rounded(self, code: OnnxCode, x: str, to: Rounding, dtype: Any) -> str:
        """Numbers of a format."""
        low, high = int(to.low.min()), int(to.high.max())
        width, signed = (bits(low, high), 1) if low < 0 else (high.bit_length(), 0)
        if (to.rounding, to.overflow) != ("half_even", "saturate") or width < 2:
            return super().rounded(code, x, to, dtype)  # one bit has a meaning of its own there
        if (to.low != full(width, signed)[0]).any() or (to.high != full(width, signed)[1]).any():
            # Widths that differ between channels: the executor takes one for all.
            x = limited(code, x, *(numbers(side, to.frac, dtype) for side in (to.low, to.high)))
        return quant(code, x, to.frac, width, signed)

    def weights(self, code: OnnxCode, weights: Weights, dtype: Any) -> str:
        """Constants of a product as numbers that a ``Quant`` leaves as they are."""
        codes, frac = weights.codes, weights.frac
        if bits(int(codes.min()), int(codes.max())) > WIDEST:
            zeros = trailing_zeros(codes).reshape((-1,) + (1,) * (codes.ndim - 1))
            codes, frac = codes >> zeros, compact(frac - zeros, codes.shape)
        width = max(bits(int(codes.min()), int(codes.max())), 2)
        values = numbers(codes, frac, dtype)
        return quant(code, code.constant(values, weights.name), frac, width, 1)


def full(width: int, signed: int) -> tuple[int, int]:
    """The smallest and the largest code of a width."""
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)


def quant(code: OnnxCode, x: str, frac: Codes, width: int, signed: int) -> str:
    """A node that rounds to the even code and saturates."""
    code.domains[DOMAIN] = 1
    inputs = [
        code.constant(power(-frac, np.float32)),
        code.constant(np.array(0, np.float32)),
        code.constant(np.array(width, np.float32)),
    ]
    settings = {"signed": signed, "narrow": 0, "rounding_mode": "ROUND"}
    return code.node("Quant", x, *inputs, domain=DOMAIN, **settings)


def write_qonnx(program: IntegerProgram, folder: Path) -> None:
    """Write ``model.onnx``: numbers in, numbers out, for one row, as tools for hardware expect."""
    write_model(onnx_model(program, QuantNodes(), NOTES, 1), folder / FILE)


def check_qonnx(folder: Path, rows: CheckedRows) -> str:
    """Run the file in the executor of qonnx, all rows as one batch, and compare with the engine."""
    wrapper = needed("qonnx.core.modelwrapper").ModelWrapper
    model = needed("onnx").load(folder / FILE, load_external_data=False)
    for edge in (*model.graph.input, *model.graph.output):
        edge.type.tensor_type.shape.dim[0].dim_value = len(rows)
    wrapped = wrapper(model).transform(needed("qonnx.transformation.infer_shapes").InferShapes())
    with readable_versions(), np.errstate(over="ignore"):  # of numbers far beyond all codes
        found = needed("qonnx.core.onnx_exec").execute_onnx(wrapped, fed(rows))
    results = [found[edge.name] for edge in model.graph.output]
    refuse_differences(results, rows, "qonnx's executor")
    return f"qonnx {version('qonnx')}"


@contextlib.contextmanager
def readable_versions() -> Iterator[None]:
    """Let the executor make files that onnxruntime reads.

    It makes one of each node, in the newest version that onnx has, which may be newer than that.
    """
    onnx = needed("onnx")
    newest = onnx.IR_VERSION
    onnx.IR_VERSION = IR_VERSION
    try:
        yield
    finally:
        onnx.IR_VERSION = newest
