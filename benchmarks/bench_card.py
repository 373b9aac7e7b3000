"""The card: networks on real data, from their recipe to numbers on test rows.

For each recipe and seed: trained by `ch train`, tested by `ch test`, quantised by `ch quantize` at
8 bits and with weights of 4 bits, tested again on the same test rows, and exported to C, whose
codes are compared with those of the engine. Nothing is chosen on test rows. Projects stay in
`--runs`, so what was trained there before is not trained again.

Run: python benchmarks/bench_card.py [--quick] [--only NAME …] [--seeds 1 2] [--runs DIR] [--save]
Data: CHOP_CIFAR10 and CHOP_FASHION_MNIST name their folders (docs/datasets.md).
"""

import argparse
import contextlib
import io
import json
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from chop.cli import main as run_command
from chop.figures import wilson_interval

HERE = Path(__file__).parent
RECIPES = HERE.parent / "configs" / "recipes"
FORMS = {"8 bits": ("--width", "8"), "4-bit weights": ("--width", "8", "--weight-width", "4")}
QUICK = ("jsc-tiny", "jsc-sim", "--max-epochs", "1", "--batch-size", "1024")
"""What `--quick` trains: simulated jets, which come with the package."""


@dataclass(frozen=True)
class Entry:
    """A network on a data set.

    Attributes:
        training: the words of `ch train`.
        published: an accuracy to compare with, and whose it is.
    """

    name: str
    training: tuple[str, ...]
    published: str = ""


CARD = (
    Entry("cnn-small on fashion-mnist", ("--config", str(RECIPES / "cnn_small_fashion.toml"))),
    Entry("lenet5 on fashion-mnist", ("--config", str(RECIPES / "lenet5_fashion.toml"))),
    Entry(
        "resnet8 on cifar10",
        ("--config", str(RECIPES / "resnet8_cifar10.toml")),
        "0.85 is asked by MLPerf Tiny",
    ),
)


@dataclass
class Point:
    """One network in one form, on all test rows."""

    network: str
    seed: int
    form: str
    rows: int
    right: int
    whole: bool | None = None
    """Whether nothing is left in floating point."""
    equal_rows: int | None = None
    """Rows on which the exported C gave the engine's codes."""
    weight_bits: float | None = None
    scratch_bytes: int | None = None
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.right / self.rows


def ch(*words: object) -> str:
    """Run a command as a user would; return what it prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_command([str(word) for word in words])
    if code != 0:
        raise SystemExit(f"ch {' '.join(map(str, words))}: exit code {code}\n{said.getvalue()}")
    return said.getvalue()


def found_in(said: str, pattern: str) -> str:
    """Return the group of a pattern in what a command printed."""
    match = re.search(pattern, said)
    if match is None:
        raise SystemExit(f"{pattern!r} is not in:\n{said}")
    return match[1]


def test_results(load: object) -> dict[str, Any]:
    """Return the result of `ch test` on the test rows."""
    file = found_in(ch("test", "--load", load), r"Test results are in (\S+)")
    result: dict[str, Any] = json.loads(Path(file).read_text())
    return result


def points_of(entry: Entry, seed: int, runs: Path) -> Iterator[Point]:
    """Train a network if that has not been done, and yield it in all forms."""
    project = f"{entry.name.replace(' ', '-')}-{seed}"
    folder, begun = runs / project, time.monotonic()
    if not (folder / "software" / "training_ckpts" / "best.ckpt").is_file():
        ch("train", *entry.training, "--seed", seed, "--project", project, "--project-dir", runs)
    result = test_results(folder)
    trained = Point(entry.name, seed, "float", result["rows"], result["right"])
    trained.seconds = time.monotonic() - begun
    yield trained
    for form, words in FORMS.items():
        begun = time.monotonic()
        said = ch("quantize", "--load", folder, *words)
        graph = found_in(said, r"Quantised model: (\S+)")
        result = test_results(graph)
        point = Point(entry.name, seed, form, result["rows"], result["right"])
        point.whole = "Whole in integers" in said
        point.weight_bits = float(found_in(said, r"→ ([\d.]+) bits a weight"))
        if point.whole:
            exported = ch("export", "--load", graph, "--to", "c")
            rows = found_in(exported, r"equal to the engine on ([\d,]+) rows")
            point.equal_rows = int(rows.replace(",", ""))
            manifest = Path(found_in(exported, r"Exported: ([^\s,]+)")) / "manifest.json"
            point.scratch_bytes = json.loads(manifest.read_text())["c"]["scratch_bytes"]
        point.seconds = time.monotonic() - begun
        yield point


def table_of(points: Sequence[Point]) -> str:
    """Return the table, with 95 % intervals over the test rows."""
    published = {entry.name: entry.published for entry in CARD}
    lines, last = [], {}
    for each in points:
        if each.form == "float":
            last[each.network, each.seed] = each.accuracy
        low, high = wilson_interval(each.right, each.rows)
        lost = 100 * (last[each.network, each.seed] - each.accuracy)
        lines.append([
            each.network, each.seed, each.form, f"{each.accuracy:.4f}", f"{low:.4f} to {high:.4f}",
            "" if each.form == "float" else f"{lost:+.2f}",
            {None: "", True: "yes", False: "no"}[each.whole], each.equal_rows, each.weight_bits,
            each.scratch_bytes, published.get(each.network, "") if each.form == "float" else "",
        ])  # fmt: skip
    headers = ["network", "seed", "form", "test accuracy", "95 %", "points lost", "whole",
               "C equal, rows", "bits a weight", "scratch of C", "published"]  # fmt: skip
    return tabulate(lines, headers, "github", disable_numparse=True)


def main() -> None:
    """Make the card and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network on simulated jets")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="parts of names of the card")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--runs", type=Path, default=Path("card_runs"), help="folder of projects")
    parser.add_argument("--save", action="store_true", help="add the points to results/card.jsonl")
    options = parser.parse_args()
    entries = [Entry("jsc-tiny on jsc-sim", QUICK)] if options.quick else CARD
    chosen = [e for e in entries if not options.only or any(o in e.name for o in options.only)]
    points = []
    for entry in chosen:
        for seed in options.seeds:
            for point in points_of(entry, seed, options.runs.absolute()):
                points.append(point)
                print(json.dumps(asdict(point)), flush=True)
                if options.save:
                    about = {"torch": torch.__version__, "machine": platform.machine()}
                    with (HERE / "results" / "card.jsonl").open("a") as stream:
                        stream.write(json.dumps(asdict(point) | about) + "\n")
    print(table_of(points))


if __name__ == "__main__":
    main()
