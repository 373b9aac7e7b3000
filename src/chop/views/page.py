"""The page: sections of a run, style and script in one HTML file that needs no network."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.resources import files
from pathlib import Path

from chop import __version__
from chop.errors import ChopError
from chop.markup import Markup, details, join_markup, tag
from chop.runs import TRAININGS, RunFolder
from chop.tables import ResultTable
from chop.views.section import Section, Tile
from chop.views.sections.run import learning_curves, overview, read_records, test_section

MOST_SEARCHES = 4
MOST_TILES = 6


Parts = Iterator[tuple[str, Callable[[], Section | None]]]
"""What the page may show: a name for problems, and what makes the section if there is data."""


def build_page(run: RunFolder) -> str:
    """The whole page of a run; a damaged file costs its section, not the page.

    Readers raise DataError or CheckpointError whatever a file holds; anything else is a bug.
    """
    problems: list[str] = []
    sections: list[Section] = []
    for what, make in _parts(run, problems):
        try:
            section = make()
        except (ChopError, OSError) as error:
            problems.append(f"{what}: {error}")
        else:
            sections += [section] if section is not None else []
    if problems:
        rows = [(problem,) for problem in dict.fromkeys(problems)]
        body = ResultTable(("File and reason",), rows, "Files that could not be shown").html()
        sections.append(Section("problems", "Could not be shown", body))
    return render(run.folder.name, sections)


def _parts(run: RunFolder, problems: list[str]) -> Parts:
    """First what came out, then the network, then how it was trained, last what was run."""
    records = read_records(run, problems)
    if len(run.searches) > 1:
        from chop.views.sections.fronts import fronts_section

        compared = {folder.name: folder for folder in run.searches[:MOST_SEARCHES]}
        yield "Searches compared", partial(fronts_section, compared)
    for place, folder in enumerate(run.searches[:MOST_SEARCHES]):
        yield from _search(folder, "" if len(run.searches) == 1 else folder.name, place)
    if run.comparisons:
        from chop.views.sections.comparison import comparison_section

        yield "Samplers compared", partial(comparison_section, run.comparisons[0])
    yield "Test results", lambda: test_section(run)
    yield from _few_bits(run)
    if run.exports:
        from chop.views.sections.devices import devices_section
        from chop.views.sections.exports import exports_section, hardware_section

        yield "Hardware", partial(hardware_section, run)
        yield "Small devices", partial(devices_section, run)
        yield "Exports", partial(exports_section, run)
    if run.agreements:
        from chop.views.sections.agreement import agreement_section

        yield "Node by node", partial(agreement_section, run.agreements[0])
    if run.graphs or run.front_graphs:
        yield from _graph(run, problems)
    yield "Learning curves", lambda: learning_curves(run)
    yield "What was run", lambda: overview(records)


def _few_bits(run: RunFolder) -> Parts:
    """Return the sections of what layers and formats lose."""
    if run.sensitivities:
        from chop.views.sections.sensitivity import sensitivity_section

        yield "Each layer alone", partial(sensitivity_section, run.sensitivities)
    if run.format_comparisons:
        from chop.views.sections.sensitivity import formats_section

        yield "Formats compared", partial(formats_section, run.format_comparisons[0])


def _graph(run: RunFolder, problems: list[str]) -> Parts:
    """Return the section of the newest saved graph, or of the first network of a learned front."""
    from chop.results.graph import read_graph
    from chop.results.trials import first_graphs
    from chop.views.sections import graph as views
    from chop.views.sections.widths import widths_section

    where = "Graph"
    try:
        graphs = run.graphs or first_graphs(run.front_graphs[0].parent.parent)
        if not graphs:
            return
        newest, *older = graphs
        where, others = run.name_of(newest), [run.name_of(path) for path in older]
        graph, nodes = read_graph(newest)
    except (ChopError, OSError) as error:
        problems.append(f"{where}: {error}")
        return
    features = str(graph.preprocessing or "")
    yield where, lambda: views.graph_section(nodes, where, others, features)
    yield "Statistics", lambda: views.statistics_section(nodes)
    yield "Widths", lambda: widths_section(nodes)
    yield "Quantisation", lambda: views.weights_section(nodes, graph)
    yield "Costs", lambda: views.costs_section(graph, where)


def _search(folder: Path, name: str, place: int) -> Parts:
    """A search, and the settings that it has trained; `name` tells it from others."""
    from chop.views.sections.search import search_section

    yield folder.name, partial(search_section, folder, name, place)
    if (folder / TRAININGS).is_dir():
        from chop.views.sections.sweep import study_section

        yield folder.name, partial(study_section, folder, name, place)


def render(name: str, sections: list[Section]) -> str:
    """Sections as a page."""
    style, script = _resource("page.css"), _resource("page.js")
    order = sorted(sections, key=lambda section: not section.comes_first)
    tiles = most_important(distinct([tile for section in order for tile in section.tiles]))
    notes = [section.note for section in sections if section.note is not None]
    head = join_markup(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'),
            tag("title", f"{name} – chop report"),
            tag("style", Markup(style)),
        ]
    )
    links = [tag("li", tag("a", each.title, href=f"#{each.anchor}")) for each in sections]
    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    body = join_markup(
        [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            _header(name, tiles, notes),
            tag("nav", tag("ul", *links), aria_label="Contents"),
            tag("main", *map(_section, sections), id="content"),
            tag("footer", tag("p", f"Made by chop {__version__} on {when}.")),
            tag("script", Markup(script)),
        ]
    )
    page = join_markup([tag("head", head), tag("body", body)])
    return f"<!DOCTYPE html>\n{tag('html', page, lang='en')}\n"


def distinct(tiles: list[Tile]) -> list[Tile]:
    """Each tile once; what several searches have in common belongs to none of them."""
    found: dict[tuple[str, str, str], Tile] = {}
    for tile in tiles:
        key = (tile.label, tile.value, tile.detail)
        is_shared = key in found and found[key].search != tile.search
        found[key] = replace(tile, search="") if is_shared else tile
    return list({tile.title: tile for tile in found.values()}.values())


def most_important(tiles: list[Tile]) -> list[Tile]:
    """Return the tiles that a reader sees, in their order: at most six, of the lowest ranks."""
    shown = sorted(tiles, key=lambda tile: tile.rank)[:MOST_TILES]
    return [tile for tile in tiles if tile in shown]


def _policy(script: str) -> str:
    """Nothing from anywhere, and no script but ours: what escaping should miss stays inert."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _resource(name: str) -> str:
    return (files("chop.views") / name).read_text(encoding="utf-8")


def _header(name: str, tiles: list[Tile], notes: list[Markup]) -> Markup:
    cards = [
        tag(
            "div",
            tag("span", tile.title, class_="tile-label"),
            tag("strong", tile.value),
            class_="tile",
            title=tile.detail or None,
        )
        for tile in tiles
    ]
    above = tag("p", "Machop report", class_="quiet")
    return tag("header", above, tag("h1", name), *notes, tag("div", *cards, class_="tiles"))


def _section(section: Section) -> Markup:
    heading = f"{section.anchor}-title"
    return tag(
        "section",
        tag("h2", section.title, id=heading),
        details("Commands, settings and data", section.body) if section.is_folded else section.body,
        id=section.anchor,
        aria_labelledby=heading,
    )
