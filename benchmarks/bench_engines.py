"""Engines against each other, as ratios measured in turns in one run.

equal  trials of `local` with two slots have the values of `serial`, bit for bit; so have 12
       trainings (three seeds of four settings).
quick  trials of about a millisecond, random sampler, journal file: `local` with two slots over
       `serial`; target: never below 0.9.
pause  trials of 50 ms that use no processor: the share of the ideal rate with 2 and 8 slots;
       target: 0.9.
lost   half of four workers are killed at one moment: all trials are there, none twice; and the
       rate of the five seconds after it over that of two slots (target: 0.9 within 15 s).
ray    trials on a Ray cluster of two slots that is started here have the values of `serial`, bit
       for bit, trainings as well; and the seconds that this takes in all. Only where Ray is
       installed.
stop   trials of a trained jsc-mlp, and of a LeNet-5 on Fashion-MNIST where that is, that stop on a
       share of the rows once they are dominated, at 99 %: the rows evaluated (target: at most half)
       and the hypervolume over that of all rows (target: within 0.5 %), the same configurations,
       five seeds. Counts, not times.

    python benchmarks/bench_engines.py [--quick] [--save]      adds a line to results/engines.jsonl
    python benchmarks/bench_engines.py --only stop             one of the above
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from bench_search import compared, context, tables
from tabulate import tabulate

from chop.errors import DataError
from chop.logger import silently
from chop.search.config import parse_search
from chop.search.engines import EngineChoice, make_engine
from chop.search.engines.engine import TrialEngine
from chop.search.engines.local import Local
from chop.search.front.hypervolume import best_of, hypervolume, worst_of
from chop.search.runners import software_runner
from chop.search.spaces.space import Candidate, SearchContext, make_space
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store
from chop.search.study.trial import Trial
from chop.training.fit import fit_in_memory
from chop.training.job import Job
from chop.training.settings import TrainingSettings

RESULTS = Path(__file__).parent / "results" / "engines.jsonl"
PAUSE = 0.05
TRIALS, QUICK_TRIALS = (1500, 400), (300, 80)
"""Of quick trials, and of pauses."""
CONFIDENCE, SEEDS = 0.99, 5
"""How sure a search is that stops dominated trials, and how often it is done."""
STOPPED = {
    "jsc-mlp": ("jsc-sim", "linear", 10_000, (300, 100)),
    "lenet5": ("fashion-mnist", "conv2d", 2_000, (100, 5)),
}
"""Networks of such searches: data, what is quantised, rows, trials."""
KILLED, WINDOW = 2.0, 5.0
"""Seconds after which workers are killed, and for which the rate is then taken."""


@software_runner("pause", metrics=("slept",))
def pause(candidate: Candidate) -> dict[str, float]:
    """Sleep for 50 ms."""
    time.sleep(PAUSE)
    return {"slept": PAUSE}


def pauses(trials: int) -> dict[str, Any]:
    """The tables of a search whose trials only sleep."""
    found = tables("random", trials)
    found["strategy"]["sw_runner"] = {"pause": {}}
    found["strategy"]["metrics"] = {"slept": {"direction": "minimize"}}
    found["strategy"]["hw_runner"] = {}
    return found


def searched(
    found: SearchContext, search: dict[str, Any], engine: TrialEngine
) -> tuple[float, dict[str, Any]]:
    """Trials per second, and the values of each configuration."""
    rate, trials, _ = whole_search(found, search, engine, 1)
    return rate, {trial.key: trial.values for trial in trials}


def whole_search(
    found: SearchContext, search: dict[str, Any], engine: TrialEngine, seed: int
) -> tuple[float, list[Trial], list[Trial]]:
    """Trials per second, all of them, and the best."""
    config = parse_search(search)
    stated = config.search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Place(f"{folder}/study.log", "s"), list(config.directions), {})
        running = Search(space, config, store, seed=seed, engine=engine)
        start = time.perf_counter()
        running.run()
        rate = len(store.done) / (time.perf_counter() - start)
        trials = store.trials()
        return rate, trials, best_of(store.study, trials)


def trained(model: str, dataset: str) -> SearchContext:
    """A network after two epochs, in batches of 512."""
    found = context(model, dataset)
    with silently():
        settings = TrainingSettings(max_epochs=2, learning_rate=1e-2)
        fit_in_memory(Job(found.model, found.data_module, Path()), settings)
    found.model.eval()
    return found


def stopped(model: str, is_quick: bool) -> list[list[Any]]:
    """The rows that stopping saves, and what it does to the front."""
    dataset, by, rows, counts = STOPPED[model]
    trials = counts[is_quick]
    try:
        found = trained(model, dataset)
    except DataError as error:
        return [[f"stop, {model}", None, "", str(error)[:60]]]
    shares, ratios = [], []
    for seed in range(SEEDS):
        search = tables("random", trials, by, rows)
        _, full, best = whole_search(found, search, make_engine(EngineChoice()), seed)
        search["strategy"]["setup"]["stop_dominated"] = CONFIDENCE
        _, some, front = whole_search(found, search, make_engine(EngineChoice()), seed)
        assert {each.key for each in full} == {each.key for each in some}
        shares.append(sum(each.seen[0] for each in some if each.seen) / (rows * len(some)))
        points = [each.losses(["maximize", "minimize"]) for each in full]
        volumes = [
            hypervolume([each.losses(["maximize", "minimize"]) for each in some], worst_of(points))
            for some in (front, best)
        ]
        ratios.append(volumes[0] / volumes[1])
    return [
        [f"stop, {model}: share of the rows that was evaluated", statistics.median(shares),
         "<= 0.5", f"{min(shares):.3f} to {max(shares):.3f}, {SEEDS} seeds of {trials} trials"],
        [f"stop, {model}: hypervolume / that of all rows", statistics.median(ratios),
         "0.995 to 1", f"{min(ratios):.5f} to {max(ratios):.5f}"],
    ]  # fmt: skip


def trainings() -> dict[str, Any]:
    """The tables of a study of four settings, three seeds each."""
    found = tables("grid", 4)
    found["search_space"] = {
        "name": "train/hyperparameters",
        "setup": {"fixed": {"max_epochs": 1, "batch_size": 4096}},
        "seed": {"learning_rate": [1e-3, 3e-3, 1e-2, 3e-2]},
    }
    found["strategy"]["sw_runner"] = {"hyperparameter_training": {"repeats": 3}}
    found["strategy"]["hw_runner"] = {}
    found["strategy"]["metrics"] = {"accuracy": {"direction": "maximize"}}
    return found


def differences(found: SearchContext, search: dict[str, Any], choice: EngineChoice) -> int:
    """Configurations whose values on an engine are not those of `serial`."""
    values = [searched(found, search, make_engine(each))[1] for each in (EngineChoice(), choice)]
    return len(values[0].items() ^ values[1].items())


def equal_and_quick(found: SearchContext, search: dict[str, Any], rounds: int) -> list[list[Any]]:
    """The rows of quick trials: their values, and the rates of two slots and of one."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    values: dict[int, dict[str, Any]] = {}
    for _ in range(rounds):
        for slots in (1, 2):
            rate, values[slots] = searched(found, search, make_engine(EngineChoice(slots=slots)))
            rates[slots].append(rate)
    differ = sum(values[1].get(key) != value for key, value in values[2].items())
    return [
        ["equal: trials of local that differ from serial", differ, "0", f"{len(values[2])} trials"],
        ["equal: settings of 3 trainings that differ from serial",
         differences(found, trainings(), EngineChoice(slots=2)), "0", "4 settings"],
        compared("quick: local with 2 slots / serial", rates[2], rates[1], ">= 0.9"),
    ]  # fmt: skip


