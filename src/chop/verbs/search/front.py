"""`chop.search`: a front of quantised networks from any module and any loaders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from chop.errors import ConfigError, UnknownNameError
from chop.logger import quietly
from chop.ops.table import OPS
from chop.passes.graph.transforms.folding import folded_types
from chop.results.front import SearchResult
from chop.runs import SEARCH, SOFTWARE
from chop.search.metrics import METRICS
from chop.search.runners import HW_RUNNERS, SW_RUNNERS
from chop.search.samplers import SAMPLERS
from chop.tasks import NUMBERS, Task
from chop.verbs.common.rows import adapt, module_of, module_project, one_line, searchable, splits
from chop.verbs.search.job import search

LEARNED = "learned"
COST = "ebops"
WIDTHS = (3, 4, 6, 8)
OF_RUN = ("accelerator", "num_threads", "load_name", "load_type", "cf_args")
"""Settings of the run that `search` takes beside those of the strategy."""


def search_module(  # noqa: PLR0913  # all but the first by name
    model: nn.Module,
    *,
    train: Iterable[Any] | None = None,
    val: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    data: Any = None,
    strategy: str = LEARNED,
    task: str | None = None,
    objectives: Sequence[str] | None = None,
    project: str | Path | None = None,
    seed: int = 0,
    resume: bool = False,
    widths: Sequence[int] = WIDTHS,
    verbose: bool = False,
    **setup: Any,
) -> SearchResult:
    """Search for quantised forms of a trained model, as ``ch search`` does.

    Args:
        train, val, test: loaders of pairs (inputs, labels). Points are chosen by `val`; `test` is
            looked at when the search is over.
        data: in place of loaders: a data module of ours or of Lightning.
        strategy: ``learned`` trains the width of every weight; else the name of a sampler, such as
            ``tpe``, which tries `widths` of each layer.
        task, verbose: as for `train`.
        objectives: metrics, as listed by ``ch info runners``; by default the primary metric
            (``accuracy``, of a regression ``mae``) and ``ebops``.
        project: the folder of the run; by default as for `train`.
        setup: the keys of ``[search.strategy.setup]``: n_trials, cycles, epochs, float_epochs …;
            and accelerator, num_threads, load and load_type, as ``ch search`` has them.
    """
    rows = rows_given(train, val, test, data)
    model = module_of(model, "search")
    setup["load_name"] = setup.pop("load", setup.get("load_name"))
    of_run = {name: found for name in OF_RUN if (found := setup.pop(name, None)) is not None}
    with quietly(not verbose), one_line("search"):
        what = adapt(searchable(model), rows, task, cast=True)
        wanted = (what.task.primary_metric, COST) if objectives is None else objectives
        tables = {
            "strategy": {**strategy_tables(strategy, setup), **runner_tables(wanted, what.task)},
            "search_space": space_tables(what.model, strategy, widths),
        }
        return search(
            what.model, None, what.rows, tables, task=what.task.name, seed=seed,
            save_dir=module_project(project, model) / SOFTWARE / SEARCH, resume=resume,
            pretrained=True, verbose=verbose, **of_run,
        )  # fmt: skip


def rows_given(train: Any, val: Any, test: Any, data: Any) -> Any:
    """Return the loaders by the names of their splits, or the data module in their place."""
    if (train is None or val is None) == (data is None):
        raise ConfigError("search: give train= and val=, or data=")
    return splits(train=train, val=val, test=test) if data is None else data


def strategy_tables(strategy: str, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return the strategy. The model comes trained, unless epochs of training are asked for."""
    if strategy == LEARNED:
        return {"name": LEARNED, "setup": {"float_epochs": 0, "normalise": False, **setup}}
    if strategy.lower() not in SAMPLERS:
        raise UnknownNameError("strategy", strategy, (LEARNED, *SAMPLERS))
    return {"name": "optuna", "setup": {"sampler": strategy, **setup}}


def space_tables(model: nn.Module, strategy: str, widths: Sequence[int]) -> dict[str, Any]:
    """Return the space: all widths by training, or some widths for each product of the model."""
    if strategy == LEARNED:
        return {"name": "graph/quantize/learned_widths"}
    config: dict[str, Any] = {"name": ["integer"]}
    for role in ("data_in", "weight"):
        config |= {f"{role}_width": list(widths), f"{role}_frac_width": ["auto"]}
    config |= {"bias_width": [max(widths) + 4], "bias_frac_width": ["auto"]}
    products = {
        op.name: {"config": config}
        for op in OPS.values()
        if op.module is not None and op.multiplies and op.quantizable
        if any(isinstance(each, op.module) for each in model.modules())
    }
    norms = folded_types(model)
    products |= {name: {"config": config} for name in norms}
    if not products:
        raise ConfigError(
            f"search: {type(model).__name__} has no layer with products, such as nn.Linear"
        )
    return {
        "name": "graph/quantize/mixed_precision_ptq",
        "setup": {"by": "type", **({"fold": True} if norms else {})},
        "seed": {"default": {"config": {"name": [None]}}, **products},
    }


def runner_tables(objectives: Sequence[str], task: Task) -> dict[str, Any]:
    """The runners that measure the objectives, and the directions that are usually wanted."""
    evaluation = task.runner
    found: dict[str, Any] = {"sw_runner": {evaluation: {}}, "hw_runner": {}, "metrics": {}}
    measured = {
        each.name: (kind, runner.name)
        for kind, registry in (("hw_runner", HW_RUNNERS), ("sw_runner", SW_RUNNERS))
        for runner in reversed([*registry.values()])  # the first that measures something wins
        if runner.regression in (None, task is NUMBERS)
        for each in runner.metrics
    }
    for metric in objectives:
        direction = METRICS[metric].direction if metric in METRICS else None
        if metric not in measured or direction is None:
            known = [name for name in measured if name in METRICS and METRICS[name].direction]
            where = f"task {task.name!r}" if task is NUMBERS else ""
            raise UnknownNameError("objective", metric, known, where)
        kind, runner = measured[metric]
        found[kind].setdefault(runner, {})
        found["metrics"][metric] = {"direction": direction}
    return found
