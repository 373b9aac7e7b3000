"""Export: files, the check that they compute what the engine does, and a manifest that says so."""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from chop import __version__
from chop.errors import ConfigError, GraphError, OutputError, UnknownNameError
from chop.export.c import c_source, predict_signature, value_type
from chop.export.checking import Check, FileCheck
from chop.export.onnx.qonnx import check_qonnx, write_qonnx
from chop.export.onnx.standard import check_onnx, write_onnx
from chop.export.rows import REAL, CheckedRows, side_by_side
from chop.export.tools import run_tool
from chop.export.verilog.stream import NAME
from chop.export.verilog.target import Hardware, check_verilog, write_verilog
from chop.files import nothing_left_behind, write_folder, write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, IntegerProgram, analyse, save_program
from chop.lowering.program import Value
from chop.runs import MANIFEST, versioned

COMPILE = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined")
COMPILE_SAFE = (*COMPILE, "-fno-sanitize-recover=all")
logger = logging.getLogger("chop")


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def verified_rows(self) -> int:
        """Rows on which the files were seen to compute what the engine does."""
        rows: int = self.manifest["verified"]["rows"]
        return rows

    @property
    def said(self) -> list[str]:
        """In lines what was compared, and what was not."""
        found = self.manifest["verified"]
        missing, rows = found["not_compared"], found["rows"]
        first = f"equal to the engine on {rows:,} rows" if rows else "not checked"
        lines = [first if rows else f"{first}, as {missing['file']}"]
        if "kinds" in found:
            made = {kind: count for kind, count in found["kinds"].items() if kind != REAL}
            whose = found["source"].partition(";")[0]
            real = f"{found['kinds'].get(REAL, 0):,} real ({missing.get('real rows', whose)})"
            shown = ", ".join(f"{count:,} {kind}" for kind, count in made.items())
            lines.append(f"Rows: {real}, {shown}; {found['distinct_outputs']:,} distinct outputs")
        if "graph" in found["compared"]:
            count = found["compared"]["graph"]
            lines.append(f"Graph: equal to the engine on {count:,} rows, in {found['graph_in']}")
        others = {part: why for part, why in missing.items() if part not in ("real rows", "file")}
        return lines + [
            f"{part.capitalize() if part == 'graph' else part}: not compared, as {why}"
            for part, why in others.items()
        ]

    @property
    def warnings(self) -> list[str]:
        """What makes the check less than it looks."""
        found = self.manifest["verified"]
        count = max(found["compared"].values(), default=0)
        if count > 1 and found["distinct_outputs"] == 1:
            return [f"all {count:,} rows gave the same output: the network may be constant"]
        return []

    def __repr__(self) -> str:
        form, rows = self.manifest["form"], self.verified_rows
        return f"Exported({self.folder}, {form}, {rows:,} rows verified)"


def scaling_of(graph: MaseGraph | IntegerProgram) -> dict[str, Any]:
    """How rows were scaled that a graph was trained on, and numbers that it predicts, if known."""
    known = graph.preprocessing if isinstance(graph, MaseGraph) else None
    return {"preprocessing": known.as_plain()} if known is not None else {}


def graph_of(given: Any) -> MaseGraph | IntegerProgram:
    """Return a graph or a program itself, or the graph of a quantised network or of a point."""
    if isinstance(given, MaseGraph | IntegerProgram):
        return given
    found = getattr(given, "graph", None)
    if not isinstance(found, MaseGraph):  # an fx.GraphModule has a graph of torch
        raise ConfigError(
            "export takes what chop.quantize gives, a point of chop.search, or a quantised "
            f"MaseGraph, not {type(given).__name__}"
        )
    return found


def hardware_of(to: str, hardware: Hardware | None, circuit: Mapping[str, Any]) -> Hardware | None:
    """Return the settings of a circuit, if any are given; other forms take none.

    Args:
        circuit: fields of `Hardware`, in its place.
    """
    known = [each.name for each in fields(Hardware)]
    if unknown := [name for name in circuit if name not in known]:
        raise UnknownNameError("setting", unknown[0], known, "export")
    if hardware is None and not circuit:
        return None
    if to != "verilog":
        raise ConfigError(f"export: settings of hardware are for verilog, not for {to}")
    return replace(hardware or Hardware(), **circuit)


