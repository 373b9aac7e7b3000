"""Learned widths on jsc-sim: fronts of accuracy against EBOPs, and what they cost to train.

The networks are handed over as plain numbers (`Net`); an evaluator, which shares no code with
chop, counts their EBOPs and runs them. Points are chosen on validation rows, accuracies are
those of test rows. Times are CPU seconds of one thread and come as ratios to a float training of
the same network in the same run.

    python benchmarks/bench_learned.py                    three seeds of two presets, twenty minutes
    python benchmarks/bench_learned.py --quick            one seed, a short schedule
    python benchmarks/bench_learned.py --steps            the time of a step only, in half a minute

`bench_rivals.py` hands the networks of other tools to the same evaluator.
"""

import argparse
import contextlib
import json
import math
import operator
import os
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tabulate import tabulate
from torch import Tensor, nn

from chop import MaseGraph
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.nn.chain import held_chain
from chop.nn.learned import LearnedWidths
from chop.nn.quantized import QuantizedModule
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    freeze_transform_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.interface import load_mase_graph
from chop.search.learned.polish import HeldWeights
from chop.training.loop import Loop
from chop.training.optimisers import make_adam
from chop.training.parts import WidthTraining
from chop.verbs.search.job import search

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "examples" / "jsc_mlp_learned.toml"
RESULTS = Path(__file__).parent / "results" / "learned.jsonl"
BATCH, FLOAT_EPOCHS, FLOAT_RATE = 1024, 30, 5e-3
BUDGETS = np.geomspace(300, 10_000, 25)
WANTED = {"0.72": 550, "0.725": 800, "0.73": 1_500, "mean": 0.727}
CHUNK = 8_192
QUICK = {
    "cycles": 4, "first_epochs": 2, "epochs": 2, "snapshots": 2, "float_epochs": 4, "plots": False,
    "teacher": {"epochs": 3}, "polish": {"points": 1, "rounds": 1, "epochs": 1, "rows": 256},
}  # fmt: skip
PRESETS = ("normal", "thorough")
ROUNDS, STEPS, TIMED_EPOCHS = 40, 48, 6
"""Rounds that compare a step, the steps of each, and the epochs of which 30 are told."""
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


# --- what a tool hands over, and the evaluator ------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A linear layer on inputs rounded half up to `frac` bits after the point, then saturated."""

    weight: Floats
    bias: Floats
    frac: Whole
    low: Whole
    """The smallest code of each input channel."""
    high: Whole


@dataclass(frozen=True)
class Net:
    """Linear layers with a ReLU between two of them."""

    layers: list[Layer]
    name: str = ""

    def codes(self, rows: Floats) -> tuple[Floats, list[Whole]]:
        """The scores, and the codes that go into each layer; float64 holds both exactly."""
        values, seen = rows, []
        for place, layer in enumerate(self.layers):
            codes = np.floor(np.ldexp(values, layer.frac) + 0.5)
            codes = np.clip(codes, layer.low, layer.high)
            seen.append(codes.astype(np.int64))
            values = np.ldexp(codes, -layer.frac) @ layer.weight.T + layer.bias
            if place + 1 < len(self.layers):
                values = np.maximum(values, 0.0)
        return values, seen

    def accuracy(self, rows: Floats, labels: Whole) -> float:
        """The share of rows whose largest score is that of their class."""
        parts = range(0, len(rows), CHUNK)
        right = [
            self.codes(rows[k : k + CHUNK])[0].argmax(1) == labels[k : k + CHUNK] for k in parts
        ]
        return float(np.concatenate(right).mean())


