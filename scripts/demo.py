"""The main job, end to end, on the data that comes with the package.

A network is trained and quantised to 8 bits; TPE searches its widths, and then they are learned.
Both fronts are made again in new processes, in integers, too; one network leaves as C and Verilog.
Every step prints the `ch` command that does it, and runs that command; copy one to do it yourself.
"""

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

CH = str(Path(sys.executable).with_name("ch"))
OUTPUT = Path("mase_output")
NETWORK = ("jsc-mlp", "jsc-sim")
TRAINING = ("--max-epochs", 30, "--batch-size", 1024, "--learning-rate", 1e-2)
SEARCHES = {
    "TPE": "configs/examples/jsc_mlp_search.toml",
    "learned": "configs/examples/jsc_mlp_widths.toml",
}
WORDS = {
    "TPE": "Search the widths of each layer with TPE: the weights stay as they are",
    "learned": "Learn the width of each weight, together with the weights",
}
CHECKERS = {"c": ("cc",), "verilog": ("verilator", "iverilog")}
"""Of each form that a network leaves in, the programs of which one has to be there to check it."""
MAY_LOSE = 0.01
"""The accuracy on validation rows that the exported network may lose to the float network."""
SHOWN = 5
"""Networks of each front in the last table."""
STAR = "★"
HOW_TO_READ_IT = f"""
Networks were chosen on validation rows and tested on others; ± is 95 % sure. {STAR} costs
least of the learned front among those that lose at most {MAY_LOSE} to the float network.
jsc-sim is a simulated stand-in: these are not results on the JSC data set."""
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
    """One network of a front: its settings, what the search found, and where it is made again."""

    file: Path
    found: dict[str, Any]
    """What ``best.json`` says of it."""
    check: Path
    """The folder of a project of its own."""

    @property
    def wanted(self) -> dict[str, float]:
        """What the search measured on validation rows."""
        return {**self.found["software_metrics"], **self.found["hardware_metrics"]}

    @property
    def graph(self) -> Path:
        return self.check / "software/transform/transformed_ckpt"

    def commands(self) -> tuple[list[object], list[object]]:
        """What makes the network again, and what measures it in floating point and in integers."""
        how = ["--config", self.file, "--project-dir", self.check.parent, "--project",
               self.check.name]  # fmt: skip
        load = ["--load", self.graph, "--load-type", "mz", "--split", "val", "--exact"]
        return ["transform", *how], ["test", *how, *load]

    def make(self) -> None:
        """Make the network and measure it, in this process: starting one takes longer than that."""
        from chop.cli import main

        for command in self.commands():
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main([*map(str, command), "--quiet"])
            if code:
                raise RuntimeError(f"ch {command[0]} failed on {self.file}: {said.getvalue()}")

    def measured(self) -> dict[str, float]:
        """What was found now: the numbers of the search, and outputs that differ from integers."""
        tested = read(self.check / "software/checkpoints/test_results.json")
        return {
            "accuracy": tested["val_acc_epoch"],
            "loss": tested["val_loss_epoch"],
            "ebops": ebops_of(self.graph),
            "different": tested["integers"]["different"],
        }

    def again(self) -> dict[str, float]:
        """Make it, measure it, and say what was found."""
        self.make()
        return self.measured()

    def cells(self) -> list[str]:
        """What the last table says of it, as the search found it."""
        known, verified = self.found["accuracies"], self.found["verified"]
        accuracies = [with_interval(known[rows]) for rows in ("chosen_by", "test")]
        equal = rows_equal(verified["rows"], verified["equal"])
        return [f"{self.wanted['ebops']:,.0f}", *accuracies, equal]


def ebops_of(graph: Path) -> int:
    """The effective bit operations of a saved graph, on the rows that searches count with."""
    from chop.dataset import MaseDataModule
    from chop.passes.graph import count_operations_analysis_pass
    from chop.passes.graph.interface import load_mase_graph

    rows = MaseDataModule(NETWORK[1], batch_size=1024).train_dataloader()
    batches = ({"x": features} for features, _ in rows)
    args = {"input_generator": batches, "report": False}
    _, counted = count_operations_analysis_pass(load_mase_graph(graph), args)
    total: int = counted["total"]["ebops"]
    return total