def export(  # noqa: PLR0913  (each is a choice of its own)
    graph: Any,
    to: str = "c",
    output: str | Path = "exported",
    *,
    rows: int = 2000,
    inputs: Mapping[str, Tensor] | None = None,
    cut_tail: bool = False,
    source: str = "a graph in memory",
    hardware: Hardware | None = None,
    notes: Mapping[str, str] | None = None,
    **circuit: Any,
) -> Exported:
    """Write a quantised graph in another form, checked against the engine, as the graph is.

    A folder that is there already is left alone: the files go to ``output-v1``. If anything fails,
    nothing is left behind.

    Args:
        graph: what `chop.quantize` gives, a point of `chop.search`, a graph or a program.
        to: ``"c"``, ``"verilog"``, ``"onnx"``, ``"qonnx"``, or ``"integer"`` for the program
            itself.
        rows: on how many rows to check; 0 checks nothing, and the manifest says so.
        inputs: real rows by the names of the network's inputs, to check with; made ones are added,
            off the grid of the input's format, half-way between codes, at the limits and beyond.
        cut_tail: drop floating-point operations at the end.
        source: where the graph came from, for the manifest.
        hardware: how to make the circuit, for ``"verilog"`` only; or in its place, as `circuit`,
            its fields: stages, clock_ns, stream, synthesise, most_luts.
        notes: of ``real``, whose rows they are or why there are none; of ``file``, why it cannot be
            run.
    """
    check_wish(to, output, rows)
    graph, hardware = graph_of(graph), hardware_of(to, hardware, circuit)
    write = TARGETS[to] if hardware is None else partial(write_verilog, hardware=hardware)
    check = Check(graph, cut_tail, rows, inputs, notes or {})
    if hardware is not None and hardware.stream and rows:
        check.not_compared[f"{NAME}.sv"] = "the bench runs the module top, not what is around it"
    program = check.program
    with tempfile.TemporaryDirectory() as scratch:
        (files := Path(scratch) / to).mkdir()  # a temporary folder is for nobody else
        facts = {"source": source} | scaling_of(graph) | (write(program, files) or {})
        tool = check.compare_file(files, CHECKS[to])
        manifest = described(program, to, files) | facts
        manifest |= {"verified": check.facts(), "checked_with": tool}
        write_text(files / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        return warned(Exported(moved(files, Path(output).expanduser()), manifest))


def warned(done: Exported) -> Exported:
    """An export, after its warnings were shown."""
    for line in done.warnings:
        logger.warning("%s", line)
    return done


def check_wish(to: str, output: str | Path, rows: int) -> None:
    """Refuse a form that is not known, a folder without a name and rows below none."""
    if to not in TARGETS:
        raise UnknownNameError("export", to, TARGETS)
    if rows < 0:
        raise ConfigError(f"export: rows must be 0 or more (got {rows})")
    if Path(output).name in ("", ".."):
        raise ConfigError(f"export: {str(output)!r} is not the name of a folder to write: name one")


def moved(files: Path, wanted: Path) -> Path:
    """The folder of the wanted name, or the next version of it, with all files or not at all."""
    with nothing_left_behind(wanted.parent):
        try:
            name = partial(versioned, wanted)
            return write_folder(name, partial(shutil.copytree, files, dirs_exist_ok=True))
        except (OSError, shutil.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{wanted}: cannot be written: {reason}") from None


def described(program: IntegerProgram, to: str, folder: Path) -> dict[str, Any]:
    """What was exported: values at the edges, exactness, files and their checksums."""
    values, exact = program.values, analyse(program)
    return {
        "chop": __version__,
        "form": to,
        "inputs": [
            {"argument": each.placeholder, "format": each.format, **edge(each.value)}
            for each in program.inputs
        ],
        "outputs": [edge(values[name]) for name in program.outputs],
        "cut_off": list(program.tail),
        "steps": len(program.steps),
        "accumulator_bits": exact.accumulator_bits,
        "float32_is_exact": exact.exact("float32"),
        "files": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.iterdir())
        },
    }


def edge(value: Value) -> dict[str, Any]:
    """An input or output: the number of a code is ``code * 2**-frac``."""
    facts = {"frac": value.frac, "low": value.low, "high": value.high}
    named = {name: array.tolist() for name, array in facts.items()}
    return {"value": value.name, "shape": value.shape, "type": value_type(value), **named}