def paused(found: SearchContext, few: int, rounds: int) -> list[list[Any]]:
    """The rows of trials that use no processor, as many as take the same time on all slots."""
    rows = []
    for slots in (2, 8):
        search, choice = pauses(few * slots // 2), EngineChoice(slots=slots)
        shares = [searched(found, search, make_engine(choice))[0] * PAUSE / slots
                  for _ in range(rounds)]  # fmt: skip
        name = f"pause: share of the ideal with {slots} slots"
        rows.append([name, statistics.median(shares), ">= 0.9", f"{len(shares)} rounds"])
    return rows


def lost(found: SearchContext, few: int) -> list[list[Any]]:
    """The rows of a search of four slots of which half are killed."""
    engine, killed = Local(4), []
    killer = threading.Thread(target=kill_half, args=(engine, KILLED, killed))
    killer.start()
    _, trials, _ = whole_search(found, pauses(2 * few), engine, 1)
    killer.join()
    ended = [(each.ended - killed[0]).total_seconds() for each in trials if each.ended]
    last = min(WINDOW, max(ended))
    rate = sum(0 < each <= last for each in ended) / last if last > 0 else 0.0
    return [
        ["lost: trials after half of 4 workers were killed", len({each.key for each in trials}),
         str(2 * few), ""],
        ["lost: rate after that / that of the other two", rate * PAUSE / 2, ">= 0.9",
         f"{last:.1f} s after it"],
    ]  # fmt: skip


def kill_half(engine: Local, after: float, killed: list[datetime]) -> None:
    """Kill every second worker once so much time has passed, and note when that was."""
    time.sleep(after)
    killed.append(datetime.now())
    for worker in engine._workers[::2]:
        os.kill(worker.process.pid, signal.SIGKILL)


def on_ray(found: SearchContext, search: dict[str, Any]) -> list[list[Any]]:
    """The rows of a cluster of two slots on this machine."""
    if find_spec("ray") is None:
        return []
    choice = EngineChoice("ray", slots=2)
    _, serial = searched(found, search, make_engine(EngineChoice()))
    begun = time.perf_counter()
    rate, values = searched(found, search, make_engine(choice))
    whole = time.perf_counter() - begun
    differ = sum(serial.get(key) != value for key, value in values.items())
    return [
        ["ray: trials that differ from serial", differ, "0", f"{len(values)} trials"],
        ["ray: settings of 3 trainings that differ from serial",
         differences(found, trainings(), choice), "0", "4 settings"],
        ["ray: seconds, with starting and ending a cluster", whole, "", f"{rate:.3g} a second"],
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer trials, one round")
    parser.add_argument("--only", default="", help="equal, pause, lost, ray, stop")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials, few = QUICK_TRIALS if arguments.quick else TRIALS
    found, quick = context(), tables("random", trials)
    rounds = 1 if arguments.quick else 3
    parts: dict[str, Callable[[], list[list[Any]]]] = {
        "equal": lambda: equal_and_quick(found, quick, rounds),
        "pause": lambda: paused(found, few, rounds),
        "lost": lambda: lost(found, few),
        "stop": lambda: [row for model in STOPPED for row in stopped(model, arguments.quick)],
        "ray": lambda: on_ray(found, quick),
    }
    rows = [row for name in parts if arguments.only in ("", name) for row in parts[name]()]
    if arguments.save:
        line = {"results": {row[0]: row[1] for row in rows}, "load": os.getloadavg()[0]}
        with RESULTS.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    print(tabulate(rows, ["", "ratio", "target", ""], floatfmt=".3g", tablefmt="github"))
    print(f"load {os.getloadavg()}; {Path(__file__).name}")


if __name__ == "__main__":
    main()
