"""Trials per second of a search, as ratios measured in turns in one run.

a  jsc-tiny, 512 rows, random sampler, journal file, against the plain recipe: for every trial a
   deep copy of the graph, its metadata, the quantise pass, an evaluation and the average width,
   with Optuna's study in memory; target: 20.
b  the same with TPE, against Optuna alone with an objective that does nothing: it looks up what the
   search would measure, so that TPE has the same results to learn from, or it makes something up;
   with its study in memory, and in Optuna's own journal file; target: 0.7.
c  a residual network with 20 quantised convolutions: the time of a trial over that of its forward
   passes alone; target: at most 1.15.
d  n_jobs = 2 against n_jobs = 1 on (c); target: 1.6. For comparison what the machine gives: the
   same for two processes that have nothing to do with each other.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
import torch
from tabulate import tabulate

from chop.dataset import MaseDataModule, get_dataset_info
from chop.dataset.data_module import TensorLoader
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.search.config import parse_search
from chop.search.engines.local import Local
from chop.search.samplers import SAMPLERS, Problem, params_of
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchContext, every, make_space, walk
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store
from chop.training.metrics import evaluate_model

WIDTHS = [2, 3, 4, 5, 6, 7, 8]
ROWS, IMAGES = 512, 64
TRIALS, QUICK_TRIALS = (2000, 100, 200), (200, 20, 60)
"""Of the random sampler, of the plain recipe, of TPE."""
WINDOW, QUICK_WINDOW = 12.0, 4.0
"""Seconds in which the trials of processes are counted."""
SETTLE = (3.0, 1.0)
"""Seconds that a separate process works before and after it counts, for the other's sake."""


def tables(sampler: str, trials: int, by: str = "linear", rows: int = ROWS) -> dict[str, Any]:
    seed = {
        "name": ["integer"],
        "data_in_width": WIDTHS,
        "data_in_frac_width": [None, 1, 2, 3],
        "weight_width": WIDTHS,
        "weight_frac_width": [None, 1, 2, 3],
        "bias_width": WIDTHS,
        "bias_frac_width": [None, 1, 2, 3],
    }
    return {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "setup": {"by": "type"},
            "seed": {"default": {"config": {"name": [None]}}, by: {"config": seed}},
        },
        "strategy": {
            "sw_runner": {"basic_evaluation": {"num_samples": rows}},
            "hw_runner": {"average_bitwidth": {}},
            "setup": {"sampler": sampler, "n_trials": trials},
            "metrics": {
                "accuracy": {"direction": "maximize"},
                "average_bitwidth": {"direction": "minimize", "scale": 0.2},
            },
        },
    }


def context(model: str = "jsc-tiny", dataset: str = "jsc-sim") -> SearchContext:
    data = MaseDataModule(dataset, batch_size=ROWS)
    data.setup()
    torch.manual_seed(0)
    network = get_model(model, "cls", dataset_info=data.dataset_info)
    return SearchContext(network.eval(), get_model_info(model), data)


def search_rate(found: SearchContext, search: dict[str, Any]) -> float:
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Place(f"{folder}/study.log", "s"), list(config.directions), {})
        running = Search(space, config, store, seed=1)
        start = time.perf_counter()
        running.run()
        return len(store.done) / (time.perf_counter() - start)


def plain_rate(found: SearchContext, search: dict[str, Any], trials: int) -> float:
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    graph = found.graph(found.pristine())

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        def pick(choice: Any) -> int:
            return trial.suggest_int(choice.name, 0, len(choice.options) - 1)

        chosen = space.config(walk(space.tree, pick))
        twin = MaseGraph(copy.deepcopy(graph.model))
        twin, _ = init_metadata_analysis_pass(twin)
        twin, _ = add_common_metadata_analysis_pass(twin, {"dummy_in": found.dummy_in})
        twin, _ = add_software_metadata_analysis_pass(twin)
        twin, _ = quantize_transform_pass(twin, {"by": "name", **chosen})
        result = evaluate_model(twin.model, islice(found.data_module.val_dataloader(), 1))
        _, bits = calculate_avg_bits_mg_analysis_pass(twin)
        return result.accuracy, 0.2 * bits["w_avg_bit"]

    return optuna_rate(objective, optuna.samplers.RandomSampler(seed=1), trials, None)