def length(numbers: Whole) -> Whole:
    """The bits of whole numbers from 0 up to 2**53."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64) * (numbers > 0)


def zeros_behind(numbers: Whole) -> Whole:
    """How many zero bits whole numbers end in; 0 for 0."""
    return np.maximum(length(numbers & -numbers) - 1, 0)


def enclosed(weights: Floats) -> Whole:
    """The bits from the first to the last that is set in each magnitude."""
    digits = np.ldexp(np.frexp(np.abs(weights))[0], 53).astype(np.int64)
    return length(digits) - zeros_behind(digits)


def ebops(net: Net, rows: Floats) -> int:
    """Bits of weights times bits of input magnitudes, of all products that reach an output."""
    largest = [np.zeros(layer.weight.shape[1], np.int64) for layer in net.layers]
    together = [each.copy() for each in largest]
    for start in range(0, len(rows), CHUNK):
        for place, codes in enumerate(net.codes(rows[start : start + CHUNK])[1]):
            sizes = np.abs(codes)
            largest[place] = np.maximum(largest[place], sizes.max(0))
            together[place] |= np.bitwise_or.reduce(sizes, 0)
    total, read = 0, np.ones(len(net.layers[-1].weight), bool)
    for layer, top, bits in reversed(list(zip(net.layers, largest, together, strict=True))):
        inputs = length(top >> zeros_behind(bits))
        total += int((enclosed(layer.weight)[read] * inputs).sum())
        read = (layer.weight[read] != 0).any(0)
    return total


@dataclass(frozen=True)
class Point:
    """A network as the evaluator sees it."""

    name: str
    ebops: int
    validation: float
    test: float


@dataclass(frozen=True)
class Jets:
    """The rows of jsc-sim as arrays."""

    train: tuple[Floats, Whole]
    validation: tuple[Floats, Whole]
    test: tuple[Floats, Whole]

    @classmethod
    def read(cls) -> "Jets":
        data = MaseDataModule("jsc-sim", batch_size=BATCH)
        parts = [data.train_dataloader(), data.val_dataloader(), data.test_dataloader()]
        return cls(*((p.features.double().numpy(), p.labels.numpy()) for p in parts))

    @property
    def seen(self) -> Floats:
        """What EBOPs are counted on: training and validation rows."""
        return np.concatenate([self.train[0], self.validation[0]])


def front(points: list[Point]) -> list[Point]:
    """Those that no cheaper one beats on validation rows."""
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (each.ebops, -each.validation)):
        if not found or point.validation > found[-1].validation:
            found.append(point)
    return found


def figures(points: list[Point]) -> dict[str, float]:
    """What the front comes to; infinite where it does not get there."""
    chosen = front(points)

    def cheapest(level: float) -> float:
        return min((p.ebops for p in chosen if p.test >= level), default=math.inf)

    def within(budget: float) -> float:
        return next((p.test for p in reversed(chosen) if p.ebops <= budget), 0.0)

    levels = {f"{level:g}": cheapest(level) for level in (0.72, 0.725, 0.73)}
    mean = statistics.mean(within(budget) for budget in BUDGETS)
    return {**levels, "mean": mean, "points": len(chosen)}


# --- chop -------------------------------------------------------------------------------------


def jsc_mlp(seed: int, data: MaseDataModule) -> nn.Module:
    torch.manual_seed(seed)
    return get_model("jsc-mlp", dataset_info=data.dataset_info)


def chop_front(
    seed: int, folder: Path, preset: str, quick: bool
) -> tuple[list[Net], dict[str, float]]:
    """The saved graphs of the front that the shipped configuration finds, and what it took."""
    tables = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["search"]
    setup = tables["strategy"]["setup"]
    setup["preset"] = preset
    if quick:
        setup |= QUICK | {"teacher": setup["teacher"] | QUICK["teacher"]}
    data = MaseDataModule("jsc-sim", batch_size=BATCH, seed=seed)
    data.setup()
    references = [float_seconds(data, seed)]
    begin = time.process_time()
    search(jsc_mlp(seed, data), get_model_info("jsc-mlp"), data, tables, save_dir=folder, seed=seed)
    took = time.process_time() - begin
    references.append(float_seconds(data, seed))
    nets = [net_of(path) for path in sorted((folder / "graphs").iterdir())]
    check_exact(nets, folder, data)
    reference = statistics.mean(references)
    return nets, {"seconds": took, "float": reference, "x": took / reference}


def net_of(folder: Path) -> Net:
    """A saved graph as plain numbers."""
    model = load_mase_graph(folder).model.eval()
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedModule)]
    return Net([_layer(layer) for layer in layers], folder.name)


def _layer(layer: Any) -> Layer:
    inputs = layer.weight.shape[1]
    points, low, high = layer.x_quantizer.limits
    frac, least, most = (
        np.broadcast_to(each, inputs).astype(np.int64) for each in (points, low, high)
    )
    rounded = [each.detach().double().numpy() for each in
               (layer.get_quantized_weight(), layer.get_quantized_bias())]  # fmt: skip
    return Layer(*rounded, frac, least, most)


def check_exact(nets: list[Net], folder: Path, data: MaseDataModule) -> None:
    """The evaluator's scores must be those of the saved graphs, bit for bit, on all test rows."""
    rows = data.test_dataloader().features
    for net in nets:
        model = load_mase_graph(folder / "graphs" / net.name).model.eval()
        with torch.inference_mode():
            scores = model(rows.clone()).double().numpy()
        if not np.array_equal(scores, net.codes(rows.double().numpy())[0]):
            raise SystemExit(f"{net.name}: the evaluator and the saved graph differ")


