"""The integers that a quantised network computes: program, rules, ranges, engine."""

from chop.lowering import rules  # noqa: F401  (registers)
from chop.lowering.comparing import Agreement, BrokenPromiseError, InIntegers
from chop.lowering.comparing import compare_with_integers as compare
from chop.lowering.engine import Engine
from chop.lowering.exactness import Exactness, NodeExactness, analyse
from chop.lowering.formats import LoweringError
from chop.lowering.from_graph import lower
from chop.lowering.program import IntegerProgram, Step, Value
from chop.lowering.stored import load_program, save_program
from chop.ops.op import LOWERINGS, lowering

__all__ = [
    "LOWERINGS",
    "Agreement",
    "BrokenPromiseError",
    "Engine",
    "Exactness",
    "InIntegers",
    "IntegerProgram",
    "LoweringError",
    "NodeExactness",
    "Step",
    "Value",
    "analyse",
    "compare",
    "load_program",
    "lower",
    "lowering",
    "save_program",
]
