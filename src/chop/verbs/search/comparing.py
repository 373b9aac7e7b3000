"""Compare samplers: how many evaluations each needs on one space."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.charts import write_png
from chop.config.layers import na_to_none
from chop.devices import using_threads
from chop.errors import ConfigError
from chop.files import writable_folder, write_text
from chop.logger import RESULT, get_logger
from chop.runs import (
    COMPARISON_CHART,
    COMPARISON_TABLE,
    JOURNAL,
    latest,
    own_folder,
)
from chop.search.config import parse_search
from chop.search.engines import SERIAL, make_engine
from chop.search.spaces.space import make_space
from chop.verbs.search.files import undone_if_it_fails
from chop.verbs.search.job import SearchJob, make_context, operations_of

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule
    from chop.models import MaseModelInfo
    from chop.results.comparison import Comparison, SamplerComparison
    from chop.search.config import SearchConfig
    from chop.search.contest import Plan, Run
    from chop.search.engines.engine import TrialEngine
    from chop.search.spaces.space import SearchContext

logger = get_logger("chop")

SAMPLERS = ("tpe", "random", "nsgaii")


@dataclass(frozen=True)
class ComparisonResult:
    """The result of a comparison, and its folder."""

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
    resume: bool = False,
    num_threads: int | None = None,
    imports: Sequence[str] = (),
    **context: Any,
) -> ComparisonResult:
    """Run every sampler with every seed on one space; the hypervolume over evaluations.

    Args:
        search_config: the tables ``search_space`` and ``strategy``; ``n_trials`` and ``timeout``
            hold for each run, and ``n_jobs`` processes share the runs.
        save_dir: folder for comparison.json, .csv and .png; if there is one, ``<save_dir>-v1`` …
        seeds: the seeds, or how many from `seed` on.
        resume: continue in `save_dir`: runs that are finished there are not done again.
        imports: files of the user's that processes have to read first.
        context: what `chop.actions.search` takes, too: ``task``, ``accelerator``, ``load_name``,
            ``load_type``, ``pretrained``, ``cf_args``.
    """
    from chop.search.contest import plans_of

    config = _check_samplers(na_to_none(search_config), samplers, seeds)
    target = make_context(model, model_info, data_module, config, seed=seed, **context)
    numbers = list(range(seed, seed + seeds) if isinstance(seeds, int) else seeds)
    was_there = Path(save_dir).is_dir()
    folder = latest(Path(save_dir)) if resume else own_folder(Path(save_dir), JOURNAL)
    plans = plans_of(config, samplers, numbers)
    jobs = min(config.sampling.n_jobs, len(plans))
    choice = replace(config.sampling.choice, slots=jobs, batch=1)
    is_new = not (was_there and folder == Path(save_dir))
    beginning = nullcontext() if resume else undone_if_it_fails(folder, is_new)
    threads = num_threads or (None if choice.kind == SERIAL else 1)
    with using_threads(threads, operations_of(target)) as used:
        engine = make_engine(choice, used, imports)
        comparison, size = _run_contest(
            target, config, writable_folder(folder), plans, engine, beginning
        )
    found = comparison.result(size)
    _write(folder, found, comparison.csv(), config.strategy.setup.plots)
    return ComparisonResult(folder, found.model_dump(mode="json"))


def _check_samplers(
    tables: Mapping[str, Any], samplers: Sequence[str], seeds: int | Sequence[int]
) -> "SearchConfig":
    """The configuration, if these samplers can be compared on it with these seeds."""
    if not seeds:
        raise ConfigError("a comparison needs at least one seed")
    if not samplers:
        raise ConfigError("a comparison needs at least one sampler")
    strategy = tables.get("strategy", {})
    setup = {**strategy.get("setup", {}), "compare": list(samplers)}
    config = parse_search({**tables, "strategy": {**strategy, "setup": setup}})
    if config.strategy.setup.storage is not None:
        raise ConfigError("a comparison keeps its runs in its own folder: leave out storage")
    return config


def _run_contest(
    context: "SearchContext",
    config: "SearchConfig",
    folder: Path,
    plans: "list[Plan]",
    engine: "TrialEngine",
    beginning: AbstractContextManager[None],
) -> "tuple[Comparison, int]":
    """Do all runs on one space; return what they come to, and the size of that.

    Args:
        beginning: what is done until the first run begins.
    """
    from chop.results.comparison import Comparison
    from chop.search.contest import Contest

    stated = config.search_space
    with beginning:
        space = make_space(stated.name, context, stated.setup, stated.seed)
        logger.info("The search space has %s configurations", f"{space.size:,}")
        problem = SearchJob(context, config, folder, {}).problem(space)
        contest = Contest(space, config, folder, problem, engine, _tell)
        contest.check(plans)
    runs = contest.run(plans)
    outcomes = contest.outcomes()
    complete = len(outcomes) == space.size
    return Comparison(config, runs, outcomes, complete=complete), space.size


def _tell(run: "Run") -> None:
    logger.info("%s, seed %d: %d distinct configurations, %d proposals were repeats",
                run.sampler, run.seed, len(run.keys), run.repeats)  # fmt: skip


def _write(folder: Path, found: "SamplerComparison", evaluations: str, plot: bool) -> None:
    """Write and print what was found."""
    found.save(folder)
    write_text(folder / COMPARISON_TABLE, evaluations)
    if plot:
        write_png(folder / COMPARISON_CHART, [[found.chart()]])
    logger.info(
        "Evaluations until a share of the hypervolume of %s, median and range of the runs:\n%s",
        found.normalised_by, found.table(), extra=RESULT,
    )  # fmt: skip
    logger.info("The comparison is in %s", folder, extra=RESULT)
