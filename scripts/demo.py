"""The main job, end to end, on the data that comes with the package.

Every step prints the `ch` command that does it, and runs that command; copy one to do it yourself.
"""

import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

CH = str(Path(sys.executable).with_name("ch"))
OUTPUT = Path("mase_output")
SEARCHES = {
    "TPE": "configs/examples/jsc_mlp_search.toml",
    "brute force": "configs/examples/jsc_mlp_brute.toml",
}
CONFIG = SEARCHES["TPE"]
IN_COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if IN_COLOUR else ("", "", "")


def heading(words: str) -> None:
    """Say what comes next."""
    print(f"\n{BOLD}━━ {words}{PLAIN}", flush=True)


def ch(*arguments: object) -> None:
    """Print one `ch` command and run it."""
    tell(arguments)
    run(arguments)


def tell(arguments: Sequence[object]) -> None:
    """Print a command as a user would type it."""
    print(f"{DIM}${PLAIN} ch {shlex.join(map(str, arguments))}", flush=True)


def run(arguments: Sequence[object], shown: bool = True) -> None:
    """Run a command; the output of one that is not shown comes if it fails."""
    command = [CH, *map(str, arguments)]
    done = subprocess.run(command, capture_output=not shown, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr or ''}ch {arguments[0]} failed; the demo ends here")


