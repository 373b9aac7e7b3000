"""Number formats: how a real number is rounded, stored and counted."""

from chop.numerics.base import FORMATS, Encoded, NumberFormat, Operand, Quantizer
from chop.numerics.block_formats import BlockFP, BlockLog, BlockMinifloat
from chop.numerics.elementwise import Integer, Log
from chop.numerics.few_valued import Binary, Ternary
from chop.numerics.floating import Float8E4M3, Float8E5M2, MinifloatDenorm, MinifloatIEEE
from chop.numerics.int_tensor import DoubleTensor, FloatTensor, IntTensor
from chop.numerics.microscaling import MXFP4, MXFP6, MXFP8, NVFP4, MXInt8
from chop.numerics.scaled import IntegerScaled
from chop.numerics.trained import IntegerTrained

__all__ = [
    "FORMATS",
    "MXFP4",
    "MXFP6",
    "MXFP8",
    "NVFP4",
    "Binary",
    "BlockFP",
    "BlockLog",
    "BlockMinifloat",
    "DoubleTensor",
    "Encoded",
    "Float8E4M3",
    "Float8E5M2",
    "FloatTensor",
    "IntTensor",
    "Integer",
    "IntegerScaled",
    "IntegerTrained",
    "Log",
    "MXInt8",
    "MinifloatDenorm",
    "MinifloatIEEE",
    "NumberFormat",
    "Operand",
    "Quantizer",
    "Ternary",
]
