"""Small devices: what exported C takes there, layer by layer, and its memory as a picture."""

from pathlib import Path

from chop.figures import number
from chop.markup import Markup, join_markup, tag
from chop.results.devices import CodeReport
from chop.results.exports import ExportManifest, read_exports, rows_checked
from chop.runs import RunFolder
from chop.views.section import Section, Tile
from chop.views.svg import COLOURS, WHOLE_WIDTH, drawing, figure, line, text

LEFT_EDGE, TALL, FOOT = 90.0, 260.0, 40.0


def devices_section(run: RunFolder) -> Section | None:
    """Return the section of the C of a run on small devices, before anything is flashed."""
    found = [(name, each, each.c) for name, each in read_exports(run) if each.c is not None]
    if not found:
        return None
    body = []
    for name, _, report in found:
        body += [
            tag("h3", name),
            report.device_table().html(),
            report.layer_table().html(),
            memory_picture(report),
        ]
    told = "Estimates need no compiler; the other figures are those of compilers and simulators."
    tiles = tuple(_tile(each, report) for _, each, report in found[:1])
    return Section("devices", "Small devices", join_markup([tag("p", told), *body]), tiles)


def _tile(export: ExportManifest, report: CodeReport) -> Tile:
    """The C of one network."""
    guess = report.estimate
    detail = (
        f"{number(guess.ram_bytes)} bytes of memory, {number(guess.instructions)} instructions a "
        f"row on a {guess.device}, by estimate; equal on {rows_checked(export)}"
    )
    value = f"{number(guess.flash_bytes)} bytes"
    return Tile(f"Flash of {Path(export.source).stem}", value, detail)


def memory_picture(report: CodeReport) -> Markup:
    """The scratch memory over the layers: each buffer at its place, as long as it lives."""
    layers = len(report.memory.layers)
    most = max(report.scratch_bytes, 1)
    wide = (WHOLE_WIDTH - LEFT_EDGE - 10) / (layers + 1)
    high = TALL - FOOT - 10
    shapes = []
    for place, each in enumerate(report.memory.buffers):
        first, last = max(each.first, 0), min(each.last, layers)
        x, y = LEFT_EDGE + first * wide, 10 + high * (1 - (each.offset + each.size) / most)
        width, height = (last - first + 1) * wide - 1, max(high * each.size / most, 1)
        told = f"{each.label}: {number(each.size)} bytes at {number(each.offset)}"
        shapes.append(
            tag(
                "rect", tag("title", told), x=round(x, 1), y=round(y, 1), width=round(width, 1),
                height=round(height, 1), class_=f"dot s{place % COLOURS}",
            )
        )  # fmt: skip
    base = TALL - FOOT
    numbers = [
        text(LEFT_EDGE + (each.layer + 0.5) * wide, base + 16, each.layer)
        for each in report.memory.layers[:: -(-layers // 24)]
    ]
    content = join_markup(
        [
            line(LEFT_EDGE, base, WHOLE_WIDTH - 10, base, "axis"),
            text(LEFT_EDGE - 6, 16, number(most), "end"),
            text(LEFT_EDGE - 6, base, "0", "end"),
            *shapes,
            *numbers,
            text((LEFT_EDGE + WHOLE_WIDTH) / 2, TALL - 6, "layer", class_="label"),
            text(14, base / 2, "byte of scratch", class_="label", turned=True),
        ]
    )
    title = "Plan of the scratch memory"
    return figure(title, drawing(title, content, WHOLE_WIDTH, TALL))
