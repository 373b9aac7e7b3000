"""Studies of settings that take a fraction of a second."""

from typing import Any

SETTING = {"batch_size": 8192, "learning_rate": 0.01, "max_epochs": 2}


def study_tables(seed: dict[str, Any], repeats: int = 2, **setup: Any) -> dict[str, Any]:
    """``[search]`` over settings of training, all of them tried."""
    return {
        "search_space": {
            "name": "train/hyperparameters",
            "setup": {"fixed": SETTING},
            "seed": seed,
        },
        "strategy": {
            "sw_runner": {"hyperparameter_training": {"repeats": repeats, "num_samples": 512}},
            "setup": {"sampler": "brute", **setup},
            "metrics": {"accuracy": {"direction": "maximize"}},
        },
    }
