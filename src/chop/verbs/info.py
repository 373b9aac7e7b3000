"""Info: what there is to name in commands and files, on one screen or in full."""

import shutil
import textwrap
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from chop import __version__, catalogue
from chop.catalogue import TOPICS, Catalogue, Traits, metric_words, trait_words
from chop.config.option import Word
from chop.config.run import Debug, Imports, Quiet
from chop.config.verb import Verb, add_verb
from chop.errors import UnknownNameError

PLAIN_TABLE: dict[str, Any] = {"tablefmt": "simple", "disable_numparse": True}
TRAITS_WIDTH = 88  # characters of a line in a list
METRICS = "metrics"
MOST_LINES = {METRICS: 4}  # of a topic, so that all of them fit on a screen
FEW_LINES = 2
WIDEST = 120
RUNNERS = ("sw_runners", "hw_runners")


def info(
    topic: str | None = None,
    name: str | None = None,
    *,
    imports: Collection[str] = (),
    names_only: bool = False,
) -> str:
    """The text of ``ch info [TOPIC] [NAME]``.

    Args:
        topic: what to list, or the name of one thing; None gives all names on one screen.
        imports: files of the user's, whose entries are listed, too.
        names_only: leave out all but the names.
    """
    if imports:
        from chop.loading.user_code import import_user_code

        import_user_code(list(imports))
        known, traits = catalogue.live(), catalogue.live_traits()
    else:
        known, traits = catalogue.read_catalogue(), catalogue.stored_traits()
    if topic is None and not names_only:
        return topics_overview(known, traits, shutil.get_terminal_size().columns)
    measured = metrics_in(traits)
    is_entry = any(topic in entries for entries in known.values())
    if topic == METRICS or (topic in measured and not is_entry):
        one = name if topic == METRICS else topic
        return metrics_text(measured, [one] if one else [], names_only)
    topic = {None: "all", "model": "models", "dataset": "datasets"}.get(topic, topic)
    if is_entry:
        topic, name = "all", topic  # ch info jsc-tiny
    # "runners" are the sw_runners and the hw_runners
    wanted = [each for each in TOPICS if topic in ("all", each, each.partition("_")[2])]
    if not wanted:
        raise UnknownNameError("topic", str(topic), ("all", *TOPICS, METRICS))
    chosen = {each: known[each] for each in wanted}
    if name is not None:
        return _entry(name, chosen, traits)
    if names_only:
        return "".join(f"{name}\n" for topic in chosen.values() for name in topic)
    tables = [_table(topic, entries, traits.get(topic, {})) for topic, entries in chosen.items()]
    return "\n\n".join(tables) + "\n"


def metrics_in(traits: Traits) -> dict[str, dict[str, str]]:
    """Return the metrics of runners: by the name of the metric, its words by that of the runner."""
    found: dict[str, dict[str, str]] = {}
    for topic in RUNNERS:
        for runner, said in traits.get(topic, {}).items():
            for metric in said.get("metrics", ()):
                found.setdefault(metric["name"], {})[runner] = metric_words(metric)
    return found


def metrics_text(measured: dict[str, dict[str, str]], wanted: list[str], names_only: bool) -> str:
    """Metrics with their units, the better direction and who measures them."""
    from tabulate import tabulate

    for name in wanted:
        if name not in measured:
            raise UnknownNameError("metric", name, measured)
    chosen = {name: measured[name] for name in wanted or measured}
    if names_only:
        return "".join(f"{name}\n" for name in chosen)
    rows = [[next(iter(each.values())), ", ".join(each)] for each in chosen.values()]
    return tabulate(rows, [METRICS, "measured by"], **PLAIN_TABLE) + "\n"


def topics_overview(entries: Catalogue, traits: Traits, columns: int) -> str:
    """All topics with their names, as many as fit on a screen of so many columns."""
    metrics = metrics_in(traits)
    plain = [name for name in metrics if name.rpartition("_")[0] not in metrics]  # no loss_spread
    listed: dict[str, Iterable[str]] = {**entries, METRICS: plain}
    width = min(columns, WIDEST)
    margin = max(map(len, listed)) + 2
    lines = [f"Machop {__version__}: what commands and files can name"]
    for topic, names in listed.items():
        most = MOST_LINES.get(topic, FEW_LINES)
        heads = [topic, *[""] * most]
        shown = zip(heads, _names(list(names), width - margin, most), strict=False)
        lines += [f"{head:{margin}}{line}" for head, line in shown]
    more = "ch info TOPIC describes them, ch info NAME one of them, ch info all everything."
    return "\n".join([*lines, "", more]) + "\n"


def _names(names: list[str], width: int, most: int) -> list[str]:
    """Names in a few lines; those that do not fit are counted."""
    for count in range(len(names), 0, -1):
        rest = [f"… {len(names) - count} more"] if count < len(names) else []
        lines = textwrap.wrap(
            ", ".join(names[:count] + rest), width, break_long_words=False, break_on_hyphens=False
        )
        if len(lines) <= most:
            return lines
    return [f"{len(names)} of them"]


def _entry(name: str, topics: Catalogue, traits: Traits) -> str:
    """Return the description of a name; for a pass of the package, with its keys."""
    found = {topic: entries[name] for topic, entries in topics.items() if name in entries}
    if not found:
        known = [each for entries in topics.values() for each in entries]
        raise UnknownNameError("name", name, known)
    lines = []
    for topic, text in found.items():
        said = traits.get(topic, {}).get(name, {})
        measured = [f"measures {metric_words(metric)}" for metric in said.get("metrics", ())]
        lines += [f"{name} ({topic}): {text}", trait_words(said), *measured]
    shown = "".join(f"{line}\n" for line in lines if line)
    return shown + (_pass_keys(name) if "passes" in found else "")


def _pass_keys(name: str) -> str:
    from tabulate import tabulate

    from chop.config.schema import nested_key_rows, pass_table

    rows = [[textwrap.fill(cell, 44) for cell in row] for row in nested_key_rows(pass_table(name))]
    headers = [f"[passes.{name}]", "values", "default", "meaning"]
    return f"\n{tabulate(rows, headers, **PLAIN_TABLE)}\n" if rows else ""


def _table(topic: str, entries: dict[str, str], traits: dict[str, dict[str, Any]]) -> str:
    """The names of a topic with a line each, and the metrics of those that measure some."""
    from tabulate import tabulate

    rows = []
    for name, text in entries.items():
        words = trait_words(traits.get(name, {}))
        measured = "\n".join(map(metric_words, traits.get(name, {}).get("metrics", ())))
        rows.append([name, "\n".join([text, *textwrap.wrap(words, TRAITS_WIDTH)]), measured])
    if not any(measured for *_, measured in rows):
        return tabulate([row[:2] for row in rows], [topic, "description"], **PLAIN_TABLE)
    return tabulate(rows, [topic, "description", "metrics"], **PLAIN_TABLE)


@dataclass(frozen=True)
class InfoRequest:
    """List what can be named: models, datasets, formats, passes …."""

    topic: Annotated[
        str | None, Word("TOPIC", "what to list; by default all", ("all", *TOPICS))
    ] = None
    entry: Annotated[str | None, Word("NAME", "one entry, with its details", names="entries")] = (
        None
    )
    imports: Imports = field(default_factory=list)
    quiet: Quiet = False
    to_debug: Debug = False


add_verb(
    Verb(
        "info",
        InfoRequest,
        place=13,
        quiet="names, one per line",
        function=lambda request: info(
            request.topic, request.entry, imports=request.imports, names_only=request.quiet
        ),
        show=lambda text, request: str(text),
    )
)
