"""Compare: the fronts of searches, of one project or of two, on one picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from chop.config.option import Word
from chop.config.run import Debug, Output, Quiet
from chop.config.verb import Verb, add_verb
from chop.errors import ConfigError
from chop.masking import printable
from chop.verbs.report import RunDir

if TYPE_CHECKING:
    from chop.results.fronts import Fronts


@dataclass(frozen=True)
class CompareRequest:
    """Plot the fronts of several searches together: ch compare RUN_DIR …."""

    run_dir: RunDir = None
    other_dirs: Annotated[
        list[str | Path], Word("OTHER_DIR", "more project folders", names="folder", repeats=True)
    ] = field(default_factory=list)
    output: Output = None
    quiet: Quiet = False
    to_debug: Debug = False


def compare_fronts(
    run_dirs: Sequence[str | Path], output: str | Path | None = None
) -> "tuple[Path, Fronts]":
    """Draw the fronts of all searches in the folders of projects; the picture, and what it shows.

    Args:
        run_dirs: the folders of projects.
        output: the PNG file to write; by default ``fronts.png`` in the first project.
    """
    from chop.charts import SHARP, write_png
    from chop.results.fronts import read_fronts
    from chop.runs import FRONTS_CHART, open_run

    runs = [open_run(Path(each)) for each in run_dirs]
    several = len({run.folder for run in runs}) > 1
    folders = {
        f"{run.folder.name}/{folder.name}" if several else folder.name: folder
        for run in runs
        for folder in run.searches
    }
    fronts = read_fronts(folders)
    if fronts is None:
        raise ConfigError(
            f"{', '.join(map(str, run_dirs))}: no two searches there have the same two objectives"
        )
    target = runs[0].folder / FRONTS_CHART if output is None else Path(output).expanduser()
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name the PNG file to write")
    return write_png(target, [[fronts.chart()]], dpi=SHARP).resolve(), fronts


def fronts_table(fronts: "Fronts") -> str:
    """Return the best of each search as a table."""
    from tabulate import tabulate

    rows = [
        [printable(name), len(fronts.points(name)), *(f"{each:.6g}" for each in fronts.best(name)),
         f"{share:.1%}"]
        for name, share in fronts.shares().items()
    ]  # fmt: skip
    heads = ["search", "on its front", f"best {fronts.good}", f"best {fronts.cost}", "hypervolume"]
    return tabulate(rows, heads, tablefmt="orgtbl", disable_numparse=True)


def compare_runs(request: CompareRequest) -> "tuple[Path, Fronts]":
    """Draw the fronts that are asked for."""
    if request.run_dir is None:
        raise ConfigError(
            "no run is named: write ch compare RUN_DIR, such as mase_output/<project>"
        )
    return compare_fronts([request.run_dir, *request.other_dirs], request.output)


def show_fronts(found: "tuple[Path, Fronts]", request: CompareRequest) -> str:
    """Return what was drawn and where, for a terminal."""
    picture, fronts = found
    return f"{picture}\n" if request.quiet else f"{fronts_table(fronts)}\nPicture: {picture}\n"


compare = add_verb(
    Verb(
        "compare",
        CompareRequest,
        place=9,
        quiet="the path of the picture",
        function=compare_runs,
        show=show_fronts,
    )
)
