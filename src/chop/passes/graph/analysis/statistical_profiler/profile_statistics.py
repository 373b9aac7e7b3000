"""Statistics of chosen weights and activations, over exactly as many samples as asked for."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.ir.parameters import (
    attribute,
    module_buffers,
    module_parameters,
)
from chop.passes.base import Batches, Info, PassArgs, analysis_pass, take_rows
from chop.passes.graph.analysis.metadata_entries import (
    named_arguments,
    named_results,
)
from chop.passes.graph.analysis.statistical_profiler.stat import Statistic, create_new_stat
from chop.passes.graph.utils import By, get_mase_op, select

logger = logging.getLogger("chop")
WHERE = "pass 'profile_statistics'"
Statistics = dict[str, dict[str, Any]]


class ProfileStatisticsArgs(PassArgs):
    """The nodes to profile, the statistics, and the data.

    Args:
        by: whether the targets are operations (`type`), node names or patterns of names.
        target_weight_nodes: layers whose parameters and buffers get `weight_statistics`.
        target_activation_nodes: nodes whose inputs get `activation_statistics`.
        weight_statistics: names of statistics, each with its arguments.
        activation_statistics: the same for activations.
        input_generator: batches of inputs, required to profile activations.
        num_samples: how many rows to use; the last batch is cut to fit.
        profile_output_activation: whether to profile the outputs of these nodes too.
    """

    by: By = "type"
    target_weight_nodes: tuple[str, ...] = ()
    target_activation_nodes: tuple[str, ...] = ()
    weight_statistics: Statistics = Field(default={})
    activation_statistics: Statistics = Field(default={})
    input_generator: Batches | None = None
    num_samples: int | None = Field(default=None, gt=0)
    profile_output_activation: bool = False


@analysis_pass("profile_statistics", requires=("common", "software"))
def profile_statistics_analysis_pass(
    graph: MaseGraph, args: ProfileStatisticsArgs
) -> tuple[MaseGraph, Info]:
    """Collect statistics of chosen weights and activations into the software metadata."""
    for statistics in (args.weight_statistics, args.activation_statistics):
        new_statistics(statistics)  # a misspelt statistic is found before the model runs
    targets = select(graph.nodes, args.by, args.target_weight_nodes, WHERE)
    for node in targets:
        profile_weights(graph, node, args.weight_statistics)
    chosen = select(graph.nodes, args.by, args.target_activation_nodes, WHERE)
    fed = profile_activations(graph, chosen, args) if chosen else 0
    found = {node.name: findings(node) for node in graph.nodes if node in targets or node in chosen}
    return graph, {"samples": fed, "statistics": found}


def new_statistics(statistics: Statistics) -> dict[str, Statistic]:
    """Fresh statistics: no two tensors share one."""
    return {name: create_new_stat(name, **kwargs) for name, kwargs in statistics.items()}


def statistics_entry(node: fx.Node, side: str, name: str) -> dict[str, Any]:
    """The entry that holds the statistics of an argument or result of a node."""
    sides = node.meta["mase"].parameters["software"].setdefault(side, {})
    stat: dict[str, Any] = sides.setdefault(name, {}).setdefault("stat", {})
    return stat


def findings(node: fx.Node) -> dict[str, Any]:
    """The statistics of a node by the name of the argument or result."""
    software = node.meta["mase"]["software"]
    sides = [software.get("args", {}), software.get("results", {})]
    return {name: e["stat"] for side in sides for name, e in side.items() if e.get("stat")}


def profile_weights(graph: MaseGraph, node: fx.Node, statistics: Statistics) -> None:
    """Statistics of each parameter and buffer of a node; nodes without any are named."""
    weights = dict(stored_tensors(graph, node))
    if not weights:
        logger.warning("%s: node %r has no weights to profile", WHERE, node.name)
    for name, weight in weights.items():
        for stat_name, stat in new_statistics(statistics).items():
            stat.update_a_sample(weight)
            statistics_entry(node, "args", name)[stat_name] = stat.export()


def stored_tensors(graph: MaseGraph, node: fx.Node) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a layer, or those that a function is given by name."""
    module = node.meta["mase"].module
    if module is not None:
        yield from module_parameters(module)
        yield from module_buffers(module)
    elif node.op == "call_function":
        named = named_arguments(node, get_mase_op(node), None, node.args, dict(node.kwargs))
        for name, value in named:
            is_input = name.startswith("data_in")
            if isinstance(value, fx.Node) and value.op == "get_attr" and not is_input:
                yield name, attribute(graph.model, str(value.target))


def profile_activations(
    graph: MaseGraph, chosen: Mapping[fx.Node, str], args: ProfileStatisticsArgs
) -> int:
    """Feed the samples and store the statistics; gives how many samples there were."""
    if args.input_generator is None or args.num_samples is None:
        raise ConfigError(f"{WHERE}: activations need an input_generator and num_samples")
    profiler = Profiler(graph, chosen, args)
    fed = 0
    for batch, size in take_rows(args.input_generator, args.num_samples, WHERE):
        run_graph(graph, batch, profiler.before, profiler.after)
        fed += size
    if fed < args.num_samples:
        logger.warning("%s: only %d of %d samples came", WHERE, fed, args.num_samples)
    for (node, side, name), statistics in profiler.collected.items():
        statistics_entry(node, side, name).update(
            {key: s.export() for key, s in statistics.items()}
        )
    return fed


class Profiler:
    """Feeds the inputs, and if asked the outputs, of chosen nodes to their statistics."""

    def __init__(
        self, graph: MaseGraph, chosen: Mapping[fx.Node, str], args: ProfileStatisticsArgs
    ) -> None:
        self.modules: dict[str, nn.Module] = graph.modules
        self.chosen = chosen
        self.statistics = args.activation_statistics
        self.outputs = args.profile_output_activation
        self.collected: dict[tuple[fx.Node, str, str], dict[str, Statistic]] = {}

    def before(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take in what goes into a node, before it may be overwritten."""
        if node not in self.chosen:
            return
        module = self.modules[str(node.target)] if node.op == "call_module" else None
        for name, value in named_arguments(node, get_mase_op(node), module, args, kwargs):
            if name.startswith("data_in") and isinstance(value, Tensor):
                self.update(node, "args", name, value)

    def after(self, node: fx.Node, result: Any) -> None:
        """Take in what a node gives."""
        if node in self.chosen and self.outputs:
            for name, value in named_results(result):
                if isinstance(value, Tensor):
                    self.update(node, "results", name, value)

    def update(self, node: fx.Node, side: str, name: str, value: Tensor) -> None:
        """Take in one tensor of a node."""
        key = (node, side, name)
        if key not in self.collected:
            self.collected[key] = new_statistics(self.statistics)
        for stat in self.collected[key].values():
            stat.update_a_batch(value)
