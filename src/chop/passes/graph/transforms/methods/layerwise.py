"""The passes round_weights and correct_bias: layer after layer, on what each reads, rounded.

Both run rows through the quantised network node by node. When a layer comes, what it reads is
already computed by the layers that were changed before it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Recorder, placeholder_values, preserve_model
from chop.nn.quant_config import QuantConfig
from chop.numerics import Integer, NumberFormat
from chop.numerics.base import AUTO
from chop.passes.base import Batches, Info, PassArgs, take_rows, transform_pass
from chop.passes.graph.transforms.methods.least_squares import clip_for_inputs, round_for_inputs
from chop.passes.graph.transforms.quantize.quantize import apply_plan
from chop.passes.graph.transforms.quantize.ranges import Calibration, OperandTally

CHANNEL = {nn.Linear: -1, nn.Conv1d: -2, nn.Conv2d: -3}
"""The dimension of the channels in the result of a layer, from the end."""
MOST_PLACES, FEWEST = 16_384, 16
"""Places of inputs that are looked at, and rows that are never left out."""
Change = Callable[["RunningLayer"], None]


class LayerwiseArgs(PassArgs):
    """The rows to run.

    Args:
        input_generator: batches of inputs by name; required.
        num_samples: how many rows to run, from the first on.
        nodes: the layers to change; by default all.
    """

    input_generator: Batches | None = None
    num_samples: int = 256
    nodes: tuple[str, ...] | None = None


class CorrectBiasArgs(LayerwiseArgs):
    """The rows to run, and the network to compare with.

    Args:
        reference: the float graph, with nodes of the same names; by default the weights of the
            graph itself, unrounded.
    """

    reference: Any = None


class RunningLayer:
    """A quantised layer with what it reads when it is called."""

    def __init__(
        self, node: fx.Node, layer: Any, quant: QuantConfig, x: Tensor, changes: list[Any]
    ) -> None:
        self.node, self.layer, self.quant = node, layer, quant
        self.x, self.changes = x, changes

    def result(self) -> Tensor:
        """Return what the layer gives now."""
        return self.layer(self.x)  # type: ignore[no-any-return]

    def own(self, name: str, values: Tensor) -> None:
        """Give the layer other weights; those of the given model stay as they are."""
        kept = getattr(self.layer, name)
        setattr(self.layer, name, nn.Parameter(values, kept.requires_grad))
        self.changes.append((self.layer, name, getattr(self.layer, name)))

    def format_of(self, role: str) -> NumberFormat | None:
        """Return the format of an operand, if it has one that can round now and learns nothing."""
        fmt = self.quant.operands.get(role)
        learns = type(fmt).quantizer is not NumberFormat.quantizer if fmt is not None else True
        return None if fmt is None or fmt.is_open or learns else fmt

    def columns(self) -> list[Tensor]:
        """Return what each column of the weights is multiplied by, rounded; by groups."""
        data = self.format_of("data_in")
        x = self.x if data is None else data.round_to(self.x)
        return [part.double() for part in window_columns(self.layer, x)]

    def keep_better(
        self, weight: Tensor, rows: list[Tensor], fmt: NumberFormat
    ) -> dict[str, float]:
        """Take other weights if, rounded, they change the results less; return both errors."""
        now = self.layer.weight.detach()
        parts = now.double().flatten(1).chunk(len(rows))
        errors = [
            result_error(parts, fmt.round_to(each).double().flatten(1).chunk(len(rows)), rows)
            for each in (now, weight)
        ]
        if errors[1] < errors[0]:
            self.own("weight", weight)
        return dict(zip(("nearest", "chosen"), errors, strict=True))

    @property
    def axis(self) -> int:
        """The dimension of the channels in the result, from the end."""
        return next(axis for kind, axis in CHANNEL.items() if isinstance(self.layer, kind))


@transform_pass("round_weights", requires=("common",))
def round_weights_transform_pass(graph: MaseGraph, args: LayerwiseArgs) -> tuple[MaseGraph, Info]:
    """Round the weights of each layer so that its results change least, rather than its weights.

    On rows, each column of a weight matrix is rounded to its format; what that changes in the
    results is made up for by the columns after it, by least squares, as in GPTQ. Linear layers and
    convolutions of one and two dimensions are rounded, in any format. `info` has, for each layer,
    the error of its results by nearest codes and by these, relative to their size; the better ones
    are kept.
    """
    found: dict[str, dict[str, float]] = {}

    def change(call: RunningLayer) -> None:
        fmt = call.format_of("weight")
        if fmt is not None:
            weight, rows = call.layer.weight.detach(), call.columns()
            rounded = round_for_inputs(weight, rows, fmt)
            found[call.node.name] = call.keep_better(rounded, rows, fmt)

    change_layers(graph, args, change)
    return graph, {"rounded": found}


@transform_pass("clip_weights", requires=("common",))
def clip_weights_transform_pass(graph: MaseGraph, args: LayerwiseArgs) -> tuple[MaseGraph, Info]:
    """Cut the largest weights of each block off where that makes the error of all others smaller.

    Each row of a block, or of a matrix whose format has no blocks, is cut at that share of its
    largest weight at which the rounded weights, by the size of their inputs, differ least. A format
    whose scale is fixed gains nothing. `info` has the errors of each layer before and after.
    """
    found: dict[str, dict[str, float]] = {}

    def change(call: RunningLayer) -> None:
        fmt = call.format_of("weight")
        if fmt is not None:
            weight, rows = call.layer.weight.detach(), call.columns()
            sizes = torch.cat(
                [x.square().mean(1).repeat(len(weight) // len(rows), 1) for x in rows]
            )
            clipped = clip_for_inputs(weight, sizes.reshape(weight.shape), fmt)
            found[call.node.name] = call.keep_better(clipped, rows, fmt)

    change_layers(graph, args, change)
    return graph, {"clipped": found}


@transform_pass("correct_bias", requires=("common",))
def correct_bias_transform_pass(graph: MaseGraph, args: CorrectBiasArgs) -> tuple[MaseGraph, Info]:
    """Add to each bias by how much the mean of a channel has changed on rows.

    Rounding moves the means of channels, which a bias can put back. Layers without a bias stay as
    they are. `info` has the largest change of each layer.
    """
    reference = args.reference if args.reference is not None else graph
    means = channel_means(reference, args)
    found: dict[str, float] = {}
    opened: dict[fx.Node, QuantConfig] = {}

    def change(call: RunningLayer) -> None:
        bias, wanted = call.layer.bias, means.get(call.node.name)
        if bias is None or wanted is None:
            return
        moved = wanted - mean_of_channels(call.result(), call.axis)
        found[call.node.name] = float(moved.abs().max())
        call.own("bias", bias.detach() + moved.to(bias.dtype))
        fmt = call.quant.operands.get("bias")
        if isinstance(fmt, Integer) and not fmt.is_open:
            fitted = bias_format(fmt, call.layer.bias.detach())
            if fitted != fmt:
                operands = {**call.quant.operands, "bias": fitted}
                opened[call.node] = replace(call.quant, operands=operands)

    change_layers(graph, args, change)
    apply_plan(graph, dict(opened))
    return graph, {"corrected": found}


def bias_format(fmt: Integer, values: Tensor) -> Any:
    """Return a format of one scale with the one that fits values best, if it saturates there."""
    if fmt.saturation is None or getattr(fmt.frac_width, "array", None) is not None:
        return fmt
    low, high = (float(bound) for bound in fmt.saturation)
    if low <= float(values.min()) and float(values.max()) < high:
        return fmt
    return refit_format(fmt, values)


def refit_format(fmt: NumberFormat, values: Tensor) -> NumberFormat:
    """Return a format with the scale, or the scales, that fit values best, if it has any."""
    if fmt.scale_field is None:
        return fmt
    scales = getattr(fmt, fmt.scale_field)
    tally = OperandTally(fmt.with_scale(AUTO), Calibration(), getattr(scales, "shape", ()))
    tally.look(values)
    tally.prepare()
    tally.look_again(values)
    return tally.fit().fmt


def change_layers(graph: MaseGraph, args: LayerwiseArgs, change: Change) -> None:
    """Run rows through a quantised graph and show each layer that can be changed to a function."""
    inputs = rows_in_one(args)
    modules = graph.modules
    instead: dict[fx.Node, Callable[..., Any]] = {}
    changes: list[tuple[nn.Module, str, nn.Parameter]] = []
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    for node in graph.nodes:
        call = NodeCall.of(node, modules)
        layer = call.layer
        is_known = isinstance(layer, tuple(CHANNEL)) and calls.count(str(node.target)) == 1
        is_known = is_known and (args.nodes is None or node.name in args.nodes)
        if is_known and call.quant is not None and not call.quant.bypass:
            instead[node] = changing(node, layer, call.quant, change, changes)
    recorder = Recorder(graph.model, instead=instead)
    with torch.no_grad(), preserve_model(graph.model):  # which puts back what was changed
        recorder.run_on_copies(placeholder_values(graph, inputs))
    for layer, name, parameter in changes:
        setattr(layer, name, parameter)


def changing(
    node: fx.Node, layer: Any, quant: QuantConfig, change: Change, changes: list[Any]
) -> Callable[[Tensor], Tensor]:
    """Return what computes a layer after it was changed for what it reads."""

    def run(x: Tensor) -> Tensor:
        call = RunningLayer(node, layer, quant, x, changes)
        change(call)
        return call.result()

    return run


def rows_in_one(args: LayerwiseArgs) -> Mapping[str, Any]:
    """Return the rows as one batch."""
    if args.input_generator is None:
        raise ConfigError("there are no rows to run: give input_generator, batches of inputs")
    cut = [batch for batch, _ in take_rows(args.input_generator, args.num_samples, "methods")]
    if not cut:
        raise ConfigError("input_generator gives no rows")
    return {
        name: torch.cat([batch[name] for batch in cut]) if isinstance(value, Tensor) else value
        for name, value in cut[0].items()
    }


def channel_means(graph: MaseGraph, args: LayerwiseArgs) -> dict[str, Tensor]:
    """Return the mean of every channel that a layer gives in floating point, by node."""
    modules, found = graph.modules, dict[str, Tensor]()
    instead: dict[fx.Node, Callable[..., Any]] = {}
    axes: dict[fx.Node, int] = {}
    for node in graph.nodes:
        call = NodeCall.of(node, modules)
        if call.quant is not None:
            instead[node] = call.rounded_by({})
        for kind, axis in CHANNEL.items():
            if isinstance(call.layer, kind):
                axes[node] = axis

    def look(node: fx.Node, result: Any) -> None:
        if node in axes:
            found[node.name] = mean_of_channels(result, axes[node])

    recorder = Recorder(graph.model, after=look, instead=instead)
    with torch.no_grad(), preserve_model(graph.model):
        recorder.run_on_copies(placeholder_values(graph, rows_in_one(args)))
    return found


def mean_of_channels(x: Tensor, axis: int) -> Tensor:
    """Return the mean of each channel."""
    return x.double().movedim(axis, 0).flatten(1).mean(1)


def window_columns(layer: Any, x: Tensor) -> list[Tensor]:
    """Return what each column of a weight matrix is multiplied by, a row each; by groups.

    Of many places some are taken, evenly.
    """
    if isinstance(layer, nn.Linear):
        return [thinned(x.reshape(-1, x.shape[-1])).T]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, padding_of(layer), mode=mode)
    x = thinned(x, x[0, 0].numel())
    sides: tuple[tuple[int, ...], ...] = (
        layer.kernel_size,
        layer.dilation,
        (0,) * len(layer.stride),
        layer.stride,
    )
    if isinstance(layer, nn.Conv1d):
        fills = (1, 1, 0, 1)
        x, sides = x.unsqueeze(2), tuple((f, *e) for f, e in zip(fills, sides, strict=True))
    windows = F.unfold(x, *sides).transpose(0, 1).flatten(1)  # column, place
    return list(thinned(windows.T).T.chunk(layer.groups))


def thinned(rows: Tensor, each: int = 1) -> Tensor:
    """Return rows, only some of them if there are more than are needed.

    Args:
        each: places that a row has.
    """
    return rows[:: max(1, len(rows) * each // MOST_PLACES)] if len(rows) > FEWEST else rows


def padding_of(layer: Any) -> list[int]:
    """Return what is put before and after each dimension, from the last one on."""
    if layer.padding == "valid":
        return [0] * 2 * len(layer.kernel_size)
    found = []
    for axis in reversed(range(len(layer.kernel_size))):
        if layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            found += [total // 2, total - total // 2]
        else:
            found += [layer.padding[axis]] * 2
    return found


def result_error(parts: Any, others: Any, rows: list[Tensor]) -> float:
    """Return the change of results relative to their size."""
    pairs = list(zip(parts, others, rows, strict=True))
    changed = sum(float(((b - a) @ x).square().sum()) for a, b, x in pairs)
    size = sum(float((a @ x).square().sum()) for a, _, x in pairs)
    return float((changed / size) ** 0.5) if size else 0.0
