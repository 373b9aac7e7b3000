"""What a sampler that proposes a known configuration is best told: the known result, or a failure.

A search never measures a configuration twice. When a sampler that learns proposes one again, a
neighbour of it is measured in its place, and the sampler has to be told something of its proposal.
Both answers are tried with the same samplers, seeds and results. The measure is the share of the
hypervolume of the true front that a run has, averaged over its distinct evaluations and at its end;
what counts is the difference between the two answers for the same seed.

widths-125 and widths-3125 are made up: three and five layers of five widths, of which each costs
accuracy and bits in its own measure. jsc-tiny-588 is the space of configs/examples/jsc_compare.toml
on an untrained network, all of it measured.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import tomllib
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import torch
from tabulate import tabulate

from chop.config.layers import na_to_none
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.search.config import SearchConfig, parse_search
from chop.search.front.hypervolume import (
    Point,
    front_of,
    hypervolume,
    hypervolume_history,
    worst_of,
)
from chop.search.proposals import PendingTrial, Proposals
from chop.search.spaces import space as tree
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import (
    SPACES,
    Candidate,
    Choice,
    SearchContext,
    SearchSpace,
    key_of,
    make_space,
)
from chop.search.study.memory import KnownTrials
from chop.search.study.trial import Outcome

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "repeats.jsonl"
COMPARE = HERE.parent / "configs" / "examples" / "jsc_compare.toml"
WIDTHS = (2, 3, 4, 6, 8)
LAYERS = {"widths-125": (3, 80), "widths-3125": (5, 150)}
"""Layers of the made-up spaces, and trials."""
JSC_TRIALS = 150
SLOW_SEEDS, SLOW_TRIALS = 3, 50
"""Of gp, which takes a second and more for a proposal."""


@SPACES.register("benchmark/widths")
class Widths(SearchSpace):
    """Made-up layers, each with a width."""

    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"layer_{place}", WIDTHS) for place in range(self.seed["layers"]))

    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        return chosen

    def candidate(self, config: dict[str, Any]) -> Candidate:
        raise NotImplementedError("its results are made up")


def made_up(config: dict[str, Any]) -> Outcome:
    """Accuracy falls with narrow layers, faster if their neighbour is narrow, too."""
    widths = list(config.values())
    luck = random.Random(repr(widths)).gauss(0, 0.005)
    lost = sum(math.exp(-w / (1 + place % 3)) for place, w in enumerate(widths))
    lost += sum(math.exp(-(a + b) / 3) for a, b in pairwise(widths))
    bits = sum((1 + place**2) * w for place, w in enumerate(widths))
    size = sum(1 + place**2 for place in range(len(widths)))
    return Outcome([1 - lost / len(widths) + luck, bits / size])


@dataclass(frozen=True)
class Problem:
    """A space all of which is known."""

    space: SearchSpace
    config: SearchConfig
    known: dict[str, Outcome]
    trials: int

    def loss(self, key: str) -> Point:
        (right, bits) = self.known[key].values or ()
        return (-right, bits)

    def shares(self, keys: list[str]) -> tuple[float, float]:
        """The mean share of the true hypervolume over all evaluations, and the last one."""
        every = [self.loss(key) for key in self.known]
        reference = worst_of(every)
        whole = hypervolume(front_of(every), reference)
        history = hypervolume_history([self.loss(key) for key in keys], reference)
        return statistics.fmean(history) / whole, history[-1] / whole


def tables(trials: int) -> dict[str, Any]:
    found = na_to_none(tomllib.loads(COMPARE.read_text(encoding="utf-8"))["search"])
    found["strategy"]["setup"] = {"n_trials": trials, "plots": False}
    return dict(found)


def widths(layers: int, trials: int) -> Problem:
    stated = tables(trials)
    stated["search_space"] = {"name": "benchmark/widths", "seed": {"layers": layers}}
    context: Any = None
    space = make_space("benchmark/widths", context, {}, {"layers": layers})
    configs = [space.config(picked) for picked in tree.every(space.tree)]
    known = {key_of(config): made_up(config) for config in configs}
    return Problem(space, parse_search(stated), known, trials)


def jsc_tiny(trials: int) -> Problem:
    torch.manual_seed(0)
    data = MaseDataModule("jsc-sim", batch_size=512)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    context = SearchContext(model.eval(), get_model_info("jsc-tiny"), data)
    config = parse_search(tables(trials))
    stated = config.search_space
    space = make_space(stated.name, context, stated.setup, stated.seed)
    measure = Measure(space, config)
    configs = [space.config(picked) for picked in tree.every(space.tree)]
    return Problem(space, config, {key_of(each): measure(each) for each in configs}, trials)


class Told(Proposals):
    """Proposals that tell a sampler which repeats itself the known result, or a failure."""

    tells_result = False

    def _repeat(self, pending: PendingTrial) -> None:
        self.repeats += 1
        known = self.known.done.get(pending.key) if self.tells_result else None
        values = None if known is None else known.values
        self.sampler.learn(pending.proposal, values, known.constraints if known else {})


def run(problem: Problem, sampler: str, seed: int, tells_result: bool) -> tuple[float, float, int]:
    """The shares of one search, and how many proposals were repeats."""
    strategy = problem.config.strategy
    setup = strategy.setup.model_copy(update={"sampler": sampler, "n_trials": problem.trials})
    config = problem.config.model_copy(
        update={"strategy": strategy.model_copy(update={"setup": setup})}
    )
    known = KnownTrials()
    proposals = Told(problem.space, config, known, seed)
    proposals.tells_result = tells_result
    while len(known.done) < proposals.limit and (batch := proposals.batch(1)):
        outcome = problem.known[batch[0].key]
        known.put(proposals.request(batch[0]), outcome, datetime.now(), number=len(known.done))
        proposals.learn(batch, {batch[0].key: outcome})
    return *problem.shares(list(known.done)), proposals.repeats


def compared(name: str, problem: Problem, sampler: str, seeds: range) -> list[Any]:
    """One sampler on one space: both answers, seed by seed."""
    failures = [run(problem, sampler, seed, tells_result=False) for seed in seeds]
    results = [run(problem, sampler, seed, tells_result=True) for seed in seeds]
    gains = [100 * (other[0] - one[0]) for one, other in zip(failures, results, strict=True)]
    spread = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    shown = [
        ", ".join(f"{100 * statistics.fmean(r[place] for r in runs):.2f}" for place in (0, 1))
        for runs in (failures, results)
    ]
    repeats = [statistics.fmean(r[2] for r in runs) for runs in (failures, results)]
    return [
        name, sampler, problem.trials, *shown, statistics.fmean(gains), spread,
        sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains),
        f"{repeats[0]:.0f}, {repeats[1]:.0f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, no gp")
    parser.add_argument("--seeds", type=int, default=10, help="gp has fewer")
    parser.add_argument("--save", action="store_true", help=f"add a line to {RESULTS.name}")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    problems = {name: widths(*each) for name, each in LAYERS.items()}
    problems["jsc-tiny-588"] = jsc_tiny(JSC_TRIALS)
    samplers = ("random", "tpe", "nsgaii") if arguments.quick else ("random", "tpe", "nsgaii", "gp")
    seeds = range(2 if arguments.quick else arguments.seeds)
    rows = []
    for name, problem in problems.items():
        for sampler in samplers:
            if sampler == "gp":
                few = replace(problem, trials=SLOW_TRIALS)
                rows.append(compared(name, few, sampler, seeds[:SLOW_SEEDS]))
            else:
                rows.append(compared(name, problem, sampler, seeds))
    headers = [
        "space", "sampler", "trials", "told failure: mean, end", "told result: mean, end",
        "gain", "± s.e.", "better", "worse", "repeats",
    ]  # fmt: skip
    print(tabulate(rows, headers, floatfmt=".2f", tablefmt="github"))
    print(f"{len(seeds)} seeds; shares in percent of the true hypervolume; load {os.getloadavg()}")
    if arguments.save:
        line = {"machine": platform.processor(), "optuna": optuna.__version__, "rows": rows}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
