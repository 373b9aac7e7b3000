"""What is trusted: `--import` runs files, and nothing else that ``ch`` is given runs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from harden import security_graph, security_pins, security_source
from harden.common import Row, share
from harden.in_process import ch
from harden.security_hostile import CANARY, DATA, HOSTILE, MODEL, Hostile, importing

KINDS = ("checkpoint", "graph", "study", "configuration", "data")


def run(scale: float) -> Iterator[Row]:
    """Hostile files of each kind, the user's own code, the source and the pins."""
    for kind in KINDS:
        cases = [each for each in HOSTILE if each.kind == kind]
        every = max(1, round(len(cases) / share(len(cases), scale)))
        yield hostile_row(kind, cases[::every])
    yield security_graph.row(scale)
    yield trusted_row()
    yield source_row()
    yield pins_row()


def hostile_row(kind: str, cases: list[Hostile]) -> Row:
    """Files of one kind that would run code if they were believed."""
    problems = [(each.name, attempt(each)) for each in cases]
    failures = tuple(f"{name}: {problem}" for name, problem in problems if problem)
    what = f"a {kind} that would run code" if kind != "data" else "data that would run code"
    return Row("security", what, len(cases), len(failures), failures)


def attempt(hostile: Hostile) -> str:
    """What is wrong with the way ``ch`` takes a hostile file; nothing if all is well."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code, error = ch(hostile.write(folder), folder)
        if (folder / CANARY).exists():
            return "the code in it was run"
        if hostile.kind == "configuration" and (folder / "out").exists():
            return "something was left behind"
        if hostile.harmless:
            return "" if code in (0, 2) else f"exit code {code}: {error[-300:]}"
        if code != 2 or not error.startswith("ch: ") or error.count("\n") != 1:
            return f"exit code {code}, not one line and 2: {error[-300:]}"
    return ""


def trusted_row() -> Row:
    """The user's own file does run: without this, a canary that never sings would prove nothing."""
    asked = ([MODEL, DATA], ["--config", "run.toml"])
    failures = tuple(problem for each in asked if (problem := trusted(each)))
    return Row(
        "security", "a file given to --import, which runs", len(asked), len(failures), failures
    )


def trusted(asked: list[str]) -> str:
    """What is wrong with the way ``ch`` runs a file given to it; ``run.toml`` needs the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        importing("./own.py")(folder)
        code, error = ch(["test", *asked, "--import", "own.py"], folder)
        ran = (folder / CANARY).exists()
    return "" if ran and code == 0 else f"{asked}: exit code {code}, run: {ran}: {error}"


def source_row() -> Row:
    """The source of the package, without what could run code or fetch it."""
    files, found = security_source.search()
    what = "files of the package without pickle, eval, shell or unverified download"
    return Row("security", what, files, len(found), tuple(map(str, found)))


def pins_row() -> Row:
    """Every package that is pinned states a licence, and the page lists what is pinned."""
    pins = security_pins.pins()
    here = {pin.name: found for pin in pins if (found := security_pins.installed(pin))}
    failures = [
        f"{name} states no licence"
        for name, package in here.items()
        if security_pins.licence(package) == security_pins.UNKNOWN
    ]
    listed = security_pins.PAGE.read_text(encoding="utf-8")
    if len(here) == len(pins) and listed != security_pins.page(pins):
        failures.append(
            "docs/dependencies.md is not what is pinned: python -m harden.security_pins"
        )
    figure = f"{len(here)} of {len(pins)} installed here"
    return Row(
        "security",
        "pinned packages with a licence",
        len(pins),
        len(failures),
        tuple(failures),
        figure,
    )