def read(path: Path) -> dict[str, Any]:
    """The content of a JSON file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class Point:
    """One configuration of a front: its file, what the search measured, and where it is made."""

    file: Path
    wanted: dict[str, float]
    check: Path
    """The folder of a project of its own."""

    @property
    def graph(self) -> Path:
        return self.check / "software/transform/transformed_ckpt"

    def commands(self) -> tuple[list[object], list[object]]:
        """What makes the network in a new process, and what measures it in another."""
        how = ["--config", self.file, "--project-dir", self.check.parent, "--project",
               self.check.name]  # fmt: skip
        load = ["--load", self.graph, "--load-type", "mz", "--split", "val"]
        return ["transform", *how], ["test", *how, *load]

    def make(self) -> None:
        """Make the network, and measure it."""
        for command in self.commands():
            run(command, shown=False)

    def measured(self) -> dict[str, float]:
        """What the new processes have found: the numbers that the search should have found."""
        from chop.passes.graph import count_operations_analysis_pass
        from chop.passes.graph.interface import load_mase_graph

        _, counted = count_operations_analysis_pass(load_mase_graph(self.graph), {"report": False})
        total = counted["total"]
        tested = read(self.check / "software/checkpoints/test_results.json")
        return {
            "accuracy": tested["val_acc_epoch"],
            "loss": tested["val_loss_epoch"],
            "average_bitwidth": total["parameter_bits"] / total["parameters"],
            "bitops": total["bitops"],
        }


def front(search: Path, checks: Path) -> Iterator[Point]:
    """The configurations that a search has left."""
    for place, trial in read(search / "best.json").items():
        wanted = trial["software_metrics"] | trial["hardware_metrics"]
        yield Point(search / f"best_{place}.toml", wanted, checks / f"{search.name}-best_{place}")


def verify(points: list[Point]) -> None:
    """Make and measure every configuration again, as many at a time as there are cores."""
    for command in points[0].commands():
        tell(command)
    print(f"  and the same for each of best_0.toml to best_{len(points) - 1}.toml", flush=True)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(Point.make, points))
    found = [(point, point.measured()) for point in points]
    equal = [
        all(math.isclose(value, point.wanted[name], rel_tol=1e-6) for name, value in again.items())
        for point, again in found
    ]
    names = {"average_bitwidth": ".3f", "bitops": ",.0f", "accuracy": ".6f", "loss": ".6f"}
    rows = [
        [point.file.name, *(f"{again[name]:{style}}" for name, style in names.items()),
         "✓ as in the search" if same else f"✗ the search has {point.wanted}"]
        for (point, again), same in zip(found, equal, strict=True)
    ]  # fmt: skip
    headers = ["", "average bits", "BitOPs", "accuracy", "loss", ""]
    print("\n" + aligned(rows, headers), flush=True)
    if not all(equal):
        raise SystemExit("the front is not what the search said")


def aligned(rows: list[list[str]], headers: list[str]) -> str:
    """A table with its numbers at the right."""
    columns = ["left", *["right"] * (len(headers) - 2), "left" if not headers[-1] else "right"]
    return tabulate(rows, headers, "simple", disable_numparse=True, colalign=columns)


def free_project() -> str:
    """A name that no earlier run of the demo has taken."""
    names = ["demo", *(f"demo-{n}" for n in range(2, 10_000))]
    return next(name for name in names if not (OUTPUT / name).exists())


@dataclass(frozen=True)
class Demo:
    """One run of everything."""

    project: str

    @property
    def folder(self) -> Path:
        return OUTPUT / self.project

    @property
    def software(self) -> Path:
        return self.folder / "software"

    def act(self, action: str, config: str, *arguments: object) -> None:
        """Run one action in this project."""
        ch(action, "--config", config, "--project", self.project, *arguments)

    def prepare(self) -> tuple[str, Path]:
        """Train and test; the option that loads the weights."""
        heading("Train a network of four layers on jsc-sim")
        self.act("train", CONFIG)
        weights = ("--load", self.software / "training_ckpts/best.ckpt")
        heading("Test it")
        self.act("test", CONFIG, *weights, "--quiet")
        heading("Profile it, quantise it to 8 bits, count its operations, test that")
        self.act("transform", CONFIG, *weights, "--quiet")
        self.test(self.software / "transform/transformed_ckpt")
        return weights

    def test(self, graph: Path) -> None:
        """Test a saved graph on the test rows."""
        self.act("test", CONFIG, "--quiet", "--load", graph, "--load-type", "mz")

    def search(self, name: str, config: str, weights: tuple[object, ...], place: Path) -> Point:
        """Search, verify the front and test its most accurate network; that one."""
        heading(f"Search a number format for each layer with {name}")
        self.act("search", config, *weights, *(("--quiet",) if config != CONFIG else ()))
        points = list(front(place, self.folder / "verify"))
        heading(f"Verify the front of {name}: {len(points)} networks, made and measured again")
        verify(points)
        best = max(points, key=lambda point: point.wanted["accuracy"])
        heading(f"Test the most accurate one, {best.file.name}, on rows that no search has seen")
        self.test(best.graph)
        return best

    def run(self) -> None:
        """All steps, and a table of what came of them."""
        start = time.monotonic()
        weights = self.prepare()
        found: list[Point] = []
        for place, (name, config) in enumerate(SEARCHES.items()):
            folder = self.software / ("search_ckpts" + (f"-v{place}" if place else ""))
            found.append(self.search(name, config, weights, folder))
        heading("Write the report")
        ch("report", self.folder, "--quiet")
        print("\n" + self.table(found))
        print("jsc-sim is a simulated stand-in: these are not results on the JSC data set.")
        print(f"\nDone in {time.monotonic() - start:.0f} s. Open {BOLD}{self.page}{PLAIN}")

    @property
    def page(self) -> Path:
        return (self.folder / "report.html").resolve()

    def table(self, found: list[Point]) -> str:
        """Every network that was tested, in the order of the tests."""
        rows = [["float", "32", "", ""], ["8 bits everywhere", "8", "", ""]]
        rows += [
            [f"best of {name}", f"{point.wanted['average_bitwidth']:.2f}",
             f"{point.wanted['bitops']:,.0f}", f"{point.wanted['accuracy']:.4f}"]
            for name, point in zip(SEARCHES, found, strict=True)
        ]  # fmt: skip
        for place, row in enumerate(rows):
            version = f"-v{place}" if place else ""
            result = read(self.software / f"checkpoints/test_results{version}.json")
            row.append(f"{result['test_acc_epoch']:.4f}")
        headers = ["network", "average bits", "BitOPs", "validation accuracy", "test accuracy"]
        return aligned(rows, headers)


if __name__ == "__main__":
    try:
        Demo(free_project()).run()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; what was finished is kept in mase_output") from None