def float_seconds(data: MaseDataModule, seed: int) -> float:
    """CPU seconds of 30 epochs of plain training of the network, from a few of them."""
    epochs, model = TIMED_EPOCHS, jsc_mlp(seed, data)
    loader = data.train_dataloader()
    features, labels = loader.features, loader.labels
    optimiser = torch.optim.Adam(model.parameters(), lr=FLOAT_RATE, fused=True)
    steps = len(features) // BATCH
    begin = time.process_time()
    for epoch in range(epochs):
        order = torch.randperm(len(features))
        for step in range(steps):
            done = (epoch + step / steps) / epochs
            optimiser.param_groups[0]["lr"] = FLOAT_RATE * (1 + math.cos(math.pi * done)) / 2
            chosen = order[step * BATCH : (step + 1) * BATCH]
            loss = F.cross_entropy(model(features[chosen]), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return (time.process_time() - begin) * FLOAT_EPOCHS / epochs


@dataclass(frozen=True)
class OneBatch:
    """Rows of which every step of an epoch has the same."""

    features: Tensor
    labels: Tensor
    steps: int = STEPS

    def batches(self, epoch: int, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([(self.features, self.labels)] * STEPS)


def stepper(data: MaseDataModule, kind: str) -> Callable[[], None]:
    """What takes a training step of jsc-mlp: "float", "learned" or "held", within fixed bits."""
    graph = MaseGraph(jsc_mlp(0, data))
    loader = data.train_dataloader()
    rows, labels = loader.features[:BATCH], loader.labels[:BATCH]
    if kind != "float":
        graph, _ = init_metadata_analysis_pass(graph)
        graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": rows[:2]}})
        rule = {"config": {"name": "integer_trained"}}
        graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": rule})
    if kind == "held":
        widths = LearnedWidths(graph.model)
        widths.calibrate([rows])
        widths.remove()
        freeze_transform_pass(graph)
    model = graph.model.train()
    parts = {
        "float": list,
        "learned": lambda: [WidthTraining(model, 8, 2.0, lambda epoch: 1e-6)],
        "held": lambda: [HeldWeights(graph)],
    }[kind]()
    loop = Loop(model, make_adam([(model.parameters(), 1e-4)]), OneBatch(rows, labels),
                F.cross_entropy, parts)  # fmt: skip

    def take() -> None:
        with held_chain(model) if kind == "held" else contextlib.nullcontext():
            loop.train_epoch()

    return take


def step_ratios(data: MaseDataModule) -> dict[str, list[float]]:
    """Quartiles of a step that learns widths, and of one within fixed bits, over a float one."""
    steps = {kind: stepper(data, kind) for kind in ("float", "learned", "held")}
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(ROUNDS):
        for kind, take in steps.items():
            begin = time.process_time()
            take()
            times[kind].append(time.process_time() - begin)
    plain = times.pop("float")
    return {
        kind: statistics.quantiles(map(operator.truediv, each, plain), n=4)
        for kind, each in times.items()
    }


# --- the table --------------------------------------------------------------------------------


def run(seed: int, jets: Jets, preset: str, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        nets, facts = chop_front(seed, Path(folder) / "run", preset, quick)
    seen = jets.seen
    points = [
        Point(net.name, ebops(net, seen), net.accuracy(*jets.validation), net.accuracy(*jets.test))
        for net in nets
    ]
    shown = [vars(point) for point in front(points)]
    return {"tool": f"chop {preset}", "seed": seed, **figures(points), **facts, "front": shown}


def table(rows: list[dict[str, Any]]) -> str:
    """Each seed, then median, least and most of each tool, and what is wanted."""
    names = ["0.72", "0.725", "0.73", "mean", "points", "seconds", "x"]
    lines = [[row["tool"], row["seed"], *(_shown(row.get(name)) for name in names)] for row in rows]
    for tool in dict.fromkeys(row["tool"] for row in rows):
        columns = [[row[n] for row in rows if row["tool"] == tool and n in row] for n in names]
        for word, pick in (("median", statistics.median), ("least", min), ("most", max)):
            lines.append([tool, word, *(_shown(pick(each) if each else None) for each in columns)])
    lines.append(["wanted", "", *(_shown(WANTED.get(name)) for name in names)])
    return tabulate(lines, ["tool", "seed", *names], disable_numparse=True, stralign="right")


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if 0 < value < 1 else f"{value:,.1f}".removesuffix(".0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--steps", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = MaseDataModule("jsc-sim", batch_size=BATCH)
    data.setup()
    ratios = step_ratios(data)
    for kind, (low, middle, high) in ratios.items():
        print(f"{kind} step / float step: median {middle:.2f}, quartiles {low:.2f} and {high:.2f}")
    if args.steps:
        return
    jets = Jets.read()
    seeds = args.seeds[:1] if args.quick else args.seeds
    presets = args.presets[:1] if args.quick else args.presets
    rows = [run(seed, jets, preset, args.quick) for preset in presets for seed in seeds]
    print(table(rows))
    load = os.getloadavg()[0]
    print(f"load average {load:.1f} at the end, torch {torch.__version__}")
    if args.save:
        with RESULTS.open("a", encoding="utf-8") as stream:
            facts = {"load": load, "quick": args.quick, "step": ratios, "runs": rows}
            stream.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
