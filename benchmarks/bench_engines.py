"""Engines against each other, as ratios measured in turns in one run.

equal  trials of `local` with two slots have the values of `serial`, bit for bit.
quick  trials of about a millisecond, random sampler, journal file: `local` with two slots over
       `serial`; target: never below 0.9.
pause  trials of 50 ms that use no processor: the share of the ideal rate with 2 and 8 slots;
       target: 0.9.
lost   half of the workers are killed at one moment: all trials are there, none twice.
ray    trials on a Ray cluster of two slots that is started here have the values of `serial`, bit
       for bit; and the seconds that this takes in all. Only where Ray is installed.
stop   trials of a trained jsc-mlp that stop on a share of the rows once they are dominated, at
       99 %: the rows evaluated (target: at most half) and the hypervolume over that of all rows
       (target: within 0.5 %), the same configurations, five seeds. Counts, not times.

    python benchmarks/bench_engines.py [--quick] [--save]      adds a line to results/engines.jsonl
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from bench_search import compared, context, tables
from tabulate import tabulate

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
STOPPED, ROWS, CONFIDENCE, SEEDS = (300, 100), 10_000, 0.99, 5
"""Trials of a search that stops dominated ones, their rows, and how sure it is."""


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


def trained_mlp() -> SearchContext:
    """jsc-mlp after two epochs, in batches of 512."""
    found = context("jsc-mlp")
    with silently():
        settings = TrainingSettings(max_epochs=2, learning_rate=1e-2)
        fit_in_memory(Job(found.model, found.data_module, Path()), settings)
    found.model.eval()
    return found


def stopped(trials: int) -> list[list[Any]]:
    """The rows that stopping saves, and what it does to the front."""
    found, rows, shares, ratios = trained_mlp(), ROWS, [], []
    for seed in range(SEEDS):
        search = tables("random", trials, rows=rows)
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
        ["stop: share of the rows that was evaluated", statistics.median(shares), "<= 0.5",
         f"{min(shares):.3f} to {max(shares):.3f}, {SEEDS} seeds of {trials} trials"],
        ["stop: hypervolume / that of all rows", statistics.median(ratios), "0.995 to 1",
         f"{min(ratios):.5f} to {max(ratios):.5f}"],
    ]  # fmt: skip


def kill_half(engine: Local, after: float) -> None:
    """Kill every second worker once so much time has passed."""
    time.sleep(after)
    for worker in engine._workers[::2]:
        os.kill(worker.process.pid, signal.SIGKILL)


def on_ray(found: SearchContext, search: dict[str, Any], serial: dict[str, Any]) -> list[list[Any]]:
    """The rows of a cluster of two slots on this machine."""
    if find_spec("ray") is None:
        return []
    choice = EngineChoice("ray", slots=2)
    begun = time.perf_counter()
    rate, values = searched(found, search, make_engine(choice))
    whole = time.perf_counter() - begun
    differ = sum(serial.get(key) != value for key, value in values.items())
    return [
        ["ray: trials that differ from serial", differ, "0", f"{len(values)} trials"],
        ["ray: seconds, with starting and ending a cluster", whole, "", f"{rate:.3g} a second"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer trials, one round")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials, few = QUICK_TRIALS if arguments.quick else TRIALS
    found, quick = context(), tables("random", trials)
    rates: dict[int, list[float]] = {1: [], 2: []}
    values: dict[int, dict[str, Any]] = {}
    for _ in range(1 if arguments.quick else 5):
        for slots in (1, 2):
            rate, values[slots] = searched(found, quick, make_engine(EngineChoice(slots=slots)))
            rates[slots].append(rate)
    rows = [
        ["equal: trials of local that differ from serial",
         sum(values[1].get(key) != value for key, value in values[2].items()), "0",
         f"{len(values[2])} trials"],
        compared("quick: local with 2 slots / serial", rates[2], rates[1], ">= 0.9"),
    ]  # fmt: skip
    for slots in (2, 8):
        choice = EngineChoice(slots=slots)
        shares = [searched(found, pauses(few), make_engine(choice))[0] * PAUSE / slots
                  for _ in range(1 if arguments.quick else 3)]  # fmt: skip
        name = f"pause: share of the ideal with {slots} slots"
        rows.append([name, statistics.median(shares), ">= 0.9", f"{len(shares)} rounds"])
    engine = Local(4)
    killer = threading.Thread(target=kill_half, args=(engine, 1.0))
    killer.start()
    _, stored = searched(found, pauses(few), engine)
    killer.join()
    rows.append(["lost: trials after half of 4 workers were killed", len(stored), str(few), ""])
    rows += stopped(STOPPED[arguments.quick])
    rows += on_ray(found, quick, values[1])
    if arguments.save:
        line = {"results": {row[0]: row[1] for row in rows}, "load": os.getloadavg()[0]}
        with RESULTS.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    print(tabulate(rows, ["", "ratio", "target", ""], floatfmt=".3g", tablefmt="github"))
    print(f"load {os.getloadavg()}; {Path(__file__).name}")


if __name__ == "__main__":
    main()
