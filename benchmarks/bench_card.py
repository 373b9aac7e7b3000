"""The card: networks on real data, from their recipe to numbers on test rows.

For each recipe and seed: trained by `ch train`, tested by `ch test`, quantised by `ch quantize` at
8 bits and with weights of 4 bits, searched for widths of each layer (`--trials`), and exported to C
and to a folded circuit, whose codes are compared with those of the engine. onnxruntime and torchao
quantise the same network where they are installed. Nothing is chosen on test rows. Projects stay in
`--runs`, so what was trained there before is not trained again.

Run: python benchmarks/bench_card.py [--quick] [--only NAME …] [--seeds 1 2] [--runs DIR] [--save]
Data: CHOP_CIFAR10 and CHOP_FASHION_MNIST name their folders (docs/datasets.md); with CHOP_JSC, the
real JSC file, `--only jsc` makes the row of real jets.
"""

import argparse
import contextlib
import io
import json
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parent))
from bench_few_bits import by_onnxruntime, by_torchao

import chop
from chop.cli import main as run_command
from chop.dataset import MaseDataModule
from chop.figures import number, wilson_interval
from chop.loading.networks import load_model
from chop.models import get_model
from chop.passes.graph.analysis.flops.ebops import ebops
from chop.passes.graph.interface import load_mase_graph
from chop.training.metrics import Tally, evaluate_model

HERE = Path(__file__).parent
RECIPES = HERE.parent / "configs" / "recipes"
RESULTS = HERE / "results" / "card.jsonl"
FORMS = {"8 bits": ("--width", "8"), "4-bit weights": ("--width", "8", "--weight-width", "4")}
RIVALS = {"onnxruntime, static, 8 bits": by_onnxruntime, "torchao PT2E, 8 bits": by_torchao}
JETS = ("jsc-mlp", "--max-epochs", "20", "--batch-size", "1024", "--learning-rate", "1e-2")
QUICK = ("jsc-tiny", "jsc-sim", "--max-epochs", "1", "--batch-size", "1024")
"""What `--quick` trains: simulated jets, which come with the package."""
COUNTED, TOLERATED = 1_024, 0.01
"""Training rows to count EBOPs and to calibrate rivals on; what a searched point may lose on
validation rows."""


@dataclass(frozen=True)
class Entry:
    """A network on a data set.

    Attributes:
        training: the words of `ch train`.
        published: a score to compare with, and whose it is.
        cycles: clock cycles that the circuit may take for a picture; None makes none.
    """

    name: str
    training: tuple[str, ...]
    published: str = ""
    cycles: int | None = None

    @classmethod
    def of_recipe(cls, name: str, file: str, **more: Any) -> "Entry":
        """Return an entry that a file of configs/recipes trains."""
        return cls(name, ("--config", str(RECIPES / f"{file}.toml")), **more)

    @property
    def network(self) -> tuple[str, str]:
        """The names of the model and of the data set."""
        model, data = self.name.split(" on ")
        return model, data

    @property
    def has_classes(self) -> bool:
        return not self.name.startswith("autoencoder")


CARD = (
    Entry.of_recipe("cnn-small on fashion-mnist", "cnn_small_fashion", cycles=20_000),
    Entry.of_recipe("lenet5 on fashion-mnist", "lenet5_fashion", cycles=20_000),
    Entry.of_recipe("ds-cnn on fashion-mnist", "ds_cnn_fashion"),
    Entry.of_recipe("autoencoder-ad on fashion-mnist", "autoencoder_ad_fashion"),
    Entry.of_recipe(
        "resnet8 on cifar10", "resnet8_cifar10", published="0.85 is asked by MLPerf Tiny",
        cycles=100_000,
    ),
    Entry.of_recipe("mobilenet-v1-025 on cifar10", "mobilenet_v1_025_cifar10"),
    Entry.of_recipe("cnv on cifar10", "cnv_cifar10"),
    Entry("jsc-mlp on jsc-sim", (JETS[0], "jsc-sim", *JETS[1:]), "simulated"),
    Entry("jsc-mlp on jsc", (JETS[0], "jsc", *JETS[1:])),
)  # fmt: skip


