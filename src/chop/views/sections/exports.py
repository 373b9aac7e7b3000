"""Exports of the run: in which form, what was checked with what, and what a circuit takes."""

from collections.abc import Sequence
from pathlib import Path

from chop.figures import number, quantity
from chop.markup import join_markup, tag
from chop.results.exports import (
    Circuit,
    ExportManifest,
    circuits_table,
    exports_table,
    read_exports,
    rows_checked,
)
from chop.runs import RunFolder
from chop.views.section import Section, Tile


def exports_section(run: RunFolder) -> Section | None:
    """All exports of a run, and what they were checked with."""
    exports = read_exports(run)
    if not exports:
        return None
    return Section("exports", "Exports", exports_table(exports).html())


def hardware_section(run: RunFolder) -> Section | None:
    """Return the resources and the clocks of the circuits of a run."""
    found = [(name, each, each.circuit) for name, each in read_exports(run) if each.circuit]
    if not found:
        return None
    shown = circuits_table((name, each.model_dump()) for name, each, _ in found)
    tiles = tuple(_tile(each, circuit) for _, each, circuit in found[:MOST_TILES])
    body = join_markup([tag("p", _explanation(found)), shown.html()])
    return Section("hardware", "Hardware", body, tiles)


MOST_TILES = 2


def _explanation(found: Sequence[tuple[str, ExportManifest, Circuit]]) -> str:
    """Name the tools that the columns come from."""
    if not any(circuit.synthesis for _, _, circuit in found):
        return (
            "LUTs are estimated, as Yosys counts them for UltraScale+ (xcup), without sites: "
            "ch export --to verilog --synthesise asks Yosys and nextpnr."
        )
    return "LUTs by Yosys; in brackets with inverters and inputs of carry chains. Clock by nextpnr."


def _tile(export: ExportManifest, circuit: Circuit) -> Tile:
    """The circuit of one network."""
    synthesis = circuit.synthesis
    luts = synthesis.xcup.luts if synthesis else circuit.estimated_luts
    who = synthesis.tool if synthesis else "estimated"
    rows = f"RTL equal on {rows_checked(export)}" if export.verified.rows else "RTL not checked"
    cycles = circuit.latency_cycles or circuit.cycles_per_image or 0
    each = " an image" if circuit.latency_cycles is None else ""
    detail = f"{who}; {quantity(cycles, 'cycle')}{each}; {rows}"
    return Tile(f"Circuit of {Path(export.source).stem}", f"{number(luts)} LUTs", detail)
