"""Learned widths of convolutional networks beside uniform training at 8, 6, 4 and 3 bits.

Both start from the same trained float network and train for equally many epochs on the same rows,
augmented as the recipe says: the strategy `learned` with the settings of a preset but for the
length, and each uniform width with Adam and a cosine. Points are chosen on validation rows and
reported on all test rows; EBOPs are counted on 8,192 training rows. Nothing was tuned for either.

    python benchmarks/bench_learned_cnn.py cnn-small --load card_runs/cnn-small-on-fashion-mnist-1
    python benchmarks/bench_learned_cnn.py resnet8 --load … --cycles 4 --epochs 2 --save
    python benchmarks/bench_learned_cnn.py --quick                a small network, seconds
    python benchmarks/bench_learned_cnn.py cnn-small --read       the table of what is stored
    python benchmarks/bench_learned_cnn.py resnet8 --steps        the time of a step only

`--save` adds a line to results/learned_cnn.jsonl for each point, as soon as it is known: `network`,
`seed`, `how` ("float", "learned" or "uniform 4"), `trained` (rows that were trained on after the
float network, `--rows`) and `epochs` of that, `ebops` (of the float network: null), accuracy on
`validation` and `test` rows, `rows` and `right` of the test, `cpu` (seconds of the training, for
`learned` of the whole search), `load` (average of the machine). A front of `learned` is the lines
with the same network, seed, trained rows and epochs.
"""

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import nn

import chop
from chop.dataset import MaseDataModule
from chop.dataset.data_module import TensorLoader
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_model
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.flops.ebops import ebops
from chop.passes.graph.interface import load_mase_graph
from chop.passes.graph.transforms.folding import fold_normalisation_transform_pass
from chop.training.batches import Epochs, SharedRows, lay_out
from chop.training.loop import Loop, StepRates
from chop.training.metrics import tally
from chop.training.optimisers import REMAINING, make_adam
from chop.training.parts import WidthTraining
from chop.verbs.search.job import search

RESULTS = Path(__file__).parent / "results" / "learned_cnn.jsonl"
NETWORKS = {
    "cnn-small": ("fashion-mnist", "flip,crop:2"),
    "resnet8": ("cifar10", "flip,crop:4"),
    "jsc-tiny": ("jsc-sim", None),
}
"""The data set of each, and how its pictures are changed in training."""
QUICK = "jsc-tiny"
WIDTHS = (4, 6, 3, 8)
STEPS, ROUNDS = 4, 5
"""Steps that are timed together, and how often."""
BATCH, RATE, COUNTED = 128, 1e-3, 8_192
"""Rows of a batch, the rate at which uniform widths are trained, rows to count EBOPs on."""


@dataclass(frozen=True)
class Point:
    """A network in one form."""

    network: str
    seed: int
    how: str
    trained: int
    epochs: int
    ebops: int | None
    validation: float
    test: float
    rows: int
    right: int
    cpu: float
    load: float


