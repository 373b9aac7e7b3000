"""The options of ``ch export``, which are not settings of a run."""

import json
from pathlib import Path
from typing import Any, Literal

from chop.config.option import Option, Setting

EXPORT = "export"
CATALOGUE = Path(__file__).parents[1] / "catalogue.json"


def of_export(name: str, kind: Any, default: Any, words: str, **limits: Any) -> Setting:
    """A flag of ``ch export`` alone."""
    return Setting(name, kind, default, Option(words, EXPORT, actions=(EXPORT,), **limits))


TARGETS: dict[str, str] = json.loads(CATALOGUE.read_text(encoding="utf-8")).get("targets", {})
"""The forms that programs are exported to, with a line each, read without importing torch."""
ANY: Any = Literal
TO = of_export("to", ANY[tuple(TARGETS)], None, "format, as listed by: ch info targets")
CHECKED = (
    of_export(
        "rows", int, 2000, "rows of codes to check the files with; 0 checks nothing", at_least=0
    ),
    of_export(
        "verify", bool, False,
        "fail if the files cannot be checked, for example without a simulator",
    ),
    of_export(
        "cut_tail", bool, False,
        "drop floating-point operations at the end, such as a softmax",
    ),
)  # fmt: skip
VERILOG = (
    of_export(
        "stages", int | None, None,
        "pipeline registers of a circuit from inputs to outputs, at most 1,000; by default one for "
        "each layer", at_least=0, below=1001,
    ),
    of_export(
        "clock_ns", float | None, None,
        "clock period in nanoseconds to place registers for, in place of --stages", above=0,
    ),
    of_export("stream", bool, False, "add an AXI-stream wrapper to a circuit"),
    of_export("synthesise", bool, False, "map a circuit to devices with Yosys and nextpnr"),
    of_export("most_luts", int, 200_000, "refuse circuits above this estimate", at_least=1),
)  # fmt: skip
C_CODE = (
    of_export("name", str, "model", "name of the files and functions of C"),
    of_export(
        "qemu", bool, False,
        "run 100 rows of C on simulated devices, and measure flash, stack and instructions there",
    ),
)  # fmt: skip
TARGET_FLAGS = (*VERILOG, *C_CODE)
"""Flags that only some forms take."""
