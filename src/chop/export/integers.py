"""The target ``integer``: the program itself."""

from pathlib import Path

from chop.export.checking import refuse_other_codes
from chop.export.rows import CheckedRows, side_by_side
from chop.export.targets import TargetOptions, WrittenFiles, export_target
from chop.lowering import Engine, IntegerProgram, load_program, save_program


@export_target("integer")
def write_integer(program: IntegerProgram, options: TargetOptions, folder: Path) -> WrittenFiles:
    """The integer program itself, as JSON and arrays."""
    save_program(program, folder)
    return WrittenFiles()


@write_integer.check
def check_integer(folder: Path, rows: CheckedRows, options: TargetOptions) -> str:
    """Read the program again and compare plain integer arithmetic with the engine."""
    again = Engine(load_program(folder), "int64")
    refuse_other_codes(side_by_side(again.run(again.quantise(rows.numbers))), rows.flat_outputs)
    return "the engine in 64-bit integers"