def optuna_rate(objective: Callable[..., Any], sampler: Any, trials: int, storage: Any) -> float:
    study = optuna.create_study(
        directions=["maximize", "minimize"], sampler=sampler, storage=storage
    )
    start = time.perf_counter()
    study.optimize(objective, n_trials=trials)
    return trials / (time.perf_counter() - start)


def outcomes(found: SearchContext, search: dict[str, Any]) -> dict[tuple[Any, ...], Any]:
    """The objectives of every configuration, by what is chosen."""
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    measure = Measure(space, config)
    return {
        tuple(params_of(space.tree, picked).values()): measure(space.config(picked)).values
        for picked in every(space.tree)
    }


def idle_rate(
    found: SearchContext, search: dict[str, Any], trials: int, known: Any, journal: bool = False
) -> float:
    """Optuna alone: the same parameters, with results that are known or out of the air."""
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    problem = Problem(space.tree, tuple(config.directions))
    names = SAMPLERS["random"](0, problem).propose().params  # type: ignore[union-attr]
    options = {c.name: c.labels for root in space.tree for c in (root, *sum(root.then, ()))}

    def objective(trial: optuna.Trial) -> Any:
        picked = [trial.suggest_categorical(name, options[name]) for name in names]
        if known is None:
            return float(hash(tuple(picked)) % 997), float(sum(p or 0 for p in picked))
        return known[tuple(picked)]

    with tempfile.TemporaryDirectory() as folder:
        storage = None
        if journal:
            backend = optuna.storages.journal.JournalFileBackend(f"{folder}/study.log")
            storage = optuna.storages.JournalStorage(backend)
        return optuna_rate(objective, optuna.samplers.TPESampler(seed=1), trials, storage)


def small(quick: bool) -> list[list[Any]]:
    found = context()
    trials, plain, few = QUICK_TRIALS if quick else TRIALS
    random, tpe = tables("random", trials), tables("tpe", few)
    known = outcomes(found, tpe)
    measures: dict[str, Callable[[], float]] = {
        "plain": lambda: plain_rate(found, random, plain),
        "random": lambda: search_rate(found, random),
        "tpe": lambda: search_rate(found, tpe),
        "looked up": lambda: idle_rate(found, tpe, few, known),
        "made up": lambda: idle_rate(found, tpe, few, None),
        "journal": lambda: idle_rate(found, tpe, few, known, journal=True),
    }
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(2 if quick else 9):
        for name, measured in measures.items():
            rates[name].append(measured())
    return [
        compared("a: random / plain recipe", rates["random"], rates["plain"], ">= 20"),
        compared("b: tpe / Optuna, in memory", rates["tpe"], rates["looked up"], ">= 0.7"),
        compared("b: the same, made-up results", rates["tpe"], rates["made up"], ">= 0.7"),
        compared("b: tpe / Optuna, journal file", rates["tpe"], rates["journal"], ">= 0.7"),
    ]


def compared(name: str, ours: list[float], others: list[float], target: str) -> list[Any]:
    """The ratio in each round: their median, and how far they lie apart."""
    ratios = sorted(a / b for a, b in zip(ours, others, strict=True))
    rates = f"{statistics.median(ours):.3g} / {statistics.median(others):.3g} per second"
    detail = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds; {rates}"
    return [name, statistics.median(ratios), target, detail]


class Images:
    """Random images, in the shape of a data module."""

    name, batch_size, fingerprint = "random-images", 32, "none"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.features = torch.randn(IMAGES, 3, 32, 32)
        self.labels = torch.randint(0, 10, (IMAGES,))

    def train_dataloader(self) -> TensorLoader:
        return TensorLoader(self.features, self.labels, self.batch_size)

    val_dataloader = test_dataloader = train_dataloader


def image_context() -> SearchContext:
    data: Any = Images()
    torch.manual_seed(0)
    facts = get_dataset_info("cifar10")
    network = get_model("resnet18", "cls", dataset_info=facts)
    return SearchContext(network.eval(), get_model_info("resnet18"), data)


