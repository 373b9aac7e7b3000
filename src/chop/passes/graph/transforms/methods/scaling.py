"""The passes smooth and awq: outliers of what layers read, moved into their weights.

A layer reads each channel divided by a number and has its column of weights multiplied by it. The
division is folded into what stands before: a norm, or a layer with nothing but homogeneous
operations between. So the float network computes what it did.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Recorder, placeholder_values, preserve_model
from chop.numerics import NumberFormat
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.methods.equalise import LAYERS, pairs_of, replace_layer
from chop.passes.graph.transforms.methods.layerwise import (
    CHANNEL,
    LayerwiseArgs,
    refit_format,
    result_error,
    rows_in_one,
    window_columns,
)

SCALED_NORMS = (nn.LayerNorm, nn.RMSNorm)
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SMALLEST = 1e-5


class SmoothArgs(LayerwiseArgs):
    """The rows to run, and how much of the outliers the weights take over.

    Args:
        strength: 0 moves nothing into the weights, 1 all.
    """

    strength: float = Field(default=0.5, ge=0, le=1)


class AwqArgs(LayerwiseArgs):
    """The rows to run, and what weights are to be rounded to.

    Args:
        formats: the number format of the weights of each node; required.
    """

    formats: dict[str, Any] | None = None


class Readers(NamedTuple):
    """Layers, their nodes, and the one source whose result they read and nobody else does."""

    source: str
    layers: tuple[str, ...]
    nodes: tuple[str, ...]


@transform_pass("smooth", requires=("common",))
def smooth_transform_pass(graph: MaseGraph, args: SmoothArgs) -> tuple[MaseGraph, Info]:
    """Move outlier channels of what layers read into their weights, as SmoothQuant does.

    Each channel is divided by the largest magnitude seen on rows to the power of `strength`, over
    the largest weight that it meets to the power of the rest; what stands before takes that in.
    The float network computes what it did. `info` has the largest divisor by source.
    """
    found: dict[str, float] = {}
    groups = list(reader_groups(graph))
    seen = read_inputs(graph, args, [name for group in groups for name in group.nodes])
    for group in groups:
        peaks = channel_rows(seen[group.nodes[0]], graph, group).abs().amax(1)
        columns = torch.stack([column_peaks(graph, name) for name in group.layers]).amax(0)
        scale = peaks.clamp(SMALLEST) ** args.strength
        scale = scale / columns.clamp(SMALLEST) ** (1 - args.strength)
        scale = torch.where((peaks > 0) & (columns > 0), scale, 1.0)
        found[group.source] = float(scale.max())
        fold_scale(graph, group, scale)
    return graph, {"smoothed": found}


@transform_pass("awq", requires=("common",))
def awq_transform_pass(graph: MaseGraph, args: AwqArgs) -> tuple[MaseGraph, Info]:
    """Scale the weights of large channels up before rounding, as AWQ does.

    Each channel is divided by its mean magnitude on rows to a power between 0 and 1, that at which
    the rounded layers differ least; what stands before takes that in. The float network computes
    what it did. `info` has the power by source.
    """
    if args.formats is None:
        raise ConfigError("pass 'awq': give formats, the number format of the weights of each node")
    found: dict[str, float] = {}
    groups = [g for g in reader_groups(graph) if any(n in args.formats for n in g.nodes)]
    seen = read_inputs(graph, args, [name for group in groups for name in group.nodes])
    for group in groups:
        means = channel_rows(seen[group.nodes[0]], graph, group).abs().mean(1).clamp(SMALLEST)
        scales = {}
        for strength in STRENGTHS:
            scale = means**strength
            scales[strength] = scale / (scale.max() * scale.min()).sqrt()
        errors = {
            strength: sum(
                scaled_error(
                    graph.model.get_submodule(layer), seen[node], scale, args.formats[node]
                )
                for layer, node in zip(group.layers, group.nodes, strict=True)
                if node in args.formats
            )
            for strength, scale in scales.items()
        }
        best = min(errors, key=lambda strength: errors[strength])
        found[group.source] = best
        fold_scale(graph, group, scales[best])
    return graph, {"strengths": found}


def reader_groups(graph: MaseGraph) -> Iterator[Readers]:
    """Yield the layers whose inputs can be scaled by what stands before them."""
    modules = graph.modules
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")

    def unique_layer(node: fx.Node, kinds: tuple[type[Any], ...]) -> Any:
        found = modules.get(str(node.target)) if node.op == "call_module" else None
        return found if type(found) in kinds and calls[str(node.target)] == 1 else None

    for node in graph.nodes:
        norm = unique_layer(node, SCALED_NORMS)
        readers = list(node.users)
        fits = norm is not None and norm.weight is not None and norm.weight.dim() == 1
        if (
            fits
            and readers
            and all(unique_layer(each, (nn.Linear,)) is not None for each in readers)
        ):
            layers = tuple(str(each.target) for each in readers)
            yield Readers(str(node.target), layers, tuple(each.name for each in readers))
    names = {str(node.target): node.name for node in graph.nodes if node.op == "call_module"}
    for first, second in pairs_of(graph):
        layer: Any = modules[second]
        if isinstance(layer, tuple(CHANNEL)) and getattr(layer, "groups", 1) == 1:
            yield Readers(first, (second,), (names[second],))


def read_inputs(graph: MaseGraph, args: LayerwiseArgs, nodes: Sequence[str]) -> dict[str, Tensor]:
    """Return what nodes of a graph read on rows."""
    found: dict[str, Tensor] = {}

    def look(node: fx.Node, given: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if node.name in nodes:
            found[node.name] = (given[0] if given else kwargs["input"]).detach().clone()

    recorder = Recorder(graph.model, before=look)
    with torch.no_grad(), preserve_model(graph.model):
        recorder.run_on_copies(placeholder_values(graph, rows_in_one(args)))
    return found


def channel_rows(x: Tensor, graph: MaseGraph, group: Readers) -> Tensor:
    """Return a row for each channel of what the layers of a group read."""
    layer = graph.model.get_submodule(group.layers[0])
    axis = next(axis for kind, axis in CHANNEL.items() if isinstance(layer, kind))
    return x.movedim(axis, 0).flatten(1)


def column_peaks(graph: MaseGraph, target: str) -> Tensor:
    """Return the largest weight of each input channel of a layer."""
    layer: Any = graph.model.get_submodule(target)
    weight: Tensor = layer.weight.detach()
    return weight.abs().movedim(1, 0).flatten(1).amax(1)


def fold_scale(graph: MaseGraph, group: Readers, scale: Tensor) -> None:
    """Divide what a source gives by a number for each channel, and multiply what reads it."""
    for target in (group.source, *group.layers):
        replace_layer(graph, target)
    source: Any = graph.model.get_submodule(group.source)
    with torch.no_grad():
        is_layer = isinstance(source, LAYERS)
        rows = scale.reshape(-1, *(1,) * (source.weight.dim() - 1)) if is_layer else scale
        source.weight /= rows
        if getattr(source, "bias", None) is not None:
            source.bias /= scale
        for target in group.layers:
            weight: Any = graph.model.get_submodule(target).weight
            weight *= scale.reshape(1, -1, *(1,) * (weight.dim() - 2))


def scaled_error(layer: Any, x: Tensor, scale: Tensor, fmt: NumberFormat) -> float:
    """Return by how much a layer's results change whose weights are rounded in a scale."""
    weight = layer.weight.detach()
    across = scale.reshape(1, -1, *(1,) * (weight.dim() - 2))
    rounded = refit_format(fmt, weight * across).round_to(weight * across) / across
    before, after = ([each.double().flatten(1)] for each in (weight, rounded))
    return result_error(before, after, [part.double() for part in window_columns(layer, x)])
