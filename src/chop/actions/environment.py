"""The machine a run finds: device, threads and random numbers."""

import random
import warnings

import numpy as np
import torch

from chop.config.run import RunConfig
from chop.errors import ConfigError
from chop.tools.devices import check_accelerator
from chop.training.settings import MOST_PROCESSES


def prepare(config: RunConfig) -> None:
    """Check the device that was asked for, and seed with the seed in effect."""
    check_accelerator(config.accelerator)
    check_counts(config)
    if config.no_warnings:
        warnings.simplefilter("ignore")
    seed_everything(config.seed)


def check_counts(config: RunConfig) -> None:
    """Refuse more processes or threads than the machine could ever use."""
    for name in ("num_devices", "num_workers", "num_threads"):
        count = getattr(config, name) or 0
        if count > MOST_PROCESSES:
            raise ConfigError(f"{name} is {count}, but this machine takes at most {MOST_PROCESSES}")


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's random numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
