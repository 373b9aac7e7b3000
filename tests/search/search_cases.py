"""Tables and types that the tests of searches share."""

import copy
import multiprocessing
from collections.abc import Callable
from typing import Any

from optuna.storages import get_storage

from chop.search.config import SearchConfig
from chop.search.spaces.space import SearchContext, SearchSpace, make_space
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store, close

PTQ = "graph/quantize/mixed_precision_ptq"
LINEAR = {
    "name": ["integer"],
    "data_in_width": [4, 8],
    "data_in_frac_width": [None],
    "weight_width": [2, 4, 8],
    "weight_frac_width": [None],
    "bias_width": [2, 4, 8],
    "bias_frac_width": [None],
}
TABLES: dict[str, Any] = {
    "search_space": {
        "name": PTQ,
        "setup": {"by": "type"},
        "seed": {"default": {"config": {"name": [None]}}, "linear": {"config": LINEAR}},
    },
    "strategy": {
        "name": "optuna",
        "eval_mode": True,
        "sw_runner": {"basic_evaluation": {"data_loader": "val_dataloader", "num_samples": 128}},
        "hw_runner": {"average_bitwidth": {"compare_to": 32}},
        "setup": {"n_jobs": 1, "n_trials": 6, "sampler": "random", "sum_scaled_metrics": False},
        "metrics": {
            "accuracy": {"scale": 1.0, "direction": "maximize"},
            "average_bitwidth": {"scale": 0.2, "direction": "minimize"},
        },
    },
}


def tables(**setup: Any) -> dict[str, Any]:
    """``[search]`` over the linear layers; keywords are keys of ``strategy.setup``."""
    found = copy.deepcopy(TABLES)
    found["strategy"]["setup"] |= setup
    return found


def space_of(context: SearchContext, config: SearchConfig) -> SearchSpace:
    stated = config.search_space
    return make_space(stated.name, context, stated.setup, stated.seed)


StoreMaker = Callable[..., Store]
Searcher = Callable[..., Search]


def open_together(url: str, problem: str, barrier: Any, answers: Any) -> None:
    """Open a study when all others do; say what became of it."""
    barrier.wait()
    try:
        open_store(Place(url, "search"), ["minimize"], {"data set": problem})
        answers.put((problem, "opened"))
    except Exception as error:  # noqa: BLE001  # whatever it is, the test waits for an answer
        answers.put((problem, str(error)))


def opened_together(url: str, problems: list[str]) -> list[tuple[str, str]]:
    """What becomes of processes that open one new study at the same moment."""
    close(get_storage("sqlite://"))  # so that all have the modules, and none is late
    fork = multiprocessing.get_context("fork")
    barrier, answers = fork.Barrier(len(problems)), fork.SimpleQueue()
    processes = [
        fork.Process(target=open_together, args=(url, problem, barrier, answers))
        for problem in problems
    ]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return found