def write_c(program: IntegerProgram, folder: Path) -> dict[str, Any]:
    """The file with ``predict``, and a program that runs it on rows of text."""
    file = c_source(program, "A quantised network")
    write_text(folder / "predict.c", file.text)
    write_text(folder / "predict_test.c", test_program(program))
    return {"reentrant": file.reentrant, "buffer_bytes": file.buffer_bytes}


def test_program(program: IntegerProgram) -> str:
    """C that reads rows of codes as text, and prints the codes of the outputs, a row in a line."""
    values = program.values
    outputs = [values[name] for name in program.outputs]
    sides = [("input", each.value) for each in program.inputs]
    sides += [("output", value) for value in outputs]
    places = [*range(len(program.inputs)), *range(len(outputs))]
    names = [f"{side}{place}" for (side, _), place in zip(sides, places, strict=True)]
    buffers = "\n".join(
        f"static {value_type(value)} {name}[{value.size}];"
        for name, (_, value) in zip(names, sides, strict=True)
    )
    reads = "\n".join(
        f"        for (int i = 0; i < {each.value.size}; i++) {{\n"
        f'            if (scanf("%lld", &code) != 1) return 0;\n'
        f"            input{place}[i] = code;\n        }}"
        for place, each in enumerate(program.inputs)
    )
    prints = "\n".join(
        f"        for (int i = 0; i < {value.size}; i++) "
        f'printf("%lld ", (long long)output{place}[i]);'
        for place, value in enumerate(outputs)
    )
    return (
        f"#include <stdint.h>\n#include <stdio.h>\n\n{predict_signature(program)};\n\n{buffers}\n\n"
        f"int main(void) {{\n    long long code;\n    for (;;) {{\n{reads}\n"
        f'        predict({", ".join(names)});\n{prints}\n        printf("\\n");\n    }}\n}}\n'
    )


def check_c(folder: Path, rows: CheckedRows) -> str:
    """Compile the files, run them on rows and compare with the engine; what compiled them."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise ConfigError("export: no C compiler 'cc' was found: install one, or give rows=0")
    with tempfile.TemporaryDirectory() as scratch:
        binary = str(Path(scratch) / "predict")
        files = [str(folder / name) for name in ("predict.c", "predict_test.c")]
        run_tool([compiler, *COMPILE_SAFE, *files, "-o", binary])
        text = "\n".join(" ".join(map(str, row)) for row in rows.flat_codes.tolist())
        printed = run_tool([binary], text)
    found = np.array([line.split() for line in printed.splitlines()], dtype=np.int64)
    compare(found, rows.flat_outputs)
    return " ".join(["cc", *COMPILE_SAFE])


def compare(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    """Refuse codes that are not those of the engine."""
    if found.shape != wanted.shape:
        raise GraphError(f"export: {found.shape} codes came out, not {wanted.shape}")
    wrong = (found != wanted).any(1)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise GraphError(
            f"export: {int(wrong.sum())} of {len(wrong)} rows differ from the engine, the first is "
            f"row {first}: {found[first].tolist()} in place of {wanted[first].tolist()}"
        )


def check_integer(folder: Path, rows: CheckedRows) -> str:
    """Read the program again and compare plain integer arithmetic with the engine."""
    from chop.lowering import load_program

    again = Engine(load_program(folder), "int64")
    compare(side_by_side(again.run(again.quantise(rows.numbers))), rows.flat_outputs)
    return "the engine in 64-bit integers"


def write_integer(program: IntegerProgram, folder: Path) -> None:
    """The program itself."""
    save_program(program, folder)


Write = Callable[[IntegerProgram, Path], dict[str, Any] | None]
TARGETS: dict[str, Write] = {
    "c": write_c,
    "verilog": write_verilog,
    "integer": write_integer,
    "onnx": write_onnx,
    "qonnx": write_qonnx,
}
"""What writes the files of each form; may give facts for the manifest."""
CHECKS: dict[str, FileCheck] = {
    "c": check_c,
    "verilog": check_verilog,
    "integer": check_integer,
    "onnx": check_onnx,
    "qonnx": check_qonnx,
}
"""What runs them and refuses codes that are not the engine's; gives the tool that ran them."""
