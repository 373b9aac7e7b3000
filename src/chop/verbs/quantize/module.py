"""`chop.quantize`: a model computed in number formats, with a graph or without one."""

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import quietly
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.graph.transforms.quantize.one_line import (
    FormatSpec,
    one_line_rules,
    parse_format_spec,
)
from chop.passes.graph.transforms.quantize.plan import POWER_OF_TWO, QuantizeArgs
from chop.passes.graph.transforms.quantize.quantize import log_rounded_macs
from chop.passes.graph.transforms.quantize.untraced import (
    measure_untraced,
    quantize_without_graph,
)
from chop.passes.graph.transforms.whole import in_words, quantize_whole_transform_pass
from chop.results.agreement import AgreementByNode
from chop.tables import ResultTable
from chop.validation import parse
from chop.verbs.common.rows import in_one_word, one_line
from chop.verbs.export.agreement import FORMS, compare_nodes

logger = logging.getLogger("chop")
MOST_BATCHES = 1024  # of an iterator, which can be read only once and so is kept


@dataclass(frozen=True)
class Quantized:
    """A quantised model with its graph; calling it calls the model."""

    graph: MaseGraph
    """What passes, exports and searches take."""
    info: dict[str, Any]
    """What the pass `quantize` says: the nodes that are quantised, the scales that were found.

    `macs` has the share of all multiply-accumulates whose operands are rounded, as they run, and
    `not_rounded` what computes the others.
    """

    @property
    def model(self) -> fx.GraphModule:
        """The module, to be trained and evaluated as any other."""
        return self.graph.model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def agreement(self, rows: Any, forms: Sequence[str] = FORMS) -> AgreementByNode:
        """Return node by node the noise against floating point, and which forms are equal.

        Args:
            rows: a tensor or a dictionary of inputs by name.
            forms: export targets to write and run beside the simulation.
        """
        return compare_nodes(self.graph, batch_by_name(rows, self.model), forms)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name}: {kind}" for name, kind in self.info["quantized"].items())
        left = self.info.get("in_float")
        said = f"; in floating point: {in_words(left.items())}" if left else ""
        return f"Quantized({self.graph!r}; {kinds}{said})"

    def _repr_html_(self) -> str:
        """Return the operations and the formats of their operands as a table for notebooks."""
        kinds = self.info["quantized"]
        found = {node.name: formats_of(node) for node in self.graph.fx_graph.nodes}
        roles = list(dict.fromkeys(role for name in kinds for role in found[name]))
        rows = [
            [name, kind, *(found[name].get(role, "") for role in roles)]
            for name, kind in kinds.items()
        ]
        return ResultTable(
            ["", "computed by", *roles], rows, "What is quantised", len(roles) + 2
        ).html()


def formats_of(node: fx.Node) -> dict[str, str]:
    """The formats of a node's operands, such as ``integer (8, 4)``, by their names."""
    args = node.meta["mase"].parameters["common"]["args"]
    return {
        role: f"{each['type']} ({', '.join(map(str, each['precision']))})"
        for role, each in args.items()
        if isinstance(each, dict) and "precision" in each
    }


