"""Compare samplers: how many evaluations each needs on one space."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
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
    COMPARISON_FILE,
    COMPARISON_TABLE,
    JOURNAL,
    latest,
    own_folder,
)
from chop.search.config import parse_search
from chop.search.spaces.space import make_space
from chop.search.study.storage import Place
from chop.verbs.search.files import undone_if_it_fails
from chop.verbs.search.job import SearchJob, make_context, operations_of

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule
    from chop.models import MaseModelInfo
    from chop.results.comparison import Comparison
    from chop.search.config import SearchConfig
    from chop.search.contest import Plan, Run
    from chop.search.processes import Task
    from chop.search.spaces.space import SearchContext, SearchSpace

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
    tables = na_to_none(search_config)
    config = _checked(tables, samplers)
    found = make_context(model, model_info, data_module, config, seed=seed, **context)
    numbers = list(range(seed, seed + seeds) if isinstance(seeds, int) else seeds)
    if not numbers:
        raise ConfigError("a comparison needs at least one seed")
    was_there = Path(save_dir).is_dir()
    folder = latest(Path(save_dir)) if resume else own_folder(Path(save_dir), JOURNAL)
    jobs = config.sampling.n_jobs
    threads = num_threads or (1 if jobs > 1 else None)
    with using_threads(threads, operations_of(found)) as used:
        contest = ContestJob(found, config, tables, writable_folder(folder))
        contest.imports = tuple(imports)
        if not resume:
            is_new = not (was_there and folder == Path(save_dir))
            contest.beginning = undone_if_it_fails(folder, is_new)
        comparison, size = contest.run(samplers, numbers, used)
    summary = comparison.as_dict(size)
    _write(folder, comparison, summary, config.strategy.setup.plots)
    return ComparisonResult(folder, summary)


def _checked(tables: Mapping[str, Any], samplers: Sequence[str]) -> "SearchConfig":
    """The configuration, if these samplers can be compared on it."""
    if not samplers:
        raise ConfigError("a comparison needs at least one sampler")
    strategy = tables.get("strategy", {})
    setup = {**strategy.get("setup", {}), "compare": list(samplers)}
    config = parse_search({**tables, "strategy": {**strategy, "setup": setup}})
    if config.strategy.setup.storage is not None:
        raise ConfigError("a comparison keeps its runs in its own folder: leave out storage")
    return config


class ContestJob:
    """One call of `compare`, step by step."""

    def __init__(
        self,
        context: "SearchContext",
        config: "SearchConfig",
        tables: Mapping[str, Any],
        folder: Path,
    ) -> None:
        self.context = context
        self.config = config
        self.tables = tables
        self.folder = folder
        self.imports: tuple[str, ...] = ()
        self.beginning: AbstractContextManager[None] = nullcontext()
        """What is done until the first run begins."""

    def run(
        self, samplers: Sequence[str], seeds: Sequence[int], threads: int
    ) -> "tuple[Comparison, int]":
        """All runs on one space, and the size of that."""
        from chop.results.comparison import Comparison
        from chop.search.contest import Contest, plans_of
        from chop.search.processes import helpers

        stated = self.config.search_space
        with self.beginning:
            space = make_space(stated.name, self.context, stated.setup, stated.seed)
            logger.info("The search space has %s configurations", f"{space.size:,}")
            plans = plans_of(self.config, samplers, seeds)
            problem = SearchJob(self.context, self.config, {}, self.folder, {}).problem(space)
            contest = Contest(space, self.tables, self.folder, problem, _tell)
            contest.check(plans)
        jobs = min(self.config.sampling.n_jobs, len(plans))
        with helpers(self._task(plans, problem, threads), jobs - 1) as others:
            runs = contest.run(plans)
            for process in others:
                process.join()
        outcomes = contest.measure.outcomes()
        complete = len(outcomes) == space.size
        return Comparison(self.config, runs, outcomes, complete=complete), space.size

    def _task(self, plans: "list[Plan]", problem: Mapping[str, Any], threads: int) -> "Task":
        from chop.search.processes import make_task

        return make_task(
            self.context, work=partial(compete, plans=plans), search=self.tables,
            place=Place(str(self.folder / JOURNAL), "runs"), problem=problem,
            seed=self.context.seed, threads=threads, imports=self.imports,
        )  # fmt: skip


def compete(
    task: "Task", space: "SearchSpace", config: "SearchConfig", worker: int, plans: "list[Plan]"
) -> None:
    """Take part in a comparison, as one of the processes that were started together."""
    from chop.search.contest import Contest

    Contest(space, task.search, Path(task.place.storage).parent, task.problem).run(plans)


def _tell(run: "Run") -> None:
    logger.info("%s, seed %d: %d distinct configurations, %d proposals were repeats",
                run.sampler, run.seed, len(run.keys), run.repeats)  # fmt: skip


def _write(folder: Path, comparison: "Comparison", summary: dict[str, Any], plot: bool) -> None:
    write_text(folder / COMPARISON_FILE, json.dumps(summary, indent=2) + "\n")
    write_text(folder / COMPARISON_TABLE, comparison.csv())
    if plot:
        from chop.results.comparison_chart import StoredComparison, comparison_chart

        chart = comparison_chart(StoredComparison.model_validate(summary))
        write_png(folder / COMPARISON_CHART, [[chart]])
    logger.info(
        "Evaluations until a share of the hypervolume of %s, median and range of the runs:\n%s",
        comparison.normalised_by, comparison.table(), extra=RESULT,
    )  # fmt: skip
    logger.info("The comparison is in %s", folder, extra=RESULT)