def front(search: Path, checks: Path) -> Iterator[Point]:
    """The networks that a search has left."""
    for place, trial in read(search / "best.json").items():
        yield Point(search / f"best_{place}.toml", trial, checks / f"{search.name}-best_{place}")


def new_processes() -> Executor:
    """One new process for each core."""
    return ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), one_thread)


def one_thread() -> None:
    """Compute with one thread in this process, which has not imported torch yet."""
    os.environ["OMP_NUM_THREADS"] = "1"


def verify(points: list[Point], processes: Executor) -> None:
    """Make and measure every network of a front again, and compare with what the search said."""
    for command in points[0].commands():
        tell(command)
    print(f"  and the same for each of best_0.toml to best_{len(points) - 1}.toml", flush=True)
    found = list(zip(points, processes.map(Point.again, points), strict=True))
    names = {"ebops": ",.0f", "accuracy": ".4f", "loss": ".6f", "different": "d"}
    rows = [
        [point.file.name, *(f"{again[name]:{style}}" for name, style in names.items()),
         "✓ as in the search" if is_equal(point, again) else f"✗ the search has {point.wanted}"]
        for point, again in found
    ]  # fmt: skip
    headers = ["", "EBOPs", "accuracy", "loss", "unequal to integers", ""]
    print("\n" + aligned(rows, headers), flush=True)
    if not all(is_equal(point, again) for point, again in found):
        raise SystemExit("the front is not what the search said")


def is_equal(point: Point, again: dict[str, float]) -> bool:
    """Whether a network is what the search said, and computes what its integers do."""
    said = {**point.wanted, "different": 0}
    return all(math.isclose(value, said[name], rel_tol=1e-6) for name, value in again.items())


def aligned(rows: list[list[str]], headers: list[str]) -> str:
    """A table with its numbers at the right."""
    columns = ["left", *["right"] * (len(headers) - 2), "left"]
    return tabulate(rows, headers, "simple", disable_numparse=True, colalign=columns)


def with_interval(measured: dict[str, Any]) -> str:
    """An accuracy with the interval that is 95 % sure."""
    return f"{measured['accuracy']:.4f} ±{(measured['high'] - measured['low']) / 2:.4f}"


def rows_equal(rows: int, is_equal: bool) -> str:
    """On how many rows a network was seen to compute what its integers do."""
    return f"{rows:,} rows" if is_equal else "no"


def exported(point: Point) -> str:
    """In which forms a network was exported, and what they were checked with."""
    found = [read(path) for path in sorted(point.file.parent.glob("export_*/manifest.json"))]
    return "\n".join(
        f"{STAR} {each['form']}: equal to its integers on {each['verified']['rows']:,} rows "
        f"({each['checked_with']})"
        for each in found
    )


def chosen(points: Sequence[Point], accuracy: float) -> Point:
    """The cheapest network that loses little; if all lose more, the most accurate one."""
    good = [each for each in points if each.wanted["accuracy"] >= accuracy - MAY_LOSE]
    if not good:
        return max(points, key=lambda each: each.wanted["accuracy"])
    return min(good, key=lambda each: each.wanted["ebops"])


