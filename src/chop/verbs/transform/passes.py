"""Transform: run the passes of a configuration on a model, in the order of the file, and save."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop.config.run import RunConfig
from chop.dataset.inputs import (
    InputGenerator,
    as_example,
    get_cf_args,
    rows_for,
    targets_for,
)
from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_model
from chop.logger import RESULT, get_logger, only_results
from chop.models import MaseModelInfo
from chop.passes import PASSES
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    save_mase_graph_interface_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.transforms import fold_normalisation_transform_pass
from chop.passes.graph.utils import deepcopy_mase_graph
from chop.runs import GRAPH, TRANSFORM, latest
from chop.search.front.accuracy import copies
from chop.training.metrics import evaluate_model
from chop.training.results import Result
from chop.verbs.common.next_commands import next_of_graph, show_next
from chop.verbs.common.session import (
    UNTRAINED,
    ActionResult,
    Session,
    action_rows,
    facts_of,
    features_of,
)

logger = get_logger("chop")

QUANTISING = ("quantize", "quantize_whole")
MOST_ROWS = 20_000
"""Rows on which a network is measured before and after: enough to see half a percent."""
OFFERED_PATHS = ("save_dir", "file_name", "save_path")
"""Arguments that a file may leave out, because the run knows a place in its own folder."""


@dataclass(frozen=True)
class PassContext:
    """The arguments that a run can give to passes by their names, unless the file sets them."""

    model_name: str
    save_dir: Path
    batches: Callable[[], InputGenerator]

    @cached_property
    def input_generator(self) -> InputGenerator:
        return self.batches()

    @cached_property
    def dummy_in(self) -> dict[str, Tensor]:
        return dict(next(iter(self.input_generator)))

    def offers(self, pass_name: str) -> dict[str, Callable[[], Any]]:
        """The arguments there are, each made when it is asked for."""
        return {
            "model_name": lambda: self.model_name,
            "input_generator": lambda: self.input_generator,
            "dummy_in": lambda: self.dummy_in,
            "save_dir": lambda: self.save_dir / pass_name,
            "file_name": lambda: self.save_dir / f"{pass_name}.txt",
            "save_path": lambda: self.save_dir / f"{pass_name}.txt",
        }

    def complete(self, pass_name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a pass: those of the file, then those that the run can give."""
        schema = PASSES[pass_name].schema
        wanted = schema.model_fields if schema else ()
        offers = self.offers(pass_name)
        return {name: offers[name]() for name in wanted if name in offers} | dict(given)


def check_transform(config: RunConfig) -> None:
    """Refuse a run without passes, an unknown pass, and arguments that do not fit their pass."""
    if not config.passes:
        raise ConfigError("transform needs --config with a [passes.<name>] table for each pass")
    for name, given in config.passes.items():
        schema = PASSES[name].schema
        if schema is not None:  # a pass without one takes whatever the file says
            offered = {path: path for path in OFFERED_PATHS if path in schema.model_fields}
            PASSES[name].parse({**offered, **given})


def run_transform(session: Session[RunConfig]) -> ActionResult:
    """Transform as the command line asks; what is to be in the record of the run."""
    measured = BeforeAndAfter(session.data_module)
    watch = measured if session.is_trained else nobody
    graph = transform_session(session, session.software_folder / TRANSFORM, watch=watch)
    found = measured.compare(graph)
    config, place = session.config, latest(session.software_folder / TRANSFORM / GRAPH)
    show_next(next_of_graph(graph, place, model=config.model, imports=config.imports))
    facts = features_of(graph.model, session.data_module) | ({"accuracies": found} if found else {})
    return ActionResult(session.software_folder, facts)


def nobody(graph: MaseGraph) -> None:
    """Watches a graph that nobody watches."""


