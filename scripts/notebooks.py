"""The notebooks of examples/: run, stored with what they print, compared with what is stored.

``python scripts/notebooks.py`` runs every notebook and stores its outputs; names (``lab2``) choose
some. With ``--check`` nothing is written: what a cell gives now is compared with what is stored.

Two runs of a notebook differ in a few ways that mean nothing. All of them are here: `cleaned` takes
out of the outputs what belongs to one run and one machine before they are stored, and `differences`
says how closely what is left has to agree.
"""

import argparse
import base64
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples"
Notebook = Any
Output = dict[str, Any]
Apart = tuple[float, float]

SECRET = "setup-of-the-check"
"""The id of a cell that is run first and not stored."""
SETUP = """\
import warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="ipykernel")  # not of the notebook
"""
FRESH = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
"""Rounding depends on the number of threads. The usual backend of notebooks, whatever tests set."""

VARIES = (
    # A line that comes after some seconds: how far a search is.
    (re.compile(r"^INFO +\d[\d,]*/\d[\d,]* configurations, .*\n", re.MULTILINE), ""),
    # The time and the speed of an epoch.
    (re.compile(r"\[\d\d:\d\d(?::\d\d)?, +[\d.,]+ ?it/s, "), "["),
)
TIMED_COLUMNS = ("seconds", "latency (ms)")
"""Columns of tables that hold times: stored as they were measured, and not compared."""
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
RULE = re.compile(r"[-=+|:]{2,}|[|]")
PICTURE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")

USUAL, LOOSE = (0.05, 0.02), (0.5, 0.1)
"""How far numbers may be apart, as a share of the number and beyond that, on another machine, whose
sums are rounded in another order: usually small counts have to be equal, and an accuracy may move
by two points or so."""
SENSITIVE = {"lab2": ("verify", "accuracy"), "lab3": ("loop",)}
"""Cells whose numbers are looser: few bits make many points of accuracy out of the last digits of
trained weights. Found with ATEN_CPU_CAPABILITY=default and MKL_ENABLE_INSTRUCTIONS=SSE4_2."""
COLOURS = 64
GREY = 0.03
"""How far two pictures may be apart on average, from 0 to 1; an empty one is further away."""


def path_of(name: str) -> Path:
    """The file of a notebook."""
    return FOLDER / f"{name}.ipynb"