@dataclass
class Point:
    """One network in one form, on all test rows."""

    network: str
    seed: int
    form: str
    rows: int
    right: int | None = None
    """None of an autoencoder, whose score is an AUC."""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    whole: bool | None = None
    """Whether nothing is left in floating point."""
    equal_rows: int | None = None
    """Rows on which the exported C gave the engine's codes."""
    weight_bits: float | None = None
    ebops: int | None = None
    scratch_bytes: int | None = None
    flash_bytes: int | None = None
    ram_bytes: int | None = None
    instructions: int | None = None
    luts: int | None = None
    cycles: int | None = None
    circuit_rows: int | None = None
    """Rows on which the simulated circuit gave the engine's codes."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.right is not None:
            self.score = self.right / self.rows
            self.low, self.high = wilson_interval(self.right, self.rows)

    @property
    def value(self) -> float:
        """The accuracy, or the AUC."""
        assert self.score is not None
        return self.score


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


def tested(entry: Entry, seed: int, form: str, load: object) -> Point:
    """Return what `ch test` finds on the test rows."""
    file = found_in(ch("test", "--load", load), r"Test results are in (\S+)")
    found: dict[str, Any] = json.loads(Path(file).read_text())
    if "right" in found:
        return Point(entry.name, seed, form, found["rows"], found["right"])
    low, high = found["auc_95_percent_interval"]
    rows = found["rows"] + found["odd_rows"]
    return Point(entry.name, seed, form, rows, None, found["test_auc_epoch"], low, high)


@dataclass
class Case:
    """A trained network of the card."""

    entry: Entry
    seed: int
    folder: Path
    check_rows: int

    def data(self) -> MaseDataModule:
        """Return the rows that it was trained on."""
        data = MaseDataModule(self.entry.network[1], batch_size=128, seed=self.seed)
        data.prepare_data()
        data.setup()
        return data

    def points(self, trials: int) -> Iterator[Point]:
        """Yield the network in all forms."""
        begun = time.monotonic()
        yield _timed(tested(self.entry, self.seed, "float", self.folder), begun)
        for form, words in FORMS.items():
            begun = time.monotonic()
            said = ch("quantize", "--load", self.folder, *words)
            graph = found_in(said, r"Quantised model: (\S+)")
            point = tested(self.entry, self.seed, form, graph)
            point.whole = "Whole in integers" in said
            point.weight_bits = float(found_in(said, r"→ ([\d.]+) bits a weight"))
            if self.entry.has_classes:
                point.ebops = ebops(load_mase_graph(graph), self.sample()).total
            if point.whole:
                self.export(point, graph)
            yield _timed(point, begun)
        if self.entry.has_classes:
            yield from self.searched(trials)
            yield from self.rivals()

    def sample(self) -> list[torch.Tensor]:
        """Return the training rows that costs are counted on."""
        rows = self.data().train_dataloader().features
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:COUNTED]
        return list(rows[chosen].split(128))

    def export(self, point: Point, graph: str) -> None:
        """Write C and a circuit, and keep what they need."""
        said = ch("export", "--load", graph, "--to", "c", "--rows", self.check_rows)
        point.equal_rows = _count(found_in(said, r"equal to the engine on ([\d,]+) rows"))
        facts = _manifest(said)["c"]
        point.scratch_bytes, needs = facts["scratch_bytes"], facts["estimate"]
        point.flash_bytes, point.ram_bytes = needs["flash_bytes"], needs["ram_bytes"]
        point.instructions = needs["instructions"]
        if self.entry.cycles is not None:
            words = ("--to", "verilog", "--folded", "--cycles", self.entry.cycles, "--rows", 2)
            said = ch("export", "--load", graph, *words)
            circuit = _manifest(said)["circuit"]
            point.luts, point.cycles = circuit["estimated_luts"], circuit["cycles_per_image"]
            point.circuit_rows = _count(found_in(said, r"equal to the engine on ([\d,]+) rows"))

    def float_network(self, data: MaseDataModule) -> torch.nn.Module:
        """Return the network as it was trained."""
        name = self.entry.network[0]
        return load_model(self.folder, "pl", get_model(name, dataset_info=data.dataset_info)).eval()

    def searched(self, trials: int) -> Iterator[Point]:
        """Yield the cheapest point of a search that loses little on the validation rows."""
        if not trials:
            return
        begun, data = time.monotonic(), self.data()
        with contextlib.redirect_stdout(io.StringIO()):
            front = chop.search(
                self.float_network(data), train=data.train_dataloader(), val=data.val_dataloader(),
                strategy="tpe", n_trials=trials, widths=(2, 3, 4, 5, 6, 8), seed=self.seed,
                project=self.folder / "mixed",
            )  # fmt: skip
        best = max(point.metrics["accuracy"] for point in front)
        good = [p for p in front if p.metrics["accuracy"] >= best - TOLERATED]
        chosen = min(good, key=lambda point: point.metrics["ebops"])
        result = evaluate_model(chosen.model, data.test_dataloader())
        form = f"mixed, best of {trials} trials"
        rows = result.rows
        point = Point(self.entry.name, self.seed, form, rows, round(result.value * rows))
        point.whole, point.ebops = chosen.is_verified, int(chosen.metrics["ebops"])
        yield _timed(point, begun)

    def rivals(self) -> Iterator[Point]:
        """Yield the network as others quantise it, calibrated on the rows that we count on."""
        data = self.data()
        model, rows = self.float_network(data), torch.cat(self.sample())
        for name, quantise in RIVALS.items():
            begun, counted = time.monotonic(), Tally()
            try:
                run = quantise(model, rows)
            except ImportError as error:
                print(f"{name}: not run, as {error}", flush=True)
                continue
            for features, labels in data.test_dataloader():
                counted.add(torch.as_tensor(run(features)), labels)
            found = counted.result()
            point = Point(self.entry.name, self.seed, name, found.rows, found.right)
            yield _timed(point, begun)


def _timed(point: Point, begun: float) -> Point:
    return replace(point, seconds=round(time.monotonic() - begun, 1))


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _manifest(said: str) -> dict[str, Any]:
    file = Path(found_in(said, r"Exported: ([^\s,]+)")) / "manifest.json"
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def points_of(entry: Entry, seed: int, runs: Path, trials: int, rows: int) -> Iterator[Point]:
    """Train a network if that has not been done, and yield it in all forms."""
    project = f"{entry.name.replace(' ', '-')}-{seed}"
    folder = runs / project
    if not (folder / "software" / "training_ckpts" / "best.ckpt").is_file():
        ch("train", *entry.training, "--seed", seed, "--project", project, "--project-dir", runs)
    return Case(entry, seed, folder, rows).points(trials)


def table_of(points: Sequence[Point]) -> str:
    """Return the table, with 95 % intervals over the test rows."""
    published = {entry.name: entry.published for entry in CARD}
    lines, last = [], {}
    for each in points:
        is_float = each.form == "float"
        if is_float:
            last[each.network, each.seed] = each.value
        usual = last.get((each.network, each.seed))
        lost = "" if is_float or usual is None else f"{100 * (usual - each.value):+.2f}"
        costs = (each.ebops, each.flash_bytes, each.ram_bytes, each.instructions, each.luts,
                 each.cycles, each.circuit_rows)  # fmt: skip
        lines.append([
            each.network, each.seed, each.form, f"{each.value:.4f}",
            f"{each.low:.4f} to {each.high:.4f}", lost,
            {None: "", True: "yes", False: "no"}[each.whole], each.equal_rows, each.weight_bits,
            *("" if cost is None else number(cost, 12) for cost in costs),
            published.get(each.network, "") if is_float else "",
        ])  # fmt: skip
    headers = ["network", "seed", "form", "score", "95 %", "points lost", "whole", "C equal, rows",
               "bits a weight", "EBOPs", "flash, bytes", "RAM, bytes", "instructions",
               "LUTs", "cycles", "circuit equal, rows", "published"]  # fmt: skip
    return tabulate(lines, headers, "github", disable_numparse=True)


def draw(points: Sequence[Point], file: Path) -> None:
    """Write a picture: the score of each form of each network, with its interval."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(point.network for point in points))
    rows = [[point for point in points if point.network == name] for name in names]
    sizes = [max(len(each), 2) for each in rows]
    figure, axes = pyplot.subplots(
        len(rows), figsize=(7, 0.4 * sum(sizes) + len(rows)), layout="constrained", squeeze=False,
        gridspec_kw={"height_ratios": sizes},
    )  # fmt: skip
    for axis, name, found in zip(axes[:, 0], names, rows, strict=True):
        for place, point in enumerate(reversed(found)):
            low, high = point.value - (point.low or 0), (point.high or 1) - point.value
            axis.errorbar(point.value, place, xerr=[[low], [high]], fmt="o", capsize=3, color="C0")
        axis.set_yticks(range(len(found)), [f"{p.form}, seed {p.seed}" for p in reversed(found)])
        axis.set_ylim(-0.5, len(found) - 0.5)
        axis.set_title(f"{name}: {'AUC' if found[0].right is None else 'accuracy'}", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(file, dpi=100)


def stored_points(names: Sequence[str] | None) -> list[Point]:
    """Return what was saved; of each form the newest."""
    found: dict[tuple[str, int, str], Point] = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        facts = {k: v for k, v in json.loads(line).items() if k in Point.__dataclass_fields__}
        point = Point(**facts)
        if not names or any(name in point.network for name in names):
            found[point.network, point.seed, point.form] = point
    return list(found.values())


def main() -> None:
    """Make the card and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network on simulated jets")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="parts of names of the card")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--trials", type=int, default=24, help="of the search; 0 for none")
    parser.add_argument("--rows", type=int, default=2_000, help="to compare the exported C on")
    parser.add_argument("--runs", type=Path, default=Path("card_runs"), help="folder of projects")
    parser.add_argument("--picture", type=Path, help="with --read: draw the scores, too")
    parser.add_argument("--read", action="store_true", help="the table of what is saved")
    parser.add_argument("--save", action="store_true", help="add the points to results/card.jsonl")
    options = parser.parse_args()
    if options.read:
        points = stored_points(options.only)
        print(table_of(points))
        if options.picture is not None:
            draw(points, options.picture)
        return
    entries = [Entry("jsc-tiny on jsc-sim", QUICK)] if options.quick else CARD
    chosen = [e for e in entries if not options.only or any(o in e.name for o in options.only)]
    trials = 2 if options.quick else options.trials
    points = []
    for entry in chosen:
        for seed in options.seeds:
            for point in points_of(entry, seed, options.runs.absolute(), trials, options.rows):
                points.append(point)
                print(json.dumps(asdict(point)), flush=True)
                if options.save:
                    about = {"torch": torch.__version__, "machine": platform.machine()}
                    with RESULTS.open("a") as stream:
                        stream.write(json.dumps(asdict(point) | about) + "\n")
    print(table_of(points))


if __name__ == "__main__":
    main()
