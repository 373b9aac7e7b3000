"""The page: sections of a run, style and script in one HTML file that needs no network."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from importlib.resources import files
from pathlib import Path

from chop import __version__
from chop.errors import ChopError
from chop.report.html import Markup, Section, Tile, joined, table, tag
from chop.report.sections.overview import overview, read_records
from chop.report.sections.training import learning_curves, tested
from chop.runs import TRAININGS, RunFolder, read_stored

MOST_SEARCHES = 4


def build_page(run: RunFolder) -> str:
    """The whole page of a run."""
    problems: list[str] = []
    sections = [
        *_kept("What was run", lambda: [overview(read_records(run, problems))], problems),
        *_kept("Learning curves", lambda: [learning_curves(run)], problems),
        *_kept("Test results", lambda: [tested(run)], problems),
        *(graph_sections(run, problems) if run.graphs else ()),
        *(search_sections(run, problems) if run.searches else ()),
        *(comparison_sections(run, problems) if run.comparisons else ()),
    ]
    if problems:
        sections.append(_problems(problems))
    return render(run.folder.name, sections)


def _kept(
    what: str, make: Callable[[], Sequence[Section | None]], problems: list[str]
) -> list[Section]:
    """Sections that have data; a damaged file costs its sections, not the page.

    Readers say DataError or CheckpointError of whatever a file can hold; anything else is a bug.
    """
    try:
        return [section for section in make() if section is not None]
    except (ChopError, OSError) as error:
        problems.append(f"{what}: {error}")
        return []


def graph_sections(run: RunFolder, problems: list[str]) -> list[Section]:
    """What the newest saved graph shows."""
    from chop.report.read.graph import read_graph
    from chop.report.sections.graph import (
        costs_section,
        graph_section,
        statistics_section,
        weights_section,
    )

    newest, *older = run.graphs
    where = run.name_of(newest)
    others = [run.name_of(path) for path in older]

    def made() -> list[Section | None]:
        graph, nodes = read_graph(newest)
        views = (
            ("Statistics", lambda: [statistics_section(nodes)]),
            ("Quantisation", lambda: [weights_section(nodes)]),
            ("Costs", lambda: [costs_section(graph)]),
        )
        rest = [each for name, view in views for each in _kept(name, view, problems)]
        features = str(graph.preprocessing or "")
        return [graph_section(nodes, where, others, features), *rest]

    return _kept(where, made, problems)


def search_sections(run: RunFolder, problems: list[str]) -> list[Section]:
    """The newest searches."""
    from chop.report.read.search import read_search
    from chop.report.sections.search import search_section

    def searched(folder: Path, name: str, place: int) -> list[Section | None]:
        search = read_search(folder)
        return [search_section(search, name, place)] if search.trials else []

    def studied(folder: Path, name: str, place: int) -> list[Section | None]:
        if not (folder / TRAININGS).is_dir():
            return []
        from chop.report.sections.sweep import read_study, study_section

        return [study_section(read_study(folder), name, place)]

    return [
        section
        for place, folder in enumerate(run.searches[:MOST_SEARCHES])
        for name in ["" if len(run.searches) == 1 else folder.name]
        for made in (searched, studied)
        for section in _kept(folder.name, partial(made, folder, name, place), problems)
    ]


def comparison_sections(run: RunFolder, problems: list[str]) -> list[Section]:
    """The newest comparison of samplers."""
    from chop.report.sections.comparison import StoredComparison, comparison_section

    newest = run.comparisons[0]
    where = f"{newest.parent.name}/{newest.name}"

    def made() -> list[Section | None]:
        return [comparison_section(read_stored(StoredComparison, newest, where))]

    return _kept("Samplers compared", made, problems)


def _problems(problems: list[str]) -> Section:
    rows = [(problem,) for problem in dict.fromkeys(problems)]
    body = table(("File and reason",), rows, "Files that could not be shown")
    return Section("problems", "Could not be shown", body)


def render(name: str, sections: list[Section]) -> str:
    """Sections as a page."""
    style, script = _resource("page.css"), _resource("page.js")
    tiles = {tile.label: tile for section in sections for tile in section.tiles}
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'),
            tag("title", f"{name} – chop report"),
            tag("style", Markup(style)),
        ]
    )
    body = joined(
        [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            _header(name, list(tiles.values())),
            _contents(sections),
            tag("main", *(_section(section) for section in sections), id="content"),
            _footer(),
            tag("script", Markup(script)),
        ]
    )
    page = joined([tag("head", head), tag("body", body)])
    return f"<!DOCTYPE html>\n{tag('html', page, lang='en')}\n"


def _policy(script: str) -> str:
    """Nothing from anywhere, and no script but ours: what escaping should miss stays inert."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _resource(name: str) -> str:
    return (files("chop.report") / name).read_text(encoding="utf-8")


def _header(name: str, tiles: list[Tile]) -> Markup:
    cards = [
        tag(
            "div",
            tag("span", tile.label, class_="tile-label"),
            tag("strong", tile.value),
            tag("span", tile.detail, class_="quiet") if tile.detail else None,
            class_="tile",
        )
        for tile in tiles
    ]
    above = tag("p", "Machop report", class_="quiet")
    return tag("header", above, tag("h1", name), tag("div", *cards, class_="tiles"))


def _contents(sections: list[Section]) -> Markup:
    links = [tag("li", tag("a", each.title, href=f"#{each.anchor}")) for each in sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _section(section: Section) -> Markup:
    heading = f"{section.anchor}-title"
    return tag(
        "section",
        tag("h2", section.title, id=heading),
        section.body,
        id=section.anchor,
        aria_labelledby=heading,
    )


def _footer() -> Markup:
    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return tag("footer", tag("p", f"Made by chop {__version__} on {when}."))
