"""Exports of the run: in which form, what was checked with what, and what a circuit takes."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from chop.report.html import Markup, Section, joined, number, table, tag
from chop.runs import EXPORT, FRONT_GRAPHS, MANIFEST, RunFolder, read_stored


class Verified(BaseModel):
    """On how many rows a form was seen to give the engine's codes."""

    rows: int


class Resources(BaseModel):
    """What a circuit takes on a device."""

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


class StoredCircuit(BaseModel):
    """What is known of a circuit."""

    latency_cycles: int
    estimated_luts: int
    synthesis: Synthesis | None = None


class StoredExport(BaseModel):
    """What the page shows of a manifest."""

    form: str
    source: str = ""
    verified: Verified
    checked_with: str | None = None
    circuit: StoredCircuit | None = None


def exports_section(run: RunFolder) -> Section | None:
    """The section of all exports of a run."""
    found = [
        (run.name_of(path.parent), read_stored(StoredExport, path, run.name_of(path)))
        for path in run.exports
    ]
    if not found:
        return None
    rows = [
        (name, each.form, number(each.verified.rows) if each.verified.rows else "not checked",
         each.checked_with or "")
        for name, each in found
    ]  # fmt: skip
    headers = ("Folder", "Form", "Rows equal to the engine", "Checked with")
    parts = [table(headers, rows, "Exports", text_columns=4)]
    circuits = [(name, each.circuit) for name, each in found if each.circuit is not None]
    if circuits:
        parts.append(circuits_table(circuits))
    return Section("exports", "Exports", joined(parts))


CIRCUIT_HEADERS = (
    "Latency, cycles", "LUTs, estimate", "LUTs, xcup (with sites)", "LUTs, ECP5", "Registers",
    "Clock on ECP5, MHz", "Latency, ns",
)  # fmt: skip


def circuit_cells(circuit: StoredCircuit) -> tuple[str, ...]:
    """Resources and clock of a circuit, as far as they are known."""
    cells = [number(circuit.latency_cycles), number(circuit.estimated_luts)]
    if circuit.synthesis is not None:
        xcup, ecp5 = circuit.synthesis.xcup, circuit.synthesis.ecp5
        cells += [f"{number(xcup.luts)} ({number(xcup.lut_sites)})", number(ecp5.lut_sites)]
        cells += [number(xcup.registers)]
        cells += ["" if each is None else number(each) for each in (ecp5.fmax_mhz, ecp5.latency_ns)]
    return (*cells, *[""] * (len(CIRCUIT_HEADERS) - len(cells)))


def circuits_of_front(folder: Path) -> dict[str, StoredCircuit]:
    """The circuits that were made of the saved graphs of a front, by the names of the graphs."""
    found: dict[str, StoredCircuit] = {}
    for path in sorted(folder.glob(f"{EXPORT.format('verilog')}_*/{MANIFEST}")):
        stored = read_stored(StoredExport, path, f"{folder.name}/{path.parent.name}/{path.name}")
        source = Path(stored.source)
        if stored.circuit is not None and source.parent.name == FRONT_GRAPHS:
            found[source.name] = stored.circuit
    return found


def circuits_table(circuits: Sequence[tuple[str, StoredCircuit]]) -> Markup:
    """Resources and clock of each circuit."""
    rows = [(name, *circuit_cells(circuit)) for name, circuit in circuits]
    words = (
        "LUTs by Yosys; in brackets with inverters and inputs of carry chains. Clock by nextpnr."
    )
    return joined(
        [tag("p", words), table(("Circuit", *CIRCUIT_HEADERS), rows, "Circuits", text_columns=1)]
    )
