"""The list of everything that is installed with the package, with versions and licences.

``python -m harden.security_pins`` writes docs/dependencies.md anew, from constraints.txt and what
the installed packages say of themselves.
"""

import re
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
PINS = ROOT / "constraints.txt"
PAGE = ROOT / "docs" / "dependencies.md"
UNKNOWN = "not stated"
LONGEST = 60
WORDS = {
    "neither the name of": "BSD-3-Clause",
    "Permission is hereby granted, free of charge": "MIT",
}
"""What tells a licence by its text."""
HEAD = """# Dependencies

Everything that `make` installs, as pinned in `constraints.txt`, with the licence that each package
states. Written by `python -m harden.security_pins`; a test compares the two wherever these pins are
installed.

The pins are exact, so what was looked at is what is installed. `pip-audit` needs a database of
known weaknesses: `pip-audit -r constraints.txt --no-deps` asks PyPI's or OSV's where one can be
reached.

"""


@dataclass(frozen=True)
class Pin:
    """One line of constraints.txt."""

    name: str
    version: str


def pins(path: Path = PINS) -> list[Pin]:
    """The packages that are pinned."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Pin(*line.split("==")) for line in lines if re.fullmatch(r"\S+==\S+", line)]


def installed(pin: Pin) -> Distribution | None:
    """The package, if the version that is pinned is the one that is here."""
    try:
        found = distribution(pin.name)
    except PackageNotFoundError:
        return None
    return found if same_version(found.version, pin.version) else None


def same_version(here: str, pinned: str) -> bool:
    """Whether two versions are one but for the part that names a build (2.13.0+cpu)."""
    return here.partition("+")[0] == pinned.partition("+")[0]


def licence(package: Distribution) -> str:
    """The licence as the package states it: an SPDX expression, a name, or its classifiers."""
    expression = stated(package, "License-Expression")
    if expression:
        return expression
    classifiers = package.metadata.get_all("Classifier") or ()
    marks = [mark for mark in classifiers if mark.startswith("License ::")]
    names = [mark.rpartition(" :: ")[2] for mark in marks if mark.count(" :: ") > 1]
    text = stated(package, "License").strip()
    if text and len(text) <= LONGEST:
        return text
    return " and ".join(names) or recognised(text)


def stated(package: Distribution, field: str) -> str:
    """What a package says in a field of its metadata, empty if it does not."""
    return str(package.metadata[field]) if field in package.metadata else ""


def recognised(text: str) -> str:
    """The licence whose whole text a package gives in place of a name."""
    return next((name for words, name in WORDS.items() if words in " ".join(text.split())), UNKNOWN)


def page(known: list[Pin]) -> str:
    """The page; every pin must be installed here."""
    rows = []
    for pin in known:
        package = installed(pin)
        if package is None:
            raise LookupError(f"{pin.name} {pin.version} is not installed here")
        rows.append([pin.name, pin.version, licence(package), summary(package)])
    return HEAD + tabulate(rows, ["package", "version", "licence", "what it is"], "github") + "\n"


def summary(package: Distribution) -> str:
    """What a package says it is, in a line."""
    return " ".join(stated(package, "Summary").replace("|", "/").split())


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(pins()), encoding="utf-8")
    print(f"{PAGE}: {len(pins())} packages")


if __name__ == "__main__":
    main()
