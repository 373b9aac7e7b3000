"""A graph as a picture: an SVG, from the inputs at the top down to the output."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree as ET

from torch import fx, nn

from chop.errors import OutputError
from chop.files import write_text
from chop.nn.quantized import QuantizedModule

CHARACTER, LEAST, TALL, GAP, BETWEEN, MARGIN = 7.2, 110.0, 56.0, 26.0, 34.0, 16.0
PASSING = 10.0  # the width kept free for a line that passes a row
LONGEST = 34  # characters in a line of a box
FILL = {
    "placeholder": "#e8f1e4",
    "output": "#e8f1e4",
    "get_attr": "#f3f3f3",
    "call_module": "#e3ecf8",
    "call_function": "#ffffff",
    "call_method": "#ffffff",
    "quantised": "#f8e4cf",
}
STYLE = (
    "text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;fill:#222}"
    "text.name{font-weight:bold}text.quiet{fill:#666;font-size:11px}"
    "rect.box{stroke:#667;stroke-width:1}path.edge{fill:none;stroke:#778;stroke-width:1.2}"
)


@dataclass
class Slot:
    """A place in a row: a box with lines of text, or room for a line that passes (no text)."""

    above: "list[Slot]" = field(default_factory=list)
    lines: tuple[str, ...] = ()
    fill: str = ""
    x: float = 0.0
    """The middle."""
    row: int = 0

    @property
    def width(self) -> float:
        """The width of the place."""
        longest = max(map(len, self.lines), default=0)
        return max(LEAST, longest * CHARACTER + 20) if self.lines else PASSING

    @property
    def top(self) -> float:
        """The start of the row."""
        return MARGIN + self.row * (TALL + BETWEEN)


def draw(graph: fx.Graph, modules: Mapping[str, nn.Module], file: str | Path) -> Path:
    """Write the picture of a graph to an SVG file and return its path."""
    path = Path(file)
    if path.suffix != ".svg":
        raise OutputError(f"{path}: graphs are drawn as SVG, so the name must end in .svg")
    write_text(path, svg_text(graph, modules))
    return path


def svg_text(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> str:
    """The text of the SVG."""
    rows = arrange_nodes(graph, modules)
    slots = [slot for row in rows for slot in row]
    left = min(slot.x - slot.width / 2 for slot in slots) - MARGIN
    for slot in slots:
        slot.x -= left
    width = max(slot.x + slot.width / 2 for slot in slots) + MARGIN
    height = slots[-1].top + TALL + MARGIN
    size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **size})
    ET.SubElement(svg, "title").text = "Graph"
    ET.SubElement(svg, "style").text = STYLE
    arrow = {"id": "arrow", "viewBox": "0 0 8 8", "refX": "7", "refY": "4", "orient": "auto"}
    arrow |= {"markerWidth": "7", "markerHeight": "7"}
    marker = ET.SubElement(ET.SubElement(svg, "defs"), "marker", arrow)
    ET.SubElement(marker, "path", {"d": "M0,1L7,4L0,7z", "fill": "#778"})
    ET.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": "#fff"})
    for slot in slots:
        for above in slot.above:
            svg.append(line_svg(above, slot))
    for slot in slots:
        if slot.lines:
            svg.append(box_svg(slot))
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def arrange_nodes(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> list[list[Slot]]:
    """The places of all nodes, row by row; a long edge has a place in each row it passes."""
    depth = depths(graph)
    rows: list[list[Slot]] = [[] for _ in range(max(depth.values()) + 1)]
    boxes: dict[fx.Node, Slot] = {}
    passing: dict[tuple[fx.Node, int], Slot] = {}
    for node in sorted(graph.nodes, key=lambda each: depth[each]):
        slot = boxes[node] = describe_box(node, modules)
        slot.row = depth[node]
        rows[slot.row].append(slot)
    for node, slot in boxes.items():
        for source in node.all_input_nodes:
            above = boxes[source]
            for row in range(above.row + 1, slot.row):
                if (source, row) not in passing:  # several readers share the line
                    passing[source, row] = Slot([above], row=row)
                    rows[row].append(passing[source, row])
                above = passing[source, row]
            slot.above.append(above)
    for row_of_slots in rows:
        place_row(row_of_slots)
    return rows


def depths(graph: fx.Graph) -> dict[fx.Node, int]:
    """The row of each node: below all that it reads; weights are just above what reads them."""
    depth: dict[fx.Node, int] = {}
    for node in graph.nodes:
        depth[node] = max((depth[each] + 1 for each in node.all_input_nodes), default=0)
    for node in graph.nodes:
        if node.op == "get_attr" and node.users:
            depth[node] = max(0, min(depth[user] for user in node.users) - 1)
    return depth


def place_row(row: list[Slot]) -> None:
    """Put the slots of a row beside each other, each as near as can be below what it reads."""
    for slot in row:
        slot.x = fmean(above.x for above in slot.above) if slot.above else 0.0
    wanted = {id(slot): slot.x for slot in row}
    row.sort(key=lambda slot: slot.x)
    for before, slot in itertools.pairwise(row):
        slot.x = max(slot.x, before.x + (before.width + slot.width) / 2 + GAP)
    shift = fmean(slot.x - wanted[id(slot)] for slot in row)
    for slot in row:
        slot.x -= shift


def describe_box(node: fx.Node, modules: Mapping[str, nn.Module]) -> Slot:
    """The box of a node: its name, what it computes, and the shape of its result if known."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    function = node.op == "call_function" and hasattr(node.target, "op") and "config" in node.kwargs
    kind = "quantised" if isinstance(module, QuantizedModule) or function else node.op
    what = {"placeholder": "input", "get_attr": "stored tensor", "output": "output"}.get(
        node.op, type(module).__name__ if module is not None else callable_name(node.target)
    )
    lines = (str(node.name), what, recorded_shape(node))
    return Slot(lines=tuple(shorten_text(each) for each in lines), fill=FILL[kind])


