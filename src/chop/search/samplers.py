"""The samplers a search can use, by the name a configuration gives them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from chop.registry import Registry

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

Sampler = Callable[[int], "BaseSampler"]
SAMPLERS: Registry[Sampler] = Registry("sampler")


@SAMPLERS.register("random")
def random(seed: int) -> "BaseSampler":
    """Independent random choices."""
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


@SAMPLERS.register("tpe")
def tpe(seed: int) -> "BaseSampler":
    """Tree-structured Parzen estimator: favours what resembles the best trials."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed)


@SAMPLERS.register("nsgaii")
def nsgaii(seed: int) -> "BaseSampler":
    """NSGA-II: an evolutionary search for a Pareto front."""
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=seed)


@SAMPLERS.register("nsgaiii")
def nsgaiii(seed: int) -> "BaseSampler":
    """NSGA-III: NSGA-II for three objectives and more."""
    from optuna.samplers import NSGAIIISampler

    return NSGAIIISampler(seed=seed)


@SAMPLERS.register("qmc")
def qmc(seed: int) -> "BaseSampler":
    """Quasi-random points that cover the space evenly."""
    from optuna.samplers import QMCSampler

    return QMCSampler(seed=seed)


@SAMPLERS.register("brute")
def brute(seed: int) -> "BaseSampler":
    """Every configuration, once."""
    from optuna.samplers import BruteForceSampler

    return BruteForceSampler(seed=seed)
