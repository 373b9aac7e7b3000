"""`chop.search`: a front of quantised networks from any module and any loaders."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import fx, nn

from chop.charts import embedded
from chop.errors import ConfigError, UnknownNameError
from chop.export.exporting import Exported, export
from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import quietly
from chop.markup import table
from chop.ops.table import OPS
from chop.results.table import Front, front_table, metrics_line, whole_columns
from chop.runs import EXPORT, SEARCH, SOFTWARE
from chop.search.front.accuracy import ACCURACY, Measured
from chop.search.front.verification import rows_to_compare
from chop.search.metrics import METRICS
from chop.search.runners import HW_RUNNERS, SW_RUNNERS
from chop.search.samplers import SAMPLERS
from chop.search.spaces.space import SearchSpace
from chop.tasks import NUMBERS, Task
from chop.verbs.common.rows import module_of, one_line, prepare, project_of, searchable, splits
from chop.verbs.report import ReportRequest, write_page
from chop.verbs.search.files import SearchResult
from chop.verbs.search.job import search as search_action

if TYPE_CHECKING:
    from chop.search.study.trial import Trial

LEARNED = "learned"
COST = "ebops"
WIDTHS = (3, 4, 6, 8)
OF_RUN = ("accelerator", "num_threads", "load_name", "load_type", "cf_args")
"""Settings of the run that `search` takes beside those of the strategy."""
PICTURE = "front.png"


@dataclass(frozen=True, repr=False)
class Point:
    """One network of a front."""

    place: int
    trial: "Trial"
    front: Front
    space: SearchSpace
    folder: Path

    @property
    def metrics(self) -> dict[str, float]:
        """All that was measured of it."""
        return self.trial.metrics

    @property
    def is_verified(self) -> bool:
        """Whether its integers were seen to compute the same."""
        mark = self.front.verified.get(self.trial.number)
        return mark is not None and bool(mark.equal) and mark.promised

    @property
    def test(self) -> Measured | None:
        """What decides on test rows, with its interval, if there are any."""
        known = self.front.judged.get(self.trial.number)
        return None if known is None else known.test

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy on test rows, if there are any; a regression has none."""
        return self.test.value if self.test and self.test.metric == ACCURACY else None

    @cached_property
    def graph(self) -> MaseGraph:
        """The quantised graph, with metadata."""
        return self.space.candidate(dict(self.trial.config)).graph

    @property
    def model(self) -> fx.GraphModule:
        """The quantised module."""
        return self.graph.model

    def __repr__(self) -> str:
        return f"best_{self.place}: {metrics_line(self.metrics)}"

    def export(
        self, to: str, output: str | Path | None = None, *, rows: int = 2000, **settings: Any
    ) -> Exported:
        """Write it as ``integer``, ``c``, ``onnx``, ``qonnx`` or ``verilog``, checked.

        Among the rows of the check are those for validation.

        Args:
            output: the folder; by default beside the results of the search.
            settings: for ``verilog``: stages, clock_ns, stream, synthesise, most_luts.
        """
        target = output or self.folder / EXPORT.format(f"{to}_best_{self.place}")
        source = f"trial {self.trial.number} of {self.folder}"
        real = {"x": rows_to_compare(self.space.context)[:rows]}
        return export(
            self.graph, to, target, rows=rows, inputs=real, source=source,
            notes={"real": "rows for validation"}, **settings,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class FrontOfNetworks(Sequence[Point]):
    """What a search has found: networks that no other beats, the best by the first objective first.

    It shows itself as a table, in a notebook with a picture.
    """

    points: tuple[Point, ...]
    found: Front
    folder: Path
    """Of all results."""

    @overload
    def __getitem__(self, place: int) -> Point: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Point, ...]: ...

    def __getitem__(self, place: int | slice) -> Point | tuple[Point, ...]:
        return self.points[place]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def report(self) -> Path:
        """Write the page of the whole run."""
        return write_page(ReportRequest(self.folder.parent.parent))

    def __repr__(self) -> str:
        return front_table(self.found, shutil.get_terminal_size().columns)

    def _repr_html_(self) -> str:
        """The table and the picture, for notebooks."""
        columns = whole_columns(self.found)
        rows = list(zip(*columns.values(), strict=True))
        drawn = embedded(self.folder / PICTURE, "The front")
        return table(list(columns), rows, "The front") + drawn


def search(  # noqa: PLR0913  # all but the first by name
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
) -> FrontOfNetworks:
    """Search for quantised forms of a trained model, as ``ch search`` does.

    Args:
        train, val, test: loaders of pairs (inputs, labels). Points are chosen by `val`; `test` is
            looked at when the search is over.
        data: in place of loaders: a data module of ours or of Lightning.
        strategy: ``learned`` trains the width of every weight; else the name of a sampler, such as
            ``tpe``, which tries `widths` of each layer.
        task, verbose: as for `train`.
        objectives: metrics, as listed by ``ch info runners``; by default what decides of the task
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
        what = prepare(searchable(model), rows, task, cast=True)
        wanted = (what.task.decides, COST) if objectives is None else objectives
        tables = {
            "strategy": {**strategy_tables(strategy, setup), **runner_tables(wanted, what.task)},
            "search_space": space_tables(what.model, strategy, widths),
        }
        result = search_action(
            what.model, None, what.rows, tables, task=what.task.name, seed=seed,
            save_dir=project_of(project, model) / SOFTWARE / SEARCH, resume=resume,
            pretrained=True, verbose=verbose, **of_run,
        )  # fmt: skip
    return front_of(result)


def rows_given(train: Any, val: Any, test: Any, data: Any) -> Any:
    """Return the loaders by the names of their splits, or the data module in their place."""
    if (train is None or val is None) == (data is None):
        raise ConfigError("search: give train= and val=, or data=")
    return splits(train=train, val=val, test=test) if data is None else data


def front_of(result: SearchResult) -> FrontOfNetworks:
    """What a search that has come to its end has found, as it is shown."""
    assert result.front is not None
    assert result.space is not None
    points = tuple(
        Point(place, trial, result.front, result.space, result.folder)
        for place, trial in enumerate(result.best)
    )
    return FrontOfNetworks(points, result.front, result.folder)


def strategy_tables(strategy: str, setup: Mapping[str, Any]) -> dict[str, Any]:
    """How it is searched. The model comes trained, unless epochs of training are asked for."""
    if strategy == LEARNED:
        return {"name": LEARNED, "setup": {"float_epochs": 0, "normalise": False, **setup}}
    if strategy.lower() not in SAMPLERS:
        raise UnknownNameError("strategy", strategy, (LEARNED, *SAMPLERS))
    return {"name": "optuna", "setup": {"sampler": strategy, **setup}}


def space_tables(model: nn.Module, strategy: str, widths: Sequence[int]) -> dict[str, Any]:
    """What is searched: all widths by training, or some widths for each product of the model."""
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
    if not products:
        raise ConfigError(
            f"search: {type(model).__name__} has no layer with products, such as nn.Linear"
        )
    return {
        "name": "graph/quantize/mixed_precision_ptq",
        "setup": {"by": "type"},
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
