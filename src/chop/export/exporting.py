"""Export: files, the check that they compute what the engine does, and a manifest that says so."""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from chop import __version__
from chop.errors import ConfigError, OutputError
from chop.export.c.code import value_type
from chop.export.checking import ExportCheck
from chop.export.rows import REAL
from chop.export.targets import EXPORT_TARGETS, TargetOptions, target_options
from chop.files import nothing_left_behind, write_folder, write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, analyse
from chop.lowering.program import Value
from chop.runs import MANIFEST, free_version

logger = logging.getLogger("chop")


@dataclass(frozen=True)
class Exported:
    """The folder that an export has written, and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def verified_rows(self) -> int:
        """Rows on which the files were seen to compute what the engine does."""
        rows: int = self.manifest["verified"]["rows"]
        return rows

    @property
    def said(self) -> list[str]:
        """Lines that say what was compared, and what was not."""
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
        """Lines that say why the check proves less than it seems to."""
        found = self.manifest["verified"]
        count = max(found["compared"].values(), default=0)
        if count > 1 and found["distinct_outputs"] == 1:
            return [f"all {count:,} rows gave the same output: the network may be constant"]
        return []

    def __repr__(self) -> str:
        form, rows = self.manifest["form"], self.verified_rows
        return f"Exported({self.folder}, {form}, {rows:,} rows verified)"


def scaling_of(graph: MaseGraph | IntegerProgram) -> dict[str, Any]:
    """Return the scaling of the rows and targets that a graph was trained on, if it is known."""
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


def export(  # noqa: PLR0913  (each is a choice of its own)
    graph: Any,
    to: str = "c",
    output: str | Path = "exported",
    *,
    rows: int | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    cut_tail: bool = False,
    source: str = "a graph in memory",
    options: TargetOptions | None = None,
    notes: Mapping[str, str] | None = None,
    **settings: Any,
) -> Exported:
    """Write a quantised graph in another form, checked against the engine, as the graph is.

    A folder that is there already is left alone: the files go to ``output-v1``. If anything fails,
    nothing is left behind.

    Args:
        graph: what `chop.quantize` gives, a point of `chop.search`, a graph or a program.
        to: a name of `chop.export.EXPORT_TARGETS`: ``"c"``, ``"verilog"``, ``"onnx"``,
            ``"qonnx"``, or ``"integer"`` for the program itself.
        rows: on how many rows to check, by default 2,000, or 50 of a folded circuit; 0 for none.
        inputs: real rows by the names of the network's inputs, to check with; made ones are added,
            off the grid of the input's format, half-way between codes, at the limits and beyond.
        cut_tail: drop floating-point operations at the end.
        source: where the graph came from, for the manifest.
        options: the settings of the target, such as `chop.export.verilog.target.Hardware`; or in
            its place, as `settings`, its fields: for ``"verilog"`` stages, clock_ns, stream,
            synthesise, most_luts, folded, cycles.
        notes: of ``real``, whose rows they are or why there are none; of ``file``, why it cannot be
            run.
    """
    check_request(to, output, rows)
    target, graph = EXPORT_TARGETS[to], graph_of(graph)
    known = graph.preprocessing if isinstance(graph, MaseGraph) else None
    chosen = target_options(to, options, settings).for_graph(known)
    check = ExportCheck(graph, cut_tail, chosen.rows_of(rows), inputs, notes or {})
    program = check.program
    with tempfile.TemporaryDirectory() as scratch:
        (files := Path(scratch) / to).mkdir()  # readable by this user only
        written = target(program, files, chosen)
        check.leave_out(written.not_compared)
        tool = check.compare_file(
            files, lambda folder, rows: target.run_check(folder, rows, chosen)
        )
        manifest = file_facts(program, to, files) | {"source": source} | scaling_of(graph)
        manifest |= written.facts | {"verified": check.facts(), "checked_with": tool}
        write_text(files / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        return show_warnings(Exported(move_files(files, Path(output).expanduser()), manifest))


def show_warnings(done: Exported) -> Exported:
    """Log the warnings of an export and return it."""
    for line in done.warnings:
        logger.warning("%s", line)
    return done


def check_request(to: str, output: str | Path, rows: int | None) -> None:
    """Refuse a form that is not known, a folder without a name and a negative number of rows."""
    _ = EXPORT_TARGETS[to]
    if rows is not None and rows < 0:
        raise ConfigError(f"export: rows must be 0 or more (got {rows})")
    if Path(output).name in ("", ".."):
        raise ConfigError(f"export: {str(output)!r} is not the name of a folder to write: name one")


def move_files(files: Path, wanted: Path) -> Path:
    """Copy all files to the wanted folder or the next version of it; return that folder."""
    with nothing_left_behind(wanted.parent):
        try:
            name = partial(free_version, wanted)
            return write_folder(name, partial(shutil.copytree, files, dirs_exist_ok=True))
        except (OSError, shutil.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"{wanted}: cannot be written: {reason}") from None


def file_facts(program: IntegerProgram, to: str, folder: Path) -> dict[str, Any]:
    """Return values at the edges, exactness, files and their checksums, for the manifest."""
    values, exact = program.values, analyse(program)
    return {
        "chop": __version__,
        "form": to,
        "inputs": [
            {"argument": each.placeholder, "format": each.format, **edge_facts(each.value)}
            for each in program.inputs
        ],
        "outputs": [edge_facts(values[name]) for name in program.outputs],
        "cut_off": list(program.tail),
        "steps": len(program.steps),
        "accumulator_bits": exact.accumulator_bits,
        "float32_is_exact": exact.exact("float32"),
        "files": {
            str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        },
    }


def edge_facts(value: Value) -> dict[str, Any]:
    """An input or output: the number of a code is ``code * 2**-frac``, times `scale` if given."""
    facts: dict[str, Any] = {"frac": value.frac, "low": value.low, "high": value.high}
    facts |= {"scale": value.scale} if value.is_scaled else {}
    named = {name: array.tolist() for name, array in facts.items()}
    return {"value": value.name, "shape": value.shape, "type": value_type(value), **named}