def large(quick: bool) -> list[list[Any]]:
    """A trial against the forward passes of the network that the quantise pass makes of it."""
    found = image_context()
    config = parse_search(tables("random", 10, "conv2d", rows=IMAGES))
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    quantised = sum("data_in_width" in name for name in SAMPLERS["random"](
        0, Problem(space.tree, tuple(config.directions))).propose().picked)  # fmt: skip
    measure = Measure(space, config)
    sampler = SAMPLERS["random"](1, Problem(space.tree, tuple(config.directions)))
    ratios = []
    for _ in range(3 if quick else 12):
        chosen = space.config(sampler.propose().picked)  # type: ignore[union-attr]
        model = space.candidate(chosen).model
        batches = found.batches("val_dataloader", IMAGES)
        with torch.inference_mode():
            for features, _ in batches[:1]:
                model(features)  # rounds the weights, which the forward passes then find
            begun = time.perf_counter()
            for features, _ in batches:
                model(features)
            forward = time.perf_counter() - begun
        begun = time.perf_counter()
        outcome = measure(chosen)
        ratios.append((time.perf_counter() - begun) / forward)
        assert outcome.reason is None, outcome.reason
    return [[f"c: trial / forward passes, {quantised} convolutions", statistics.median(ratios),
             "<= 1.15", f"{len(ratios)} trials"]]  # fmt: skip


def processes(quick: bool) -> list[list[Any]]:
    """Trials per second while two processes are at work, against one."""
    found = image_context()
    search = tables("random", 1_000_000, "conv2d", rows=4)
    seconds, rounds = (QUICK_WINDOW, 1) if quick else (WINDOW, 4)
    rates: dict[int, list[float]] = {1: [], 2: []}
    bare: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for jobs in (1, 2):
            rates[jobs].append(window_rate(found, search, jobs, seconds))
            bare[jobs].append(bare_rate(jobs, seconds / 2))
    return [
        compared("d: n_jobs = 2 / n_jobs = 1", rates[2], rates[1], ">= 1.6"),
        compared("d: two separate processes / one", bare[2], bare[1], ""),
    ]


def bare_rate(jobs: int, seconds: float) -> float:
    """Forward passes per second of so many processes, each with a network of its own."""
    command = [sys.executable, __file__, "--passes", *map(str, (seconds, *SETTLE))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(jobs)]
    return sum(float(process.communicate()[0]) for process in running)


def passes(seconds: float, before: float, after: float) -> float:
    """Forward passes per second, between others that are not counted."""
    found = image_context()
    (features, _), *_ = found.batches("val_dataloader", 4)
    count = 0
    with torch.inference_mode():
        warm = time.perf_counter() + before
        while time.perf_counter() < warm:
            found.model(features)
        begun = time.perf_counter()
        while not count or time.perf_counter() - begun < seconds:
            found.model(features)
            count += 1
        rate = count / (time.perf_counter() - begun)
        cool = time.perf_counter() + after
        while time.perf_counter() < cool:  # the other may still be counting
            found.model(features)
    return rate


def window_rate(found: SearchContext, search: dict[str, Any], jobs: int, seconds: float) -> float:
    """Trials per second of a search on so many processes, all of which are at work."""
    search["strategy"]["setup"]["timeout"] = SETTLE[0] + 2 * seconds
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    counts: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Place(f"{folder}/study.log", "s"), list(config.directions), {})
        running = Search(space, config, store, seed=1, engine=Local(jobs))
        running.progress.report = lambda *_: counts.append((time.perf_counter(), len(store.done)))
        begun = time.perf_counter()
        running.run()
    inside = [(at, count) for at, count in counts if begun + SETTLE[0] < at] or counts
    (first, before), (last, after) = inside[0], inside[-1]
    return (after - before) / (last - first) if last > first else after / (last - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--passes", type=float, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    if args.passes is not None:
        print(passes(*args.passes))
        return
    before = os.getloadavg()[0]
    # Processes come first: they start with a copy of this one, which a search has just begun.
    shared = processes(args.quick)
    rows = [*small(args.quick), *large(args.quick), *shared]
    print(tabulate(rows, ["measure", "ratio", "target", "detail"], floatfmt=".2f"))
    print(f"load average {before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    if args.save:
        target = Path(__file__).parent / "results" / "search.jsonl"
        target.parent.mkdir(exist_ok=True)
        line = {"torch": torch.__version__, "optuna": optuna.__version__,
                "load": [before, os.getloadavg()[0]],
                "ratios": {row[0]: round(row[1], 3) for row in rows}}  # fmt: skip
        with target.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
