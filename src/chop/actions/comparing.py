"""Compare samplers: how many evaluations each needs on one space."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.searching import make_context, operations_of
from chop.config.toml import na_to_none
from chop.errors import ConfigError
from chop.files import versioned, writable_folder, write_text
from chop.search.config import parse_search
from chop.search.space import make_space
from chop.tools.logger import get_logger
from chop.tools.training.threads import using_threads

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule
    from chop.models import MaseModelInfo
    from chop.search.comparison import Comparison
    from chop.search.config import SearchConfig
    from chop.search.context import SearchContext

logger = get_logger("chop")

SAMPLERS = ("tpe", "random", "nsgaii")


@dataclass(frozen=True)
class ComparisonResult:
    """What a comparison has found, and where it is written."""

    folder: Path
    summary: dict[str, Any]
    """What ``comparison.json`` holds."""


def compare(  # noqa: PLR0913  # what a run consists of, by the names of the labs
    model: "nn.Module",
    model_info: "MaseModelInfo",
    data_module: "MaseDataModule",
    search_config: Mapping[str, Any],
    *,
    save_dir: str | Path,
    samplers: Sequence[str] = SAMPLERS,
    seeds: int | Sequence[int] = 5,
    seed: int = 0,
    num_threads: int | None = None,
    **context: Any,
) -> ComparisonResult:
    """Run every sampler with every seed on one space; the hypervolume over evaluations.

    Args:
        search_config: the tables ``search_space`` and ``strategy``; ``n_trials`` and ``timeout``
            hold for each run.
        save_dir: folder for comparison.json, .csv and .png; if there is one, ``<save_dir>-v1`` …
        seeds: the seeds, or how many from `seed` on.
        context: what `chop.actions.search` takes, too: ``task``, ``accelerator``, ``load_name``,
            ``load_type``, ``pretrained``, ``cf_args``.
    """
    tables = na_to_none(search_config)
    config = _checked(tables, samplers)
    found = make_context(model, model_info, data_module, config, seed=seed, **context)
    numbers = list(range(seed, seed + seeds) if isinstance(seeds, int) else seeds)
    if not numbers:
        raise ConfigError("a comparison needs at least one seed")
    folder = versioned(Path(save_dir))
    with using_threads(num_threads, operations_of(found)):
        comparison, size = _compared(found, config, tables, samplers, numbers)
    summary = comparison.as_dict(size)
    _write(writable_folder(folder), comparison, summary, config.strategy.setup.plots)
    return ComparisonResult(folder, summary)


def _checked(tables: Mapping[str, Any], samplers: Sequence[str]) -> "SearchConfig":
    """The configuration, if these samplers can be compared on it."""
    if not samplers:
        raise ConfigError("a comparison needs at least one sampler")
    strategy = tables.get("strategy", {})
    setup = {**strategy.get("setup", {}), "compare": list(samplers)}
    config = parse_search({**tables, "strategy": {**strategy, "setup": setup}})
    if config.strategy.setup.n_jobs > 1:
        logger.warning("n_jobs is ignored: a comparison runs in one process")
    return config


def _compared(
    context: "SearchContext",
    config: "SearchConfig",
    tables: Mapping[str, Any],
    samplers: Sequence[str],
    seeds: Sequence[int],
) -> "tuple[Comparison, int]":
    """All runs on one space, and the size of that."""
    from chop.search.comparison import ENUMERATED, Comparison, SharedMeasure, runs_of
    from chop.search.measure import Measure

    stated = config.search_space
    space = make_space(stated.name, context, stated.setup, stated.seed)
    logger.info("The search space has %s configurations", f"{space.size:,}")
    measure = SharedMeasure(Measure(space, config))
    names = list(dict.fromkeys(name.lower() for name in samplers))
    runs = []
    for run in runs_of(space, tables, names, seeds, measure):
        runs.append(run)
        logger.info("%s, seed %d: %d distinct configurations, %d proposals were repeats",
                    run.sampler, run.seed, len(run.keys), run.repeats)  # fmt: skip
    if len(measure.known) < space.size <= ENUMERATED:
        missing = space.size - len(measure.known)
        logger.info("Measuring the other %d configurations, to know the true front", missing)
        measure.measure_all(space)
    complete = len(measure.known) == space.size
    return Comparison(config, runs, measure.known, complete=complete), space.size


def _write(folder: Path, comparison: "Comparison", summary: dict[str, Any], plot: bool) -> None:
    write_text(folder / "comparison.json", json.dumps(summary, indent=2) + "\n")
    write_text(folder / "comparison.csv", comparison.csv())
    if plot:
        from chop.search.comparison_plot import draw_comparison

        draw_comparison(folder / "comparison.png", comparison)
    logger.info(
        "Evaluations until a share of the hypervolume of %s, median and range of the runs:\n%s",
        comparison.normalised_by, comparison.table(),
    )  # fmt: skip
    logger.info("The comparison is in %s", folder)