@dataclass
class Case:
    """A trained float network with its data."""

    name: str
    seed: int
    float_network: nn.Module
    data: MaseDataModule
    trained: int
    epochs: int = 0

    def point(self, how: str, model: nn.Module, graph: MaseGraph | None, cpu: float) -> Point:
        """Return a network with its figures."""
        found = [
            tally(model.eval(), loader, None).result()
            for loader in (self.data.val_dataloader(), self.data.test_dataloader())
        ]
        cost = None if graph is None else ebops(graph, self.counted()).total
        rows = len(self.data.test_dataloader().features)
        return Point(
            self.name, self.seed, how, self.trained, self.epochs, cost,
            found[0].value, found[1].value, rows,
            round(found[1].value * rows), round(cpu, 1), os.getloadavg()[0],
        )  # fmt: skip

    def counted(self) -> list[torch.Tensor]:
        """Return rows to count and to calibrate on."""
        draw = torch.Generator().manual_seed(0)
        features = self.data.train_dataloader().features
        chosen = torch.randperm(len(features), generator=draw)[:COUNTED]
        return list(features[chosen].split(512))

    def learned(self, setup: dict[str, Any]) -> Iterator[Point]:
        """Learn widths; yield the front."""
        tables: dict[str, Any] = {
            "search_space": {"name": "graph/quantize/learned_widths"},
            "strategy": {
                "name": "learned",
                "setup": {"float_epochs": 0, "plots": False, **setup},
                "sw_runner": {"basic_evaluation": {"data_loader": "val_dataloader"}},
                "hw_runner": {"ebops": {}},
                "metrics": {
                    "accuracy": {"direction": "maximize"},
                    "ebops": {"direction": "minimize"},
                },
            },
        }
        with tempfile.TemporaryDirectory() as place:
            begin = time.process_time()
            search(
                copy.deepcopy(self.float_network), get_model_info(self.name), self.data, tables,
                save_dir=Path(place) / "run", seed=self.seed, pretrained=True, verbose=False,
            )  # fmt: skip
            cpu = time.process_time() - begin
            for folder in sorted((Path(place) / "run" / "graphs").iterdir()):
                graph = load_mase_graph(folder)
                yield self.point("learned", graph.model, graph, cpu)

    def uniform(self, width: int) -> Point:
        """Quantise uniformly, train for as many epochs."""
        begin = time.process_time()
        found = chop.quantize(
            copy.deepcopy(self.float_network), width=width, calibrate=self.counted()[:4], methods=()
        )
        graph: MaseGraph = found.graph
        source = SharedRows(Epochs(self.data.train_dataloader()), 0, 1)
        rates = StepRates(
            lambda epoch, step, steps: REMAINING["cosine"]((epoch + step / steps) / self.epochs)
        )
        optimiser = make_adam([(graph.model.parameters(), RATE)])
        Loop(graph.model, optimiser, source, F.cross_entropy, [rates]).run(self.epochs)
        cpu = time.process_time() - begin
        return self.point(f"uniform {width}", graph.model, graph, cpu)


def read_case(name: str, load: Path | None, seed: int, rows: int | None = None) -> Case:
    """Return a network with the weights of a project, else after an epoch, and its training rows.

    Args:
        rows: that are trained on; all if nothing is said.
    """
    dataset, changes = NETWORKS[name]
    data = MaseDataModule(dataset, batch_size=BATCH, seed=seed, augment=changes)
    data.prepare_data()
    data.setup()
    if rows is not None:
        whole = data.train_dataloader()
        part = TensorLoader(whole.features[:rows], whole.labels[:rows], BATCH, True, seed)
        part.augmentation = whole.augmentation
        data.train_dataloader = lambda: part  # type: ignore[method-assign]
    torch.manual_seed(seed)
    model = get_model(name, dataset_info=data.dataset_info)
    if load is None:
        chop.train(model, data.train_dataloader(), max_epochs=1)
    else:
        model = load_model(load, "pl", model)
    return Case(name, seed, model.eval(), data, len(data.train_dataloader().features))


def points_of(
    case: Case, setup: dict[str, Any], widths: list[int], *, learned: bool
) -> Iterator[Point]:
    """Yield all points of a case, each as soon as it is known."""
    case.epochs = setup["cycles"] * setup["epochs"]
    if learned:
        yield case.point("float", case.float_network, None, 0.0)
        yield from case.learned(setup)
    for width in widths:
        yield case.uniform(width)


@dataclass(frozen=True)
class OneBatch:
    """Rows of which every step of an epoch has the same, in the order in memory that is best."""

    features: torch.Tensor
    labels: torch.Tensor
    steps: int = STEPS

    def batches(self, epoch: int, model: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return lay_out(iter([(self.features, self.labels)] * STEPS), model)


def stepper(name: str, data: MaseDataModule, granularity: str | None) -> Callable[[], None]:
    """Return what takes some steps, in float or with widths of this granularity that learn."""
    torch.manual_seed(0)
    graph = MaseGraph(get_model(name, dataset_info=data.dataset_info))
    x, y = next(iter(data.train_dataloader()))
    if granularity is not None:
        graph, _ = init_metadata_analysis_pass(graph)
        graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x[:2]}})
        graph.model.eval()
        graph, _ = fold_normalisation_transform_pass(graph)
        rule = {"config": {"name": "integer_trained", "weight_granularity": granularity}}
        rules = {"by": "type", "linear": rule, "conv2d": rule}
        graph, _ = quantize_transform_pass(graph, rules)
    model = graph.model.train()
    parts = [WidthTraining(model, 8, 2.0, lambda epoch: 1e-9)] if granularity else []
    optimiser = make_adam([(model.parameters(), 1e-4)])
    return Loop(model, optimiser, OneBatch(x, y), F.cross_entropy, parts).train_epoch