def quantize(  # noqa: PLR0913  # all but the first by name
    model: nn.Module,
    example: Mapping[str, Any] | Tensor | None = None,
    rules: Mapping[str, Any] | None = None,
    *,
    width: int | None = None,
    weight_width: int | None = None,
    format: str | None = None,  # noqa: A002  # the word of the command line
    rule: Mapping[str, int | str] | None = None,
    calibrate: Iterable[Any] | None = None,
    products_only: bool = False,
    scales: str = POWER_OF_TWO,
    methods: Sequence[str] | None = None,
    trace: bool = True,
    share: bool = False,
    verbose: bool = False,
    **other_words: Any,
) -> Any:
    """Compute a model in integers, its products in another number format, or what rules say.

    With rows to calibrate on, all of a network is in integers where that is possible; what is not
    says `info["in_float"]`. The result is a `Quantized`, without a graph a model with `untraced`.

    Args:
        example: inputs by name, or the first one; by default the first batch of `calibrate`.
        rules: the table ``[passes.quantize]`` of a TOML file, as a dictionary.
        width: in place of rules: bits of all operands, or with `weight_width` of data alone.
        format: which format has this width; fixed point if nothing is said.
        rule: other widths or formats of some layers: ``{"fc1": 6}``.
        calibrate: batches: dictionaries of inputs by name, tensors, or pairs of inputs and labels.
        products_only: round products and what rules name, nothing else, as `share` does, too.
        scales: of a network in integers: "power_of_two", or "free" ones chosen on the rows.
        methods: passes that weights of few bits get where they help, as `info["methods"]` says.
        trace: make a graph; without one layers are replaced, and functions rounded when called.
        share: train the weights of the given model, rather than a copy of them.
        verbose: show what calibration found, and what methods gained.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"quantize takes a torch.nn.Module, not {type(model).__name__}")
    batches = None if calibrate is None else NamedBatches(calibrate, model)
    said = {"width": width, "weight_width": weight_width, "format": format, "rule": rule}
    words = in_one_word("quantize", said | other_words)
    in_part = rules is not None or batches is None or share or not trace
    products_only = products_only or in_part or not is_fixed_point(words)
    table = rules_for(rules, words, batches is not None, products_only=products_only)
    table |= methods_asked(methods, products_only) | scales_for(scales, products_only)
    chosen = quantize_transform_pass if products_only else quantize_whole_transform_pass
    with quietly(not verbose), one_line("quantize"):
        table["input_generator"] = batches
        return _quantise_by(model, table, example, trace, share, chosen)


def scales_for(scales: str, products_only: bool) -> dict[str, str]:
    """Return the kind of scales as a rule; free ones are for networks whole in integers."""
    if scales == POWER_OF_TWO:
        return {}
    if products_only:
        raise ConfigError(
            f"quantize: scales={scales!r} is for a network in integers: give width and rows to "
            "calibrate on, and neither rules nor products_only"
        )
    return {"scales": scales}


def methods_asked(methods: Sequence[str] | None, products_only: bool) -> dict[str, Any]:
    """Return the methods that are to be tried, if that was said."""
    if methods is not None and products_only:
        raise ConfigError("quantize: methods are for networks whole in integers, of fixed point")
    return {} if methods is None else {"methods": methods}


def is_fixed_point(words: Mapping[str, Any]) -> bool:
    """Return True if the few words for a format mean fixed point, which has integers."""
    return bool(words.get("format", FormatSpec().name) == FormatSpec().name)


def _quantise_by(
    model: nn.Module,
    table: Mapping[str, Any],
    example: Any,
    trace: bool,
    share: bool,
    chosen: Callable[..., Any],
) -> Any:
    """Return what `quantize` gives for the rules and batches of a table by the chosen pass."""
    batches = table["input_generator"]
    own = shared_shell(model) if share else with_plain_weights(copy.deepcopy(model))
    if not trace:
        seen = example is not None or batches is not None
        return _quantise_untraced(
            own, table, example_batch(example, model, batches) if seen else None
        )
    inputs = example_batch(example, model, batches)
    graph = MaseGraph(own, example_inputs=inputs)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    graph, info = chosen(graph, table)
    macs, missing = log_rounded_macs(graph, in_full=False)
    return Quantized(graph, {**info, "macs": macs, "not_rounded": missing})


def with_plain_weights(model: nn.Module) -> nn.Module:
    """Return a model that stores weights as they are used, where they were computed by parts."""
    for module in list(model.modules()):
        if not is_parametrized(module):
            continue
        parts: Any = module.parametrizations
        values = {name: getattr(module, name) for name in parts}
        plain = type_before_parametrizations(module)
        del module.parametrizations
        module.__class__ = plain  # copies share the other class
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(value.detach().clone()))
    return model


def _quantise_untraced(
    model: nn.Module, table: Mapping[str, Any], inputs: Mapping[str, Any] | None
) -> nn.Module:
    args = parse(QuantizeArgs, dict(table), "quantize")
    model, done = quantize_without_graph(model, args)
    if inputs is not None:
        measure_untraced(model, done, inputs)
    model.untraced = done  # type: ignore[assignment]
    logger.info("%s", done)
    return model


def shared_shell(model: nn.Module) -> nn.Module:
    """A copy of a model with its own modules, which shares parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(each): each for each in tensors})


SHORT = ("width", "weight_width", "format", "rule")


def rules_for(
    rules: Mapping[str, Any] | None,
    said: Mapping[str, Any],
    calibrated: bool,
    *,
    products_only: bool = True,
) -> dict[str, Any]:
    """Return the rules that were given, or those that a format in few words stands for.

    Args:
        said: the few words: `width`, `weight_width`, `format` and `rule`.
    """
    if unknown := [name for name in said if name not in SHORT]:
        raise UnknownNameError("setting", unknown[0], SHORT, "quantize")
    if (rules is None) == (not said):
        raise ConfigError("quantize: give either width=8 or rules, as in [passes.quantize]")
    if rules is not None:
        return dict(rules)
    usual = FormatSpec(
        said.get("format", FormatSpec().name), said.get("width"), said.get("weight_width")
    )
    others = {
        key: parse_format_spec(str(each), usual) for key, each in said.get("rule", {}).items()
    }
    return one_line_rules(usual, others, calibrated=calibrated, products_only=products_only)


def example_batch(
    example: Mapping[str, Any] | Tensor | None, model: nn.Module, batches: Any
) -> dict[str, Any]:
    """Inputs by name to make the graph from."""
    if example is None and batches is not None:
        example = next(iter(batches), None)
    if example is None:
        raise ConfigError("quantize: give an example of the inputs, to make a graph from")
    return batch_by_name(example, model)


def batch_by_name(batch: Any, model: nn.Module) -> dict[str, Any]:
    """The inputs of a batch by the names that the model has for them."""
    if isinstance(batch, Mapping):
        return dict(batch)
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if isinstance(first, Mapping):
        return dict(first)
    if not isinstance(first, Tensor):
        raise ConfigError(
            "quantize: a batch is a dictionary of inputs by name, a tensor, or a pair of inputs "
            f"and labels (got {type(batch).__name__})"
        )
    names = list(inspect.signature(model.forward).parameters)
    if not names:
        raise ConfigError(f"quantize: {type(model).__name__}.forward takes no inputs")
    return {names[0]: first}


class NamedBatches:
    """The batches of a loader as dictionaries of inputs."""

    def __init__(self, loader: Iterable[Any], model: nn.Module) -> None:
        once = iter(loader) is loader
        self.loader = list(islice(loader, MOST_BATCHES)) if once else loader
        self.model = model

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield batch_by_name(batch, self.model)
