"""Every shape of rounding, proved to be what a format says, for all codes, by Yosys."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chop.errors import GraphError
from chop.export.tools import run_tool
from chop.export.verilog.netlist import Round, code_bits
from chop.export.verilog.primitives import signed_literal
from chop.files import write_text


@dataclass(frozen=True)
class RoundingShape:
    """The rounding that a module has to compute, for codes between `low` and `high`."""

    module: str
    low: int
    high: int
    drop: int
    even: bool
    wraps: bool
    least: int
    most: int


def rounding_shapes(rounds: Mapping[str, Sequence[Round]]) -> list[RoundingShape]:
    """The shapes of a circuit, each for all codes that reach it anywhere."""
    return [
        RoundingShape(
            name, min(each.source.low for each in uses), max(each.source.high for each in uses),
            uses[0].drop, uses[0].even, uses[0].wraps, uses[0].low, uses[0].high,
        )
        for name, uses in rounds.items()
    ]  # fmt: skip


def rounding_statement(shape: RoundingShape, name: str) -> str:
    """A module whose output is 1 wherever a rounding is right: division, ties and limits in full.

    The source has a half added; the definition is of the number without it.
    """
    size, result = code_bits(shape.low, shape.high), code_bits(shape.least, shape.most)
    wide = max(size, result) + 3
    half = signed_literal(1 << shape.drop >> 1, wide)
    signed = f"$signed({{{wide - size}'d0, a}})" if shape.low >= 0 else "$signed(a)"
    y = f"$signed({{{wide - result}'d0, y}})" if shape.least >= 0 else "$signed(y)"
    least, most = (signed_literal(end, wide) for end in (shape.least, shape.most))
    low, high = (signed_literal(end, wide) for end in (shape.low, shape.high))
    odd = "floor[0]" if shape.even else "1'b1"
    limited = f"v < {least} ? {least} : v > {most} ? {most} : v"
    equal = f"v[{result - 1}:0] == y" if shape.wraps else f"({limited}) == {y}"
    return f"""\
module {name} (input wire [{size - 1}:0] a, output wire ok);
  wire [{result - 1}:0] y;
  {shape.module} made (.a(a), .y(y));
  wire signed [{wide - 1}:0] given = {signed};
  wire signed [{wide - 1}:0] x = given - {half};
  wire signed [{wide - 1}:0] floor = x >>> {shape.drop};
  wire signed [{wide - 1}:0] rest = x - (floor <<< {shape.drop});
  wire up = {shape.drop} != 0 && (rest > {half} || (rest == {half} && {odd}));
  wire signed [{wide - 1}:0] v = floor + $signed({{1'b0, up}});
  assign ok = given < {low} || given > {high} || {equal};
endmodule
"""


def prove_roundings(folder: Path, wanted: Sequence[RoundingShape]) -> int:
    """Prove every shape; how many there were. A wrong one is refused."""
    if not wanted or shutil.which("yosys") is None:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        names = [f"shape_{number}" for number in range(len(wanted))]
        modules = "\n".join(map(rounding_statement, wanted, names))
        write_text(place / "shapes.sv", modules)
        lines = [f'read_verilog -sv "{folder / "primitives.sv"}"', 'read_verilog -sv "shapes.sv"']
        lines += ["proc", "flatten", "opt_clean"]
        lines += [f"sat -verify -prove ok 1 {name}" for name in names]
        write_text(place / "prove.ys", "\n".join(lines) + "\n")
        try:
            run_tool(["yosys", "-q", "-s", "prove.ys"], folder=place)
        except GraphError as error:
            raise GraphError(f"verilog: a rounding is not what its format says: {error}") from None
    return len(wanted)