def some_of(points: Sequence[Point], wanted: Point) -> list[Point]:
    """A few points from one end of a front to the other, and the one that is wanted."""
    last, most = len(points) - 1, min(SHOWN, len(points))
    places = {round(place * last / max(most - 1, 1)) for place in range(most)}
    return [each for place, each in enumerate(points) if place in places or each == wanted]


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

    def act(self, action: str, *arguments: object) -> None:
        """Run one action in this project."""
        ch(action, *arguments, "--project", self.project)

    def run(self) -> None:
        """All steps, and a table of what came of them."""
        start = time.monotonic()
        self.prepare()
        fronts = {name: self.search(name, SEARCHES[name]) for name in SEARCHES}
        with new_processes() as processes:
            for name, points in fronts.items():
                heading(f"Verify the {name} front: {len(points)} networks, made in new processes")
                verify(points, processes)
        best = chosen(fronts["learned"], self.float_network["chosen_by"]["accuracy"])
        self.export(best)
        heading("Draw both fronts on one picture, and write the page")
        ch("compare", self.folder)
        ch("report", self.folder)
        print(f"\n{self.table(fronts, best)}\n{exported(best)}\n{HOW_TO_READ_IT}")
        spent = f"{time.monotonic() - start:.0f} s ({cpu_seconds():.0f} s of CPU)"
        page = (self.folder / "report.html").resolve()
        print(f"\nDone in {spent}. Open {BOLD}{page}{PLAIN}")

    def prepare(self) -> None:
        """Train and test the float network, and the same at 8 bits."""
        heading("Train a network of four layers on jsc-sim, and test it")
        self.act("train", *NETWORK, *TRAINING)
        self.act("test", "--load", self.folder, "--quiet")
        heading("Quantise it to 8 bits, and test that, in integers as well")
        self.act("quantize", "--load", self.folder, "--width", 8, "--quiet")
        self.act("test", "--load", self.eight_bits, "--exact", "--quiet")

    @property
    def eight_bits(self) -> Path:
        return self.software / "transform/transformed_ckpt"

    def search(self, name: str, config: str) -> list[Point]:
        """Search from the trained network; the front, which the search has verified itself."""
        heading(WORDS[name])
        self.act("search", "--config", config, "--load", self.folder)
        return list(front(self.place(name), self.folder / "verify"))

    def place(self, name: str) -> Path:
        """Where the results of a search are."""
        number = list(SEARCHES).index(name)
        return self.software / ("search_ckpts" + (f"-v{number}" if number else ""))

    @property
    def float_network(self) -> dict[str, Any]:
        """The accuracies of the network that both searches started from."""
        start: dict[str, Any] = read(self.place("TPE") / "search.json")["start"]
        return start

    def export(self, point: Point) -> None:
        """Write a network in each form that can be checked here."""
        heading(f"Export {point.file.name} of the learned front, checked bit for bit")
        for form, programs in CHECKERS.items():
            if any(map(shutil.which, programs)):
                ch("export", "--load", point.file, "--to", form, "--verify")
            else:
                print(f"There is no {' or '.join(programs)} here, so nothing is exported to {form};"
                      " ch doctor says how to get it.", flush=True)  # fmt: skip

    def table(self, fronts: dict[str, list[Point]], best: Point) -> str:
        """The float network, 8 bits everywhere, and some of both fronts."""
        accuracies = (with_interval(self.float_network[rows]) for rows in ("chosen_by", "test"))
        rows = [["float", "", *accuracies, ""], self._eight_bits()]
        rows += [
            [f"{name} {point.file.stem}{f' {STAR}' if point == best else ''}", *point.cells()]
            for name, points in fronts.items()
            for point in some_of(points, best)
        ]
        headers = ["network", "EBOPs", "validation", "test", "equal in integers"]
        return aligned(rows, headers)

    def _eight_bits(self) -> list[str]:
        """The row of the network at 8 bits."""
        validated = read(self.software / "run_quantize.json")["accuracies"]["after"]
        tested = read(self.software / "checkpoints/test_results-v1.json")
        low, high = tested["accuracy_95_percent_interval"]
        test = with_interval({"accuracy": tested["test_acc_epoch"], "low": low, "high": high})
        cost, integers = ebops_of(self.eight_bits), tested["integers"]
        equal = rows_equal(integers["rows"], integers["different"] == 0)
        return ["8 bits", f"{cost:,}", with_interval(validated), test, equal]


def cpu_seconds() -> float:
    """What this process and those that it has started have used."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="also copy the picture of both fronts there")
    given = parser.parse_args()
    demo = Demo(free_project())
    demo.run()
    if given.picture is not None:
        shutil.copyfile(demo.folder / "fronts.png", given.picture)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; what was finished is kept in mase_output") from None
