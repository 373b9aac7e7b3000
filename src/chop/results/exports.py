"""Exports, as their manifests describe them: checks, circuits, resources."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

from chop.figures import number, quantity
from chop.results.devices import CodeReport
from chop.runs import EXPORT, MANIFEST, RunFolder, read_stored
from chop.tables import ResultTable


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
    fmax_mhz: float | None = None
    latency_ns: float | None = None


class Synthesis(BaseModel):
    """Resources by device."""

    tool: str
    xcup: Resources
    ecp5: Resources


class Circuit(BaseModel):
    """The facts of a circuit."""

    latency_cycles: int
    estimated_luts: int
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
    "Latency, cycles", "LUTs, estimate", "LUTs, xcup (with sites)", "LUTs, ECP5", "Registers",
    "Clock on ECP5, MHz", "Latency, ns",
)  # fmt: skip


def circuit_cells(circuit: Circuit) -> tuple[str, ...]:
    """Resources and clock of a circuit, as far as they are known."""
    cells = [number(circuit.latency_cycles), number(circuit.estimated_luts)]
    if circuit.synthesis is not None:
        xcup, ecp5 = circuit.synthesis.xcup, circuit.synthesis.ecp5
        cells += [f"{number(xcup.luts)} ({number(xcup.lut_sites)})", number(ecp5.lut_sites)]
        cells += [number(xcup.registers)]
        cells += ["" if each is None else number(each) for each in (ecp5.fmax_mhz, ecp5.latency_ns)]
    return (*cells, *[""] * (len(CIRCUIT_HEADERS) - len(cells)))


def circuits_of_front(folder: Path) -> dict[str, ExportManifest]:
    """The circuits made of a front, by the names of their saved graphs or of their settings."""
    found: dict[str, ExportManifest] = {}
    for path in sorted(folder.glob(f"{EXPORT.format('verilog')}_*/{MANIFEST}")):
        stored = read_stored(ExportManifest, path, f"{folder.name}/{path.parent.name}/{path.name}")
        if stored.circuit is not None:
            found[Path(stored.source).name] = stored
    return found
