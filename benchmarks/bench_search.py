"""Trials per second of a search, as ratios measured in turns in one run.

a  jsc-tiny, 512 rows, random sampler, journal file, against the plain recipe: for every trial a
   deep copy of the graph, its metadata, the quantise pass, an evaluation and the average width,
   with Optuna's study in memory; target: 20.
b  the same with TPE, against Optuna alone with an objective that does nothing, once with its study
   in memory and once in Optuna's own journal file; target: 0.7.
c  a residual network with 20 quantised convolutions: the time of a trial over that of its forward
   passes alone; target: at most 1.15.
d  n_jobs = 2 against n_jobs = 1 on (c); target: 1.6.
"""

import argparse
import copy
import json
import statistics
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
from chop.dataset.loader import TensorLoader
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.search.choices import walk
from chop.search.config import parse_search
from chop.search.context import SearchContext
from chop.search.crew import helpers, make_task
from chop.search.measure import Measure
from chop.search.samplers import SAMPLERS, Problem
from chop.search.space import make_space
from chop.search.storage import Place, open_store
from chop.search.strategy import Search
from chop.tools.training.metrics import evaluate

WIDTHS = [2, 3, 4, 5, 6, 7, 8]
ROWS = 512


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
        result = evaluate(twin.model, islice(found.data_module.val_dataloader(), 1))
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


def idle_rate(found: SearchContext, search: dict[str, Any], trials: int, journal: bool) -> float:
    """Optuna alone: the same parameters, results out of the air."""
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    problem = Problem(space.tree, tuple(config.directions))
    names = SAMPLERS["random"](0, problem).propose().params  # type: ignore[union-attr]
    options = {c.name: c.labels for root in space.tree for c in (root, *sum(root.then, ()))}

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        picked = [trial.suggest_categorical(name, options[name]) for name in names]
        return float(hash(tuple(picked)) % 997), float(sum(p or 0 for p in picked))

    with tempfile.TemporaryDirectory() as folder:
        storage = None
        if journal:
            backend = optuna.storages.journal.JournalFileBackend(f"{folder}/study.log")
            storage = optuna.storages.JournalStorage(backend)
        return optuna_rate(objective, optuna.samplers.TPESampler(seed=1), trials, storage)


def small(quick: bool) -> list[list[Any]]:
    found = context()
    trials = 64 if quick else 400
    few = 60 if quick else 200
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    for _ in range(2 if quick else 5):
        note("random", search_rate(found, tables("random", trials)))
        note("plain", plain_rate(found, tables("random", trials), max(10, trials // 10)))
        note("tpe", search_rate(found, tables("tpe", few)))
        note("optuna", idle_rate(found, tables("tpe", few), few, journal=False))
        note("optuna journal", idle_rate(found, tables("tpe", few), few, journal=True))
    best = {name: max(each) for name, each in rates.items()}
    return [
        ["a: random / plain recipe", best["random"] / best["plain"], ">= 20",
         f"{best['random']:.0f} / {best['plain']:.0f} trials/s"],
        ["b: tpe / Optuna in memory", best["tpe"] / best["optuna"], ">= 0.7",
         f"{best['tpe']:.0f} / {best['optuna']:.0f} trials/s"],
        ["b: tpe / Optuna in its journal", best["tpe"] / best["optuna journal"], ">= 0.7",
         f"{best['tpe']:.0f} / {best['optuna journal']:.0f} trials/s"],
    ]  # fmt: skip


class Images:
    """Random images, in the shape of a data module."""

    name, batch_size, fingerprint = "random-images", 32, "none"

    def __init__(self, rows: int = 64) -> None:
        torch.manual_seed(0)
        self.features = torch.randn(rows, 3, 32, 32)
        self.labels = torch.randint(0, 10, (rows,))

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
    config = parse_search(tables("random", 10, "conv2d", rows=64))
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
        batches = found.batches("val_dataloader", 64)
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
    search = tables("random", 1_000_000, "conv2d", rows=16)
    rates = {jobs: window_rate(found, search, jobs, 6 if quick else 30) for jobs in (1, 2)}
    return [["d: n_jobs = 2 / n_jobs = 1", rates[2] / rates[1], ">= 1.6",
             f"{rates[2]:.1f} / {rates[1]:.1f} trials/s"]]  # fmt: skip


def window_rate(found: SearchContext, search: dict[str, Any], jobs: int, seconds: float) -> float:
    config = parse_search(search)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(f"{folder}/study.log", "s")
        store = open_store(place, list(config.directions), {})
        task = make_task(found, search=search, place=place, problem={}, seed=1, threads=1)
        with helpers(task, jobs):
            workers: set[str] = set()
            while len(workers) < jobs:
                time.sleep(0.05)
                workers = {t.user_attrs["worker"] for t in store.counted()}
            begun, before = time.perf_counter(), len(store.counted())
            time.sleep(seconds)
            return (len(store.counted()) - before) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    rows = [*small(args.quick), *large(args.quick), *processes(args.quick)]
    print(tabulate(rows, ["measure", "ratio", "target", "detail"], floatfmt=".2f"))
    if args.save:
        target = Path(__file__).parent / "results" / "search.jsonl"
        target.parent.mkdir(exist_ok=True)
        line = {"torch": torch.__version__, "optuna": optuna.__version__,
                "ratios": {row[0]: round(row[1], 3) for row in rows}}  # fmt: skip
        with target.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
