"""Where reports go: to standard output, so that a script with no logging set up shows them."""

import sys
from pathlib import Path

from chop.files import write_text


def show(text: str) -> None:
    """Write a report and a newline to standard output."""
    sys.stdout.write(f"{text}\n")


def show_or_save(text: str, path: Path | None) -> None:
    """Write a report to a file, or to standard output if there is none."""
    if path is None:
        show(text)
    else:
        write_text(path, f"{text}\n")