class BeforeAndAfter:
    """Measures the network that comes and the one that goes, on the same validation rows."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.before: Result | None = None

    def __call__(self, graph: MaseGraph) -> None:
        """Measure the network before the first pass."""
        if self.rows.dataset_info.validation_split_available:
            self.before = self._evaluate(graph)

    def compare(self, graph: MaseGraph) -> dict[str, Any]:
        """Say what the passes have cost; what was found, for the record."""
        if self.before is None:
            return {}
        found = {"before": self.before, "after": self._evaluate(graph)}
        sure = {name: each.primary for name, each in found.items()}
        words = self.before.task.words
        logger.info(
            "%s on the same %s validation %s: %s before, %s after", words[0].upper() + words[1:],
            f"{self.before.rows:,}", self.before.unit, *sure.values(), extra=RESULT,
        )  # fmt: skip
        return {name: each.model_dump() for name, each in sure.items()}

    def _evaluate(self, graph: MaseGraph) -> Result:
        with only_results():  # the passes were told how the rows are scaled, and so was the user
            scaled = rows_for(graph.model, self.rows)
        rows = first_rows(scaled.val_dataloader(), MOST_ROWS)
        device = next((value.device for value in graph.model.parameters()), "cpu")
        targets = targets_for(graph.model, self.rows)
        return evaluate_model(graph.model, copies(rows), device, targets)


def first_rows(batches: Iterable[Any], most: int) -> Iterator[Any]:
    """Batches until there are `most` rows."""
    seen = 0
    for features, labels in batches:
        if seen >= most:
            return
        seen += len(labels)
        yield features, labels


def transform_session(
    session: Session[RunConfig],
    folder: Path,
    *,
    save: bool = True,
    watch: Callable[[MaseGraph], None] = nobody,
) -> MaseGraph:
    """The graph that the passes of a configuration make; as `transform`."""
    config = session.config
    graph, _ = transform(
        session.model,
        session.model_info,
        session.data_module,
        config.passes,
        save_dir=folder,
        save=save,
        watch=watch,
        task=config.task,
        load_name=config.load_name,
        load_type=config.load_type,
        cf_args=config.cf_args,
        pretrained=config.is_pretrained,
    )
    return graph


def transform(  # noqa: PLR0913  # what a run consists of, by the names of the labs
    model: nn.Module,
    model_info: MaseModelInfo | None = None,
    data_module: Any = None,
    passes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    save_dir: str | Path,
    save: bool = True,
    watch: Callable[[MaseGraph], None] = nobody,
    task: str = "cls",
    load_name: str | None = None,
    load_type: str = "mz",
    cf_args: Mapping[str, Any] | None = None,
    pretrained: bool = False,
) -> tuple[MaseGraph, dict[str, Any]]:
    """Run each pass of `passes` in turn; the graph and what every pass found out.

    Args:
        model_info: what is known of a registered model; any other is called by its class.
        data_module: as for `train`; passes that look at rows take those for training.
        passes: the arguments of each pass by its name, as in ``[passes.<name>]``.
        save_dir: folder of reports and, with `save`, of ``transformed_ckpt``.
        watch: is called with the graph before the first pass.
        cf_args: arguments of the model that are fixed while it is traced.
        pretrained: whether `model` came with weights that mean something.
    """
    if passes is None:
        raise ConfigError("transform: passes is missing: give passes={name: arguments, …}")
    info, rows = facts_of(model, model_info), action_rows(data_module, "train", "transform")
    if load_name is not None:
        model = load_model(load_name, load_type, model)
    elif not pretrained:
        logger.warning(UNTRAINED)
    logger.info("Transforming model '%s'...", info.name)
    context = PassContext(info.name, folder := Path(save_dir), batches_for(model, info, rows, task))
    fixed = dict(cf_args or get_cf_args(info, task, model))
    rows_seen = as_example(context.dummy_in)
    graph = with_metadata(MaseGraph(model, fixed, example_inputs=rows_seen), context)
    watch(graph)
    found = {}
    for name in passes:
        before = graph.preprocessing
        args = _arguments(name, passes, context)
        graph, found[name] = _run_pass(graph, name, args, context)
        if graph.preprocessing != before:  # the passes that follow need rows of another scale
            context = PassContext(info.name, folder, batches_for(graph.model, info, rows, task))
    if save:
        graph, _ = save_mase_graph_interface_pass(graph, folder / GRAPH)
    logger.info("Transformation is completed")
    return graph, found


def batches_for(
    model: nn.Module, info: MaseModelInfo, rows: Any, task: str
) -> Callable[[], InputGenerator]:
    """Makes batches of training rows, scaled as the model was trained on them."""
    scaled = rows_for(model, rows)
    return lambda: InputGenerator(info, scaled, task, which_dataloader="train")


def with_metadata(graph: MaseGraph, context: PassContext) -> MaseGraph:
    """The graph with the metadata that passes read."""
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": context.dummy_in})
    graph, _ = add_software_metadata_analysis_pass(graph)
    return graph


def _arguments(
    name: str, passes: Mapping[str, Mapping[str, Any]], context: PassContext
) -> dict[str, Any]:
    """The arguments of one of several passes."""
    given, names = passes[name], list(passes)
    args = context.complete(name, given)
    if name in QUANTISING and "calibrate" in names[names.index(name) :]:
        args["input_generator"] = given.get("input_generator")  # that pass sets the scales
    return args


def _run_pass(
    graph: MaseGraph, name: str, args: dict[str, Any], context: PassContext
) -> tuple[MaseGraph, dict[str, Any]]:
    before = deepcopy_mase_graph(graph) if name in QUANTISING else None
    graph, info = PASSES[name](graph, args)
    if before is not None:
        if info.get("folded"):
            before, _ = fold_normalisation_transform_pass(before)
        folder = context.save_dir / name
        _, found = summarize_quantization_analysis_pass(before, graph, save_dir=folder)
        info = {**info, "macs": found["macs"], "not_rounded": found["not_rounded"]}
    return graph, info
