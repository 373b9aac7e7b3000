"""Tables and types that the tests of searches share."""

import copy
from collections.abc import Callable
from typing import Any

from chop.search.config import SearchConfig
from chop.search.context import SearchContext
from chop.search.space import SearchSpace, make_space
from chop.search.store import Store
from chop.search.strategy import Search

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