def callable_name(target: Any) -> str:
    """The name of a function or method."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def recorded_shape(node: fx.Node) -> str:
    """The shape of a node's first result, if common metadata has it."""
    record: Any = node.meta.get("mase")
    first = record["common"].get("results", {}).get("data_out_0") if record is not None else None
    shape = first.get("shape") if isinstance(first, Mapping) else None
    return "" if shape is None else str(tuple(shape))


def shorten_text(text: str) -> str:
    """A text that fits into a box."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def line_svg(above: Slot, slot: Slot) -> ET.Element:
    """From one row to the next, and on through the row if the line only passes it."""
    start, end = above.top + TALL, slot.top
    bend = (start + end) / 2
    x1, x2 = f"{above.x:.1f}", f"{slot.x:.1f}"
    path = f"M{x1},{start:g}C{x1},{bend:g} {x2},{bend:g} {x2},{end:g}"
    if not slot.lines:
        return ET.Element("path", {"class": "edge", "d": f"{path}v{TALL:g}"})
    return ET.Element("path", {"class": "edge", "d": path, "marker-end": "url(#arrow)"})


def box_svg(slot: Slot) -> ET.Element:
    """A box with its lines of text."""
    group = ET.Element("g")
    ET.SubElement(group, "title").text = "\n".join(filter(None, slot.lines))
    corner = {"x": f"{slot.x - slot.width / 2:.1f}", "y": f"{slot.top:g}"}
    size = {"width": f"{slot.width:.1f}", "height": f"{TALL:g}", "rx": "6"}
    ET.SubElement(group, "rect", {"class": "box", "fill": slot.fill, **corner, **size})
    styles: Sequence[str] = ("name", "", "quiet")
    for number, (words, style) in enumerate(zip(slot.lines, styles, strict=True)):
        at = {"x": f"{slot.x:.1f}", "y": f"{slot.top + 17 + 16 * number:g}"}
        ET.SubElement(group, "text", {"class": style, "text-anchor": "middle", **at}).text = words
    return group
