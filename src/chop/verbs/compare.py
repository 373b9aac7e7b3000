"""Compare: the fronts of searches, of one project or of two, on one picture."""

from collections.abc import Sequence
from pathlib import Path

from chop.charts import SHARP, write_png
from chop.errors import ConfigError
from chop.masking import printable
from chop.results.fronts import Fronts, read_fronts
from chop.runs import FRONTS_CHART, open_run


def compare_fronts(
    run_dirs: Sequence[str | Path], output: str | Path | None = None
) -> tuple[Path, Fronts]:
    """Draw the fronts of all searches in the folders of projects; the picture, and what it shows.

    Args:
        run_dirs: the folders of projects.
        output: the PNG file to write; by default ``fronts.png`` in the first project.
    """
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


def fronts_table(fronts: Fronts) -> str:
    """What each search has reached, as a table."""
    from tabulate import tabulate

    rows = [
        [printable(name), len(fronts.points(name)), *(f"{each:.6g}" for each in fronts.best(name)),
         f"{share:.1%}"]
        for name, share in fronts.shares().items()
    ]  # fmt: skip
    heads = ["search", "on its front", f"best {fronts.good}", f"best {fronts.cost}", "hypervolume"]
    return tabulate(rows, heads, tablefmt="orgtbl", disable_numparse=True)