def names() -> list[str]:
    """All notebooks."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> Notebook:
    """A notebook as it is stored."""
    return nbformat.read(path_of(name), as_version=4)


def executed(notebook: Notebook, folder: Path, before: dict[str, str] | None = None) -> Notebook:
    """A copy of a notebook after all its cells have run in a folder, with cleaned outputs.

    Args:
        before: code to run right before the cell of an id, which is not kept.
    """
    done = nbformat.from_dict(json.loads(json.dumps(notebook)))
    hidden = {done.cells[0].id: SETUP, **(before or {})}
    done.cells = [
        each
        for cell in done.cells
        for each in ([_hidden(cell.id, hidden[cell.id])] if cell.id in hidden else []) + [cell]
    ]
    resources = {"metadata": {"path": str(folder)}}
    quiet = ["--log-level=ERROR"]  # no message about how the kernel is talked to
    client = NotebookClient(
        done, timeout=600, resources=resources, coalesce_streams=True, record_timing=False,
        extra_arguments=quiet,
    )  # fmt: skip
    # No settings of the user who runs this.
    own = {"IPYTHONDIR": str(folder / ".ipython"), "JUPYTER_CONFIG_DIR": str(folder / ".jupyter")}
    client.execute(env={**os.environ, **FRESH, **own})
    done.cells = [cell for cell in done.cells if not cell.id.startswith(SECRET)]
    done.metadata = notebook.metadata  # without the version of Python
    for count, cell in enumerate((c for c in done.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
        cell.metadata = {}
        cell.outputs = [cleaned(each, count, folder) for each in cell.outputs]
    return done


def _hidden(before: str, source: str) -> Any:
    cell = nbformat.v4.new_code_cell(source)
    cell.id = f"{SECRET}-{before}"
    return cell


def cleaned(output: Output, count: int, folder: Path) -> Output:
    """An output without what belongs to one run: its folder, its progress, numbers of cells."""
    output = nbformat.from_dict(output)
    if "text" in output:
        output.text = cleaned_text(output.text, folder)
    for kind, data in output.get("data", {}).items():
        if isinstance(data, str) and kind.startswith("text/"):
            output.data[kind] = PICTURE.sub(_smaller, cleaned_text(data, folder))
        elif kind == "image/png":
            output.data[kind] = smaller(data)
    if "execution_count" in output:
        output.execution_count = count
    output.pop("transient", None)
    return output


def smaller(picture: str) -> str:
    """A picture in 64 colours, which lines and bars do not miss, as a third of the bytes."""
    stream = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as original:
        original.convert("RGB").quantize(COLOURS).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def _smaller(found: re.Match[str]) -> str:
    return f"data:image/png;base64,{smaller(found[1])}"


def cleaned_text(text: str, folder: Path) -> str:
    """A text without absolute paths, lines of progress and speeds."""
    for name in {str(folder), str(folder.resolve())}:
        text = text.replace(f"{name}/", "").replace(name, ".")
    for pattern, instead in VARIES:
        text = pattern.sub(instead, text)
    return text


def differences(
    stored: Notebook, now: Notebook, until: str | None = None, sensitive: Sequence[str] = ()
) -> Iterator[str]:
    """Where two notebooks do not agree, a line for each place.

    Args:
        until: the id of the first cell that is not compared.
        sensitive: ids of cells whose numbers may be further apart.
    """
    pairs = zip(stored.cells, now.cells, strict=True)
    for old, new in itertools.takewhile(lambda pair: pair[0].id != until, pairs):
        if old.cell_type != "code":
            continue
        if len(old.outputs) != len(new.outputs):
            kinds = [[each.output_type for each in cell.outputs] for cell in (old, new)]
            yield f"{old.id}: outputs {kinds[0]} are stored, now there are {kinds[1]}"
            continue
        for before, after in zip(old.outputs, new.outputs, strict=True):
            for found in _output_differences(
                before, after, LOOSE if old.id in sensitive else USUAL
            ):
                yield f"{old.id}: {found}"


def _output_differences(old: Output, new: Output, apart: Apart) -> Iterator[str]:
    kinds = [(each["output_type"], each.get("name"), sorted(each.get("data", ()))) for each in
             (old, new)]  # fmt: skip
    if kinds[0] != kinds[1]:
        yield f"{kinds[0]} is stored, now it is {kinds[1]}"
        return
    if "text" in old:
        yield from text_differences(old["text"], new["text"], apart)
    for kind, data in old.get("data", {}).items():
        if kind == "image/png":
            yield from picture_differences(data, new["data"][kind])
        elif kind == "text/html":
            yield from html_differences(data, new["data"][kind], apart)
        else:
            yield from text_differences(str(data), str(new["data"][kind]), apart)


def html_differences(old: str, new: str, apart: Apart) -> Iterator[str]:
    """Where markup differs: as text, and in its pictures."""
    pictures = [PICTURE.findall(each) for each in (old, new)]
    before, after = (PICTURE.sub("picture", each) for each in (old, new))
    yield from text_differences(before, after, apart)
    for before, after in zip(*pictures, strict=False):
        yield from picture_differences(before, after)


def text_differences(old: str, new: str, apart: Apart = USUAL) -> Iterator[str]:
    """Where texts differ, line by line: words exactly, numbers within the tolerance.

    Widths of gaps and of rules do not count: they follow the lengths of numbers.
    """
    lines = [without_times(text).splitlines() for text in (old, new)]
    if len(lines[0]) != len(lines[1]):
        yield f"{len(lines[0])} lines are stored, now there are {len(lines[1])}: {new!r}"
        return
    for before, after in zip(*lines, strict=True):
        if not _agree(before, after, apart):
            yield f"{before!r} is stored, now it is {after!r}"


def _agree(old: str, new: str, apart: Apart) -> bool:
    if old == new:
        return True
    words = [NUMBER.sub("#", RULE.sub(" ", line)).split() for line in (old, new)]
    if words[0] != words[1]:
        return False
    numbers = [
        [float(each.replace(",", "")) for each in NUMBER.findall(line)] for line in (old, new)
    ]
    share, beyond = apart
    return all(abs(a - b) <= beyond + share * abs(a) for a, b in zip(*numbers, strict=True))


def without_times(text: str) -> str:
    """A text with tables whose columns of times are empty."""
    lines, timed = [], set[int]()
    for line in text.splitlines():
        cells = line.split("|")
        heads = {place for place, cell in enumerate(cells) if cell.strip() in TIMED_COLUMNS}
        timed = heads or (timed if len(cells) > 1 else set())
        lines.append("|".join("" if place in timed else cell for place, cell in enumerate(cells)))
    return "\n".join(lines)


def picture_differences(old: str, new: str) -> Iterator[str]:
    """Whether two pictures look different."""
    before, after = (Image.open(io.BytesIO(base64.b64decode(each))) for each in (old, new))
    if max(abs(a - b) for a, b in zip(before.size, after.size, strict=True)) > 8:
        yield f"a picture of {before.size} is stored, now it has {after.size}"
        return
    small = [
        np.asarray(each.convert("L").resize((96, 64)), dtype=float) / 255
        for each in (before, after)
    ]
    apart = float(np.abs(small[0] - small[1]).mean())
    if apart > GREY:
        yield f"a picture is {apart:.3f} away from the stored one"


def store(name: str, notebook: Notebook) -> None:
    """Write a notebook in the form that the tests ask for."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook, version=4)
    path_of(name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run notebooks; the exit code is 1 if a comparison finds differences."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="lab1, …; all by default")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"no notebook {', '.join(unknown)} in examples/; there are {names()}")
    found = 0
    for name in options.names or names():
        stored = read(name)
        with tempfile.TemporaryDirectory() as folder:
            now = executed(stored, Path(folder))
        if options.check:
            lines = list(differences(stored, now, sensitive=SENSITIVE.get(name, ())))
            print(f"{name}: {len(lines)} differences", *lines, sep="\n  ")
            found += len(lines)
        else:
            store(name, now)
            print(f"{name}: {path_of(name).stat().st_size:,} bytes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
