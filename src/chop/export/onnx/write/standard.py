"""An integer program as ONNX of standard operators: quantise and dequantise where widths allow."""

from pathlib import Path
from typing import Any

import numpy as np

from chop.errors import GraphError
from chop.export.onnx.write.code import (
    BATCH,
    Array,
    OnnxCode,
    code_numbers,
    import_optional,
    power_array,
    write_model,
)
from chop.export.onnx.write.rounding import RoundingTarget, write_limits, write_rounding
from chop.export.onnx.write.steps import onnx_model, output_names, write_onnx_step
from chop.export.onnx.write.windows import Weights, step_weights
from chop.export.rows import CheckedRows
from chop.export.targets import TargetOptions, WrittenFiles, export_target
from chop.lowering import IntegerProgram
from chop.lowering.program import Codes, Convolution, Pool, Product
from chop.lowering.ranges import trailing_zeros

FILE = "model.onnx"
TYPES: tuple[tuple[int, Any], ...] = ((8, np.uint8), (16, np.uint16))
"""Only unsigned codes, with half the range as zero point for signed numbers: before processors
had VNNI, onnxruntime multiplied signed 8-bit weights with sums of 16 bits that saturate. And no
4-bit codes: at ORT_ENABLE_EXTENDED it takes a Relu before signed ones away."""
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
NOTES = (
    "Bit-equal to its integer program in onnxruntime on CPUs, at the optimisation levels "
    + ", ".join(LEVELS)
)


def code_type(low: int, high: int) -> tuple[Any, int] | None:
    """Return the type that stores codes, and its zero point; None if no type does."""
    for bits, kind in TYPES:
        zero = 0 if low >= 0 else 2 ** (bits - 1)
        if low + zero >= 0 and high + zero < 2**bits:
            return kind, zero
    return None


class Plain:
    """Rounding by multiplication, weights as numbers."""

    most_bits = 53
    only_gemm = False
    """Whether products are written as ``Gemm`` where ``MatMul`` would be shorter."""

    def rounded(self, code: OnnxCode, x: str, to: RoundingTarget, dtype: Any) -> str:
        """Numbers of a format."""
        return write_rounding(code, x, to, dtype)

    def weights(self, code: OnnxCode, weights: Weights, dtype: Any) -> str:
        """Constants of a product."""
        return code.constant(weights.numbers(dtype), weights.name)


class QuantiseDequantise(Plain):
    """Codes of 8 and 16 bits as ``QuantizeLinear`` and ``DequantizeLinear``.

    A ``MatMul`` of numbers that no ``DequantizeLinear`` gives with weights that one gives becomes
    a ``MatMulNBits`` at ORT_ENABLE_EXTENDED, which rounds the numbers to 8 bits; a ``Gemm`` stays.
    """

    only_gemm = True

    def rounded(self, code: OnnxCode, x: str, to: RoundingTarget, dtype: Any) -> str:
        """Numbers of a format."""
        stored = code_type(int(to.low.min()), int(to.high.max()))
        modes = (to.rounding, to.overflow)
        if stored is None or to.frac.size > 1 or to.again or dtype is not np.float32:
            return super().rounded(code, x, to, dtype)
        if modes != ("half_even", "saturate"):
            return super().rounded(code, x, to, dtype)
        kind, zero = stored
        full = np.iinfo(kind)
        if (to.low > int(full.min) - zero).any() or (to.high < int(full.max) - zero).any():
            x = write_limits(
                code, x, *(code_numbers(side, to.frac, dtype) for side in (to.low, to.high))
            )
        scale = power_array(-to.frac, dtype).reshape(())
        steps = [code.constant(scale), code.constant(np.array(zero, kind))]
        return code.node("DequantizeLinear", code.node("QuantizeLinear", x, *steps), *steps)

    def weights(self, code: OnnxCode, weights: Weights, dtype: Any) -> str:
        """Constants as codes, with one scale or one for each row."""
        stored = stored_weights(weights)
        if stored is None or dtype is not np.float32:
            return super().weights(code, weights, dtype)
        codes, frac, kind, zero = stored
        inputs = [
            code.constant((codes + zero).astype(kind), f"{weights.name}.codes"),
            code.constant(power_array(-frac, dtype)),
            code.constant(np.full(frac.shape, zero, kind)),
        ]
        where: dict[str, Any] = {"axis": 0} if frac.ndim else {}
        return code.node("DequantizeLinear", *inputs, **where)


def stored_weights(weights: Weights) -> tuple[Codes, Codes, Any, int] | None:
    """Codes of a type, their binary point (of each row, if that makes them shorter), zero point.

    The scale of data times that of weights must be the unit of the bias: onnxruntime rounds a bias
    to that. Therefore low bits are dropped only where they are 0 in the bias, too.
    """
    codes, frac = weights.codes, weights.frac
    if frac.size > 1:
        return None  # data with a scale for each channel
    stored = code_type(int(codes.min()), int(codes.max()))
    if stored is not None and stored[0] is np.uint8:
        return codes, frac.reshape(()), *stored
    zeros = trailing_zeros(codes, weights.bias)
    shorter = codes >> zeros.reshape((-1,) + (1,) * (codes.ndim - 1))
    stored = code_type(int(shorter.min()), int(shorter.max()))
    return None if stored is None else (shorter, frac.reshape(()) - zeros, *stored)


def style_of(program: IntegerProgram) -> Plain:
    """Codes where all weights have them: onnxruntime rounds others to 8 bits between codes."""
    values = program.values
    for step in program.steps:
        if isinstance(step, Product | Convolution | Pool):  # a pool has ones
            weights = step_weights(step, values[step.sources[0]])
            if stored_weights(weights) is None:
                return Plain()
    return QuantiseDequantise()


@export_target("onnx", extra="onnx", steps=write_onnx_step)
def write_onnx(program: IntegerProgram, options: TargetOptions, folder: Path) -> WrittenFiles:
    """ONNX with standard operators: numbers in, numbers out, for any number of rows."""
    write_model(onnx_model(program, style_of(program), NOTES, BATCH), folder / FILE)
    return WrittenFiles()


@write_onnx.check
def check_onnx(folder: Path, rows: CheckedRows, options: TargetOptions) -> str:
    """Run the file at every level that its notes name, and compare with the engine."""
    runtime = import_optional("onnxruntime")
    for level in LEVELS:
        session_options = runtime.SessionOptions()
        session_options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
        session_options.log_severity_level = 3
        session_options.intra_op_num_threads = 1
        session = runtime.InferenceSession(
            str(folder / FILE), session_options, providers=["CPUExecutionProvider"]
        )
        refuse_other_numbers(session.run(None, input_arrays(rows)), rows, level)
    return f"onnxruntime {runtime.__version__} at {', '.join(LEVELS)}"


def input_arrays(rows: CheckedRows) -> dict[str, Array]:
    """Rows as a file takes them: numbers before rounding."""
    return {name: each.numpy() for name, each in rows.numbers.items()}


def refuse_other_numbers(found: list[Array], rows: CheckedRows, where: str) -> None:
    """Raise if numbers are not those of the engine."""
    program = rows.program
    for label, name, given, codes in zip(
        output_names(program), program.outputs, found, rows.outputs, strict=True
    ):
        wanted = codes.numpy() * program.values[name].unit
        wrong = (given.astype(np.float64) != wanted).reshape(len(codes), -1).any(1)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise GraphError(
                f"export: at {where} {int(wrong.sum())} of {len(wrong)} rows of {label!r} "
                f"differ from the engine, the first is row {first}"
            )
