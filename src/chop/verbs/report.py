"""Report: a run as one HTML file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from chop.config.option import Word
from chop.config.run import Debug, Output, Quiet
from chop.config.verb import Verb, add_verb
from chop.errors import ConfigError, OutputError
from chop.masking import printable

RunDir = Annotated[
    str | Path | None,
    Word("RUN_DIR", "folder of a project, as in mase_output", names="folder", needed=True),
]


@dataclass(frozen=True)
class ReportRequest:
    """Write one HTML page about a run: ch report RUN_DIR."""

    run_dir: RunDir = None
    output: Output = None
    quiet: Quiet = False
    to_debug: Debug = False


def write_page(request: ReportRequest) -> Path:
    """Write the page of a run and return its path; a page that is there already is replaced."""
    from chop.files import write_text
    from chop.runs import REPORT, open_run
    from chop.views.page import build_page

    if request.run_dir is None:
        raise ConfigError("no run is named: write ch report RUN_DIR, such as mase_output/<project>")
    run = open_run(Path(request.run_dir))
    target = run.folder / REPORT if request.output is None else Path(request.output).expanduser()
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name the HTML file to write")
    page = build_page(run)
    try:
        write_text(target, page)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}") from None
    return target.resolve()


def show_page(page: Path, request: ReportRequest) -> str:
    """Return where the page is, for a terminal."""
    path = printable(str(page))
    return f"{path}\n" if request.quiet else f"Report: {path}\n"


report = add_verb(
    Verb(
        "report",
        ReportRequest,
        place=8,
        quiet="the path of the page",
        function=write_page,
        show=show_page,
    )
)
