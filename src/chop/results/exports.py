"""Exports, as their manifests describe them: checks, circuits, resources."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

from chop.figures import number, quantity
from chop.results.devices import CodeReport
from chop.runs import EXPORT, MANIFEST, RunFolder, read_stored
from chop.tables import ResultTable
from chop.validation import parse


class ExportChecks(BaseModel):
    """On how many rows a form was seen to give the engine's codes, and what else was compared."""

    rows: int
    compared: dict[str, int] | None = None
    """Rows by what was compared with the engine; None in manifests that do not tell."""
    not_compared: dict[str, str] = Field(default_factory=dict)
    """Why something was not."""
    kinds: dict[str, int] = Field(default_factory=dict)
    distinct_outputs: int | None = None


class Resources(BaseModel):
    """The resources of a circuit on a device."""

    luts: int
    lut_sites: int
    registers: int
    block_rams: float | None = None
    fmax_mhz: float | None = None
    latency_ns: float | None = None


class Synthesis(BaseModel):
    """Resources by device."""

    tool: str
    xcup: Resources
    ecp5: Resources


class Circuit(BaseModel):
    """The facts of a circuit."""

    latency_cycles: int | None = None
    cycles_per_image: int | None = None
    """Of a folded circuit, whose latency is known when it was simulated."""
    estimated_luts: int
    estimated_block_rams: float | None = None
    synthesis: Synthesis | None = None


class ExportSource(BaseModel):
    """The form of an export, and the graph or settings that it was made of."""

    form: str
    source: str = ""


class ExportManifest(ExportSource):
    """The manifest of an export, as far as it is shown."""

    verified: ExportChecks
    checked_with: str | None = None
    circuit: Circuit | None = None
    c: CodeReport | None = None

    @field_validator("c", mode="before")
    @classmethod
    def _with_an_estimate(cls, given: Any) -> Any:
        """Leave out what manifests of earlier versions say of C."""
        return given if isinstance(given, dict) and "estimate" in given else None


def read_exports(run: RunFolder) -> list[tuple[str, ExportManifest]]:
    """The manifests of all exports of a run, by the names of their folders."""
    return [
        (run.name_of(path.parent), read_stored(ExportManifest, path, run.name_of(path)))
        for path in run.exports
    ]


def exports_table(exports: list[tuple[str, ExportManifest]]) -> ResultTable:
    """Return a row for each export: its form, and what was compared on how many rows."""
    rows = [
        (
            name, each.form, rows_checked(each), graph_checked(each.verified),
            number(each.verified.kinds.get("real", 0)), distinct_shown(each.verified),
            each.checked_with or "",
        )
        for name, each in exports
    ]  # fmt: skip
    headers = (
        "Folder", "Form", "File equal to the engine on", "Graph equal to the engine on",
        "Real rows", "Distinct outputs", "Checked with",
    )  # fmt: skip
    return ResultTable(headers, rows, "Exports", text_columns=7)


def graph_checked(verified: ExportChecks) -> str:
    """On how many rows the graph was seen to give the engine's codes, or why that is not known."""
    if verified.compared is None:
        return "not compared"
    if "graph" in verified.compared:
        return quantity(verified.compared["graph"], "row")
    return f"not compared: {verified.not_compared.get('graph', 'the manifest does not say why')}"


def distinct_shown(verified: ExportChecks) -> str:
    """Return the number of different outputs; one for all rows checks nothing."""
    count = verified.distinct_outputs
    if count is None:
        return ""
    return "1: the network may be constant" if count == 1 else number(count)


def rows_checked(export: ExportManifest) -> str:
    """On how many rows a form was seen to give the engine's codes."""
    return quantity(export.verified.rows, "row") if export.verified.rows else "not checked"


CIRCUIT_HEADERS = (
    "Latency, cycles", "Cycles an image", "LUTs of xcup, estimate", "RAMB36, estimate",
    "LUTs, xcup (with sites)", "RAMB36", "LUTs, ECP5", "Registers", "Clock on ECP5, MHz",
    "Latency, ns",
)  # fmt: skip


def circuit_cells(circuit: Circuit) -> tuple[str, ...]:
    """Resources and clock of a circuit, as far as they are known."""
    figures: list[float | None] = [circuit.latency_cycles, circuit.cycles_per_image]
    figures += [circuit.estimated_luts, circuit.estimated_block_rams]
    cells = ["" if each is None else number(each) for each in figures]
    if circuit.synthesis is not None:
        xcup, ecp5 = circuit.synthesis.xcup, circuit.synthesis.ecp5
        cells.append(f"{number(xcup.luts)} ({number(xcup.lut_sites)})")
        more = (xcup.block_rams, ecp5.lut_sites, xcup.registers, ecp5.fmax_mhz, ecp5.latency_ns)
        cells += ["" if each is None else number(each) for each in more]
    return (*cells, *[""] * (len(CIRCUIT_HEADERS) - len(cells)))


def circuits_table(found: Iterable[tuple[str, Mapping[str, Any]]]) -> ResultTable:
    """Return a row for each circuit: its name, what it was checked on, and what it takes.

    Args:
        found: manifests by the names of circuits, or the reasons why there are none.
    """
    rows: list[tuple[str, ...]] = []
    for name, given in found:
        if isinstance(given.get("refused"), str):
            rows.append((name, f"none: {given['refused']}", *[""] * len(CIRCUIT_HEADERS)))
            continue
        each = parse(ExportManifest, dict(given), name)
        cells = circuit_cells(each.circuit) if each.circuit else [""] * len(CIRCUIT_HEADERS)
        rows.append((name, rows_checked(each), *cells))
    headers = ("Circuit", "Verified in RTL", *CIRCUIT_HEADERS)
    return ResultTable(headers, rows, "Circuits", text_columns=2).drop_empty_columns()


def circuits_of_front(folder: Path) -> dict[str, ExportManifest]:
    """The circuits made of a front, by the names of their saved graphs or of their settings."""
    found: dict[str, ExportManifest] = {}
    for path in sorted(folder.glob(f"{EXPORT.format('verilog')}_*/{MANIFEST}")):
        stored = read_stored(ExportManifest, path, f"{folder.name}/{path.parent.name}/{path.name}")
        if stored.circuit is not None:
            found[Path(stored.source).name] = stored
    return found
