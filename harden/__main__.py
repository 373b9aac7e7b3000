"""Runs the parts of the hardening, all or those named, and prints the table."""

import argparse
import importlib
import signal
import sys
import time

from tabulate import tabulate

from harden.common import Part, Row

PARTS = {
    "configuration": "harden.configuration",
    "files": "harden.damaged_files",
    "kills": "harden.kills",
    "cluster": "harden.cluster",
    "load": "harden.load",
    "resources": "harden.resources",
    "numbers": "harden.numbers",
    "security": "harden.security",
    "networks": "harden.networks",
    "integers": "harden.integers",
}
FAILURES_SHOWN = 20


def part(name: str) -> Part:
    """The function `run` of a part."""
    run: Part = importlib.import_module(PARTS[name]).run
    return run


def main() -> int:
    """Run what the command line asks for; 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m harden", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases")
    options = parser.parse_args()
    # What a shell starts in the background ignores Ctrl-C, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {unknown.pop()!r}: one of {', '.join(PARTS)}")
    rows: list[Row] = []
    for name in options.parts or PARTS:
        begun = time.monotonic()
        found = list(part(name)(options.scale))
        rows += found
        tried, lost = (sum(getattr(row, each) for row in found) for each in ("tried", "lost"))
        taken = time.monotonic() - begun
        print(f"{name}: {tried} cases, {lost} lost, {taken:.0f} s", flush=True)
        print_losses(found)
    print_table(rows)
    print_losses(rows)
    return int(any(row.lost for row in rows))


def print_table(rows: list[Row]) -> None:
    """Print the table of what was tried and lost."""
    cells = [(r.part, r.what, r.tried, r.lost, r.figure) for r in rows]
    print(tabulate(cells, ["part", "what was done", "tried", "lost", "figure"], "github"))


def print_losses(rows: list[Row]) -> None:
    """Print how to see the losses again."""
    for row in rows:
        for failure in row.failures[:FAILURES_SHOWN]:
            print(f"lost: {row.part}, {row.what}: {failure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