def print_steps(name: str, rounds: int) -> None:
    """Print a step that learns widths over a float one, its normalisations included."""
    data = MaseDataModule(NETWORKS[name][0], batch_size=BATCH)
    data.prepare_data()
    data.setup()
    kinds = (None, "element", "channel")
    takes = {kind: stepper(name, data, kind) for kind in kinds}
    times: dict[str | None, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds + 1):
        for kind, take in takes.items():
            begin = time.process_time()
            take()
            times[kind].append(time.process_time() - begin)
    for kind in kinds[1:]:
        ratios = [a / b for a, b in zip(times[kind][1:], times[None][1:], strict=True)]
        print(f"{name}, widths for each {kind}: a step takes {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f} to {max(ratios):.2f}) of a float one")  # fmt: skip


def front(points: list[Point]) -> list[Point]:
    """Return those that no cheaper one beats on validation rows."""
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (each.ebops or 0, -each.validation)):
        if not found or point.validation > found[-1].validation:
            found.append(point)
    return found


def table_of(points: list[Point]) -> str:
    """Return the points, and for each uniform one how much less as good a learned one costs."""
    lines = []
    for point in points:
        rivals = [each for each in points if each.how == "learned" and _alike(each, point)]
        as_good = [p.ebops for p in front(rivals) if p.ebops and p.test >= point.test]
        is_rival = point.how.startswith("uniform") and point.ebops
        less = f"{point.ebops / min(as_good):.1f}" if is_rival and as_good and point.ebops else ""
        lines.append([
            point.network, point.seed, point.trained, point.epochs, point.how,
            "" if point.ebops is None else f"{point.ebops:,}", f"{point.validation:.4f}",
            f"{point.test:.4f}", less, f"{point.cpu:.0f}",
        ])  # fmt: skip
    headers = ["network", "seed", "rows", "epochs", "how", "EBOPs", "validation", "test",
               "times those of a learned one as good", "CPU s"]  # fmt: skip
    return tabulate(lines, headers, "github", disable_numparse=True)


def _alike(one: Point, other: Point) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("network", "seed", "trained", "epochs")
    )


def read_points(names: list[str]) -> list[Point]:
    """Return the stored points of networks."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [point for point in (Point(**json.loads(each)) for each in lines)
            if point.network in names]  # fmt: skip


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="a small network on simulated jets")
    parser.add_argument("--read", action="store_true", help="the table of what is stored")
    parser.add_argument("--steps", action="store_true", help="the time of a step only")
    parser.add_argument("--load", type=Path, help="the project of the trained float network")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=2, help="of each cycle")
    parser.add_argument("--rows", type=int, help="of training, fewer than there are")
    parser.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="other settings")
    parser.add_argument("--no-learned", action="store_true", help="uniform widths only")
    parser.add_argument("--save", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Measure and print a table."""
    args = arguments()
    torch.set_num_threads(1)
    if args.steps:
        for name in args.names:
            print_steps(name, ROUNDS)
        return
    points = read_points(args.names) if args.read else []
    length = {"cycles": args.cycles, "epochs": args.epochs, "first_epochs": args.epochs}
    others = dict(each.split("=", 1) for each in args.set)
    setup = {"preset": args.preset, "snapshots": 1, **length}
    setup |= {name: json.loads(value) for name, value in others.items()}
    for name in [] if args.read else [QUICK] if args.quick else args.names:
        case = read_case(name, args.load, args.seed, args.rows)
        for point in points_of(case, setup, args.widths, learned=not args.no_learned):
            points.append(point)
            print(json.dumps(asdict(point)), flush=True)
            if args.save:
                with RESULTS.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(asdict(point)) + "\n")
    print(table_of(points))


if __name__ == "__main__":
    main()
