"""Report: a run as one HTML file."""

from pathlib import Path

from chop.errors import ConfigError, OutputError
from chop.files import write_text
from chop.runs import REPORT, open_run
from chop.views.page import build_page


def report(run_dir: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a run; the file.

    Args:
        run_dir: the folder of a project, or the ``software`` in it.
        output: the file to write, ``report.html`` in the folder of the project if not given; a
            page that is there already is replaced.
    """
    run = open_run(Path(run_dir))
    target = run.folder / REPORT if output is None else Path(output).expanduser()
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name the HTML file to write")
    page = build_page(run)
    try:
        write_text(target, page)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}") from None
    return target.resolve()
