"""Search: measure configurations of a space, and keep the best of them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.config.layers import na_to_none
from chop.config.run import RunConfig
from chop.dataset.inputs import rows_for
from chop.devices import device_of, forward_operations, using_threads
from chop.errors import ConfigError
from chop.files import all_tried, one_at_a_time, writable_folder
from chop.loading.networks import load_model
from chop.loading.paths import loadable
from chop.logger import get_logger
from chop.results.front import SearchResult
from chop.runs import COMPARISON, FRONT_GRAPHS, SEARCH
from chop.search.config import SearchConfig, StrategySetup, check_runners, parse_search
from chop.search.engines import SERIAL, EngineChoice, make_engine
from chop.search.engines.engine import evaluate_all
from chop.search.spaces.space import SPACES, SearchContext, SearchSpace, key_of, make_space
from chop.search.study.workers import terminable
from chop.search.sweeps.hyperparameters import CHOICES
from chop.tasks import NUMBERS, TOKENS, task_named
from chop.verbs.common.session import (
    UNTRAINED,
    ActionResult,
    Session,
    action_rows,
    check_task_of_labels,
    facts_of,
    features_of,
    lightning_settings,
)
from chop.verbs.search.files import (
    SearchReport,
    study_place,
    undone_if_it_fails,
)

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule
    from chop.models import MaseModelInfo
    from chop.search.front.verification import Verified
    from chop.search.strategy import Strategy

logger = get_logger("chop")

NO_DIFFERENCE = {"log_every_n_steps", "num_threads"}
"""Settings of training that make no other network."""


def check_search(config: RunConfig) -> None:
    """Refuse a space, a sampler, a runner or a metric that does not exist, or is of no use here."""
    if config.num_devices != 1:
        raise ConfigError(
            f"--num-devices {config.num_devices} is for training; a search uses one device, and "
            "its processes are search.strategy.setup.n_jobs"
        )
    check_runners(parse_search(with_engine(config)), config.task)


@terminable()
def run_search(session: Session[RunConfig]) -> ActionResult | None:
    """Search as the command line asks; what is to be in the record of the run."""
    config = session.config
    names = ("dataset_path", "label_column", "odd_class", "cf_args", "is_pretrained", "accelerator")
    what = (session.model, session.model_info, session.data_module, tables_of(config))
    how: dict[str, Any] = {
        "task": config.task,
        "seed": config.seed,
        "accelerator": config.accelerator,
        "load_name": config.load_name,
        "load_type": config.load_type,
        "pretrained": config.is_pretrained,
        "cf_args": config.cf_args,
        "num_threads": config.num_threads,
        "imports": config.imports,
    }
    setup = parse_search(with_engine(config)).strategy.setup
    if isinstance(setup, StrategySetup) and setup.compare:
        from chop.verbs.search.comparing import compare

        save_dir = session.software_folder / COMPARISON
        compare(
            *what, save_dir=save_dir, samplers=setup.compare, seeds=setup.repeats,
            resume=config.resume, **how,
        )  # fmt: skip
        return None
    settings = {name: value for name in names if (value := getattr(config, name))}
    save_dir = session.software_folder / SEARCH
    result = search(
        *what, save_dir=save_dir, resume=config.resume, settings=settings, verbose=config.verbose,
        **how,
    )  # fmt: skip
    return ActionResult(
        result.folder, {"search": result.problem.model_dump(mode="json"), **result.features}
    )


def with_engine(config: RunConfig) -> dict[str, Any]:
    """``[search]`` with the engine of the command line in place of that of the file.

    A cluster may run code in the search, so a file alone cannot name one of another machine.
    """
    stated = {name: getattr(config, name, None) for name in ("engine", "address")}
    given = {name: value for name, value in stated.items() if value is not None}
    tables: dict[str, Any] = config.search
    strategy = tables.get("strategy", {})
    stored = strategy.get("setup", {}) if isinstance(strategy, dict) else None
    if not isinstance(stored, dict):
        return tables  # parsing says what is wrong with them
    setup = {**stored, **given}
    address = setup.get("address")
    if address not in (None, "auto", "local", stated["address"]):
        raise ConfigError(
            f"search.strategy.setup.address: a cluster can run code here: if you trust "
            f"{address!r}, add --address {address}"
        )
    if not given:
        return tables
    return {**tables, "strategy": {**strategy, "setup": setup}}


def tables_of(config: RunConfig) -> dict[str, Any]:
    """``[search]``; where it trains, settings that the run itself states hold for all trainings."""
    tables = with_engine(config)
    space = tables["search_space"]
    if not SPACES[space["name"]].starts_afresh:
        return tables
    usual = lightning_settings(RunConfig())
    stated = {
        name: value
        for name, value in lightning_settings(config).items()
        if name in CHOICES - NO_DIFFERENCE and value != usual[name]
    }
    setup = space.get("setup", {})
    fixed = {**stated, **setup.get("fixed", {})}
    return {**tables, "search_space": {**space, "setup": {**setup, "fixed": fixed}}}


def search(  # noqa: PLR0913  # what a run consists of, by the names of the labs
    model: "nn.Module",
    model_info: "MaseModelInfo | None" = None,
    data_module: Any = None,
    search_config: Mapping[str, Any] | None = None,
    *,
    save_dir: str | Path,
    task: str = "cls",
    seed: int = 0,
    accelerator: str = "cpu",
    resume: bool = False,
    load_name: str | Path | None = None,
    load_type: str = "mz",
    pretrained: bool = False,
    cf_args: Mapping[str, Any] | None = None,
    num_threads: int | None = None,
    imports: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> SearchResult:
    """Search as ``[search]`` asks; the best trials and where everything is written.

    Args:
        search_config: the tables ``search_space`` and ``strategy``.
        save_dir: folder of the study and of the results; if anything is in it, a new study goes to
            ``<save_dir>-v1`` and so on.
        pretrained: whether `model` came with weights that mean something.
        resume: continue the study in `save_dir`, or take part in it while others are at work.
        imports: files of the user's that processes have to read first.
        settings: further settings of ``ch`` for the files ``best_<n>.toml``; nothing of them runs.
        verbose: print the best trials with all metrics, in the form of the labs.
    """
    model_info, data_module = (
        facts_of(model, model_info),
        action_rows(data_module, "train", "search"),
    )
    search_config = na_to_none(search_config or {})  # a file's "NA" became none when it was read
    config = parse_search(search_config)
    if load_name is not None:
        load_name, load_type = loadable(Path(load_name), load_type)
    context = make_context(
        model, model_info, data_module, config, task=task, seed=seed, accelerator=accelerator,
        load_name=load_name, load_type=load_type, pretrained=pretrained, cf_args=cf_args,
    )  # fmt: skip
    how = {"load_name": str(load_name), "load_type": load_type} if load_name else {}
    run_settings = {
        "model": model_info.name, "dataset": data_module.name, "task": task,
        "batch_size": data_module.batch_size, "seed": seed, **how, **(settings or {}),
    }  # fmt: skip
    job = SearchJob(context, config, Path(save_dir), run_settings, imports)
    job.verbose = verbose
    with using_threads(num_threads or job.threads, operations_of(context)) as threads:
        return job.run(resume, threads)


def make_context(  # noqa: PLR0913  # the same
    model: "nn.Module",
    model_info: "MaseModelInfo",
    data_module: "MaseDataModule",
    config: SearchConfig,
    *,
    task: str = "cls",
    seed: int = 0,
    accelerator: str = "cpu",
    load_name: str | Path | None = None,
    load_type: str = "mz",
    pretrained: bool = False,
    cf_args: Mapping[str, Any] | None = None,
) -> SearchContext:
    """Return the context of a search: the model with its weights, the data and the settings."""
    check_runners(config, task)
    check_task_of_labels(task, data_module)
    if load_name is not None:
        model = load_model(load_name, load_type, model)
    elif not (pretrained or config.starts_untrained):
        logger.warning(UNTRAINED)
    rows = rows_for(model, data_module)
    return SearchContext(
        model.eval(), model_info, rows, task, cf_args or None, device_of(accelerator),
        config.strategy.eval_mode, seed, is_trained=pretrained or load_name is not None,
    )  # fmt: skip


def operations_of(context: SearchContext) -> int:
    """The operations of one batch, which tell how many threads it is worth."""
    features = next(iter(context.dummy_in.values()))
    model = context.pristine().to(features.device)
    axes = {TOKENS.name: 2, NUMBERS.name: 0}.get(task_named(context.task).name, 1)
    return forward_operations(model, features, axes)[0]


class SearchJob:
    """One call of `search`, step by step."""

    def __init__(
        self,
        context: SearchContext,
        config: SearchConfig,
        save_dir: Path,
        settings: dict[str, Any],
        imports: Sequence[str] = (),
    ) -> None:
        self.context = context
        self.config = config
        self.save_dir = save_dir
        self.imports = tuple(imports)
        self.settings = {**settings, "imports": list(imports)} if imports else settings
        self.choice = config.strategy.setup.choice
        self.may_fork = True
        """Whether nothing of the study forbids processes that start as forks."""
        self.verbose = False
        """Whether the best trials are printed with all that was measured."""

    @property
    def threads(self) -> int | None:
        """Several processes take one thread each; a single one takes what the network is worth."""
        return None if self.choice.kind == SERIAL else 1

    def run(self, resume: bool, threads: int) -> SearchResult:
        """Build, search, report."""
        logger.info("Building search space...")
        stated = self.config.search_space
        was_there = self.save_dir.is_dir()
        place, folder = study_place(self.config, self.save_dir, resume)
        self.context = replace(self.context, folder=folder)
        from chop.search.strategy import make_strategy
        from chop.search.study.storage import open_store
        from chop.search.study.store import store_kept

        is_new = not (was_there and folder == self.save_dir)
        with (
            undone_if_it_fails(folder, is_new) if not resume else contextlib.nullcontext(),
            contextlib.ExitStack() as if_it_fails,
        ):
            space = make_space(stated.name, self.context, stated.setup, stated.seed)
            writable_folder(folder)
            store = open_store(
                place, list(self.config.directions), self.problem(space),
                objectives=self.config.objectives,
            )  # fmt: skip
            if_it_fails.callback(store.close)
            store.sync()
            store.free_the_dead()
            store.remove_unfinished(folder)
            store_kept(folder, store)
            self.may_fork = place.may_fork
            engine = make_engine(self.choice, threads, self.imports, may_fork=self.may_fork)
            found = make_strategy(space, self.config, store, engine)
            found.check()
            logger.info("The search space has %s configurations", f"{found.size:,}")
            if_it_fails.pop_all()
        try:
            return self.search(found, folder)
        finally:
            store.close()

    def report(self, found: "Strategy", folder: Path) -> SearchReport:
        """Return the writer of the results."""
        features = features_of(self.context.model, self.context.data_module)
        return SearchReport(
            self.config, found, folder, self.settings, features, verbose=self.verbose,
            check=None if self.choice.kind == SERIAL else self.check_front,
        )  # fmt: skip

    def check_front(self, configs: "list[dict[str, Any]]") -> "list[Verified]":
        """Compare configurations with their integers, on the engine of the search.

        Saved graphs are on this machine, so processes of it read them.
        """
        from chop.search.front.verification import FrontCheck

        assert self.context.folder is not None
        is_saved = (self.context.folder / FRONT_GRAPHS).is_dir()
        choice = EngineChoice(slots=self.choice.slots) if is_saved else self.choice
        engine = make_engine(choice, 1, self.imports, may_fork=self.may_fork)
        return evaluate_all(engine, FrontCheck(self.context, self.config), configs)

    def problem(self, space: SearchSpace) -> dict[str, Any]:
        """Return the facts that make the trials of two studies comparable."""
        strategy, model = self.config.strategy, self.context.model
        if space.starts_afresh:
            weights: dict[str, Any] = {"network": repr(model), "seed": self.context.seed}
        else:
            weights = {"set of weights": self.context.fingerprint()}
        choices = [repr(choice) for choice in space.tree]
        return {
            "search space": key_of({"texts": [*choices, repr(space.setup)]}),
            **weights,
            "data set": rows_read(self.context.data_module),
            "runners": {"software": strategy.sw_runner, "hardware": strategy.hw_runner},
            "metrics": {name: each.model_dump() for name, each in self.config.metrics.items()},
            "objective": list(self.config.directions),
            **strategy.setup.identity(),
        }

    def search(self, found: "Strategy", folder: Path) -> SearchResult:
        """Search; whatever ends it, the results so far are written."""
        from chop.search.study.journal import no_collections
        from chop.views.progress import make_search_progress

        logger.info("Search started...")
        is_over, ended = False, None
        try:
            with make_search_progress(found.limit, list(self.config.metrics)) as shown:
                found.progress.report = shown
                found.run()
            is_over = True
        except BaseException as error:
            ended = error
            raise
        finally:
            # Who writes last knows of all trials.
            with all_tried(ended), one_at_a_time(folder), no_collections():
                result = self.report(found, folder).write(is_over)
        logger.info("Searching is completed")
        return result


def rows_read(data_module: Any) -> str | None:
    """A text that stands for the rows and for constants of other rows that scale them, if known."""
    asked = getattr(getattr(data_module, "request", None), "preprocessing", None)
    fingerprint: str | None = data_module.fingerprint
    return fingerprint if asked is None else f"{fingerprint}, scaled as {asked.digest}"
