"""Layers as descriptions: a class that is known and its arguments, never code."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from chop.errors import GraphError
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import QuantizedModule, quantize_module
from chop.ops.lookup import op_of_module
from chop.ops.table import OPS
from chop.passes.base import PassArgs
from chop.passes.graph.analysis.add_metadata.arguments import plain_name
from chop.passes.graph.interface.codec import NotStorable, from_plain, to_plain
from chop.passes.graph.transforms.pruning.masks import (
    INPUT_BUFFERS,
    INPUT_MASK,
    INPUT_PATTERN,
    MASK,
    has_input_mask,
    weight_mask,
    with_input_mask,
    with_weight_mask,
    without_input_mask,
    without_weight_mask,
)
from chop.passes.graph.transforms.quantize.restore import float_module

RECURRENT = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
)  # fmt: skip
# Whether a layer has these is an argument of its class; what they hold is in its tensors.
PRESENCE = {
    "bias": ("bias", "in_proj_bias"),
    "add_bias_kv": ("bias_k",),
}
MASK_TYPES = {MASK: torch.bool, INPUT_MASK: torch.bool, INPUT_PATTERN: torch.int64}
MOST_LAYERS = 1000  # in one recurrent module; a file must not keep us building for ever


class LayerRecord(PassArgs):
    """A layer as it stands in the file.

    Args:
        kind: the class, a layer of `torch.nn` or of the operation table; None for a class of the
            user's own, which only a given model can provide.
        known_as: the qualified name of a user's class.
        quantized: the flat configuration of a quantised layer.
        masks: the buffers that pruning gave it.
        frozen: parameters that training leaves alone.
    """

    kind: str | None
    known_as: str = ""
    arguments: dict[str, Any] = Field(default={})
    training: bool = True
    quantized: dict[str, Any] | None = None
    masks: list[str] = Field(default=[])
    frozen: list[str] = Field(default=[])


def known_classes() -> dict[str, type[nn.Module]]:
    """Every class that can be built again, by name: those of torch.nn and of the table."""
    return _known_classes(len(OPS))


@functools.lru_cache(maxsize=1)
def _known_classes(size: int) -> dict[str, type[nn.Module]]:
    """The same while the table has `size` rows: rows are only ever added."""
    found = {op.module.__name__: op.module for op in OPS.values() if op.module is not None}
    for name, value in vars(nn).items():
        if isinstance(value, type) and issubclass(value, nn.Module) and name not in CONTAINERS:
            found.setdefault(name, value)
    return found


CONTAINERS = frozenset(
    {"Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
)


def describe(name: str, module: nn.Module) -> LayerRecord:
    """The description of a layer, proven by building the layer from it."""
    plain = without_input_mask(without_weight_mask(module))
    quantised = isinstance(plain, QuantizedModule)
    plain = float_module(plain)
    refuse_hooks(name, plain)
    kind = type(plain).__name__
    own = known_classes().get(kind) is not type(plain)
    cls = type(plain)
    record = LayerRecord(
        kind=None if own else kind,
        known_as=f"{cls.__module__}.{cls.__qualname__}",
        arguments={} if own else stored_arguments(name, plain),
        training=module.training,
        quantized=to_plain(module.config) if quantised else None,
        masks=mask_names(module),
        frozen=[plain_name(k) for k, p in module.named_parameters() if not p.requires_grad],
    )
    if not own:
        check_rebuilt(name, plain, build_float(record))
    return record


def mask_names(module: nn.Module) -> list[str]:
    """The buffers by which a layer is pruned."""
    found = [MASK] if weight_mask(module) is not None else []
    if has_input_mask(module):
        found += [name for name in INPUT_BUFFERS if module._buffers.get(name) is not None]
    return found


def refuse_hooks(name: str, module: nn.Module) -> None:
    """Raise for a layer with hooks: they are code, and without them it would compute otherwise."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    if any(hooks):
        raise GraphError(f"layer {name!r} has hooks, which cannot be saved: remove them first")


def stored_arguments(name: str, module: nn.Module) -> dict[str, Any]:
    """The arguments of the class that make this layer, in their stored form."""
    try:
        return {key: to_plain(argument(module, key)) for key in argument_names(module)}
    except NotStorable as error:
        kind = type(module).__name__
        raise GraphError(
            f"layer {name!r} ({kind}) has an argument that is no data: {error}"
        ) from None


def argument_names(module: nn.Module) -> list[str]:
    """The arguments of a layer's class that the layer remembers."""
    if isinstance(module, nn.RNNBase):
        return list(RECURRENT)
    return [name for name in parameter_names(type(module).__init__) if remembers(module, name)]


def remembers(module: nn.Module, name: str) -> bool:
    """Whether an argument of a layer's class can be read off the layer."""
    return hasattr(module, name) or name in PRESENCE


@functools.cache
def parameter_names(constructor: Callable[..., None]) -> list[str]:
    """The arguments of a class, those about where tensors live left aside."""
    parameters = inspect.signature(constructor).parameters.values()
    by_name = (p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [n for n in by_name if n not in ("self", "device", "dtype") and n[0] != "_"]


def argument(module: nn.Module, name: str) -> Any:
    """The value of one of them."""
    value = getattr(module, name, None)
    if name not in PRESENCE or isinstance(value, bool):
        return value
    return any(getattr(module, place, None) is not None for place in PRESENCE[name])


def build_float(record: LayerRecord) -> nn.Module:
    """The layer before quantisation and pruning, its tensors without memory."""
    cls = known_classes().get(record.kind or "")
    if cls is None:
        raise ValueError(f"unknown class {record.kind!r}")
    arguments = {key: from_plain(value) for key, value in record.arguments.items()}
    if arguments.get("num_layers", 0) > MOST_LAYERS:
        raise ValueError(f"{arguments['num_layers']} layers in one {record.kind}")
    with torch.device("meta"):
        built = cls(**arguments)
    return built.train(record.training)


def check_rebuilt(name: str, module: nn.Module, built: nn.Module) -> None:
    """Raise unless `built` is `module` but for the values of its tensors."""
    problem = None
    ours = {key: value.shape for key, value in module.state_dict().items()}
    theirs = {key: value.shape for key, value in built.state_dict().items()}
    if ours != theirs:
        problem = "its tensors are not those of a fresh one"
    settings, fresh = attributes(module), attributes(built)
    for key in settings.keys() | fresh.keys():
        if settings.get(key) != fresh.get(key):
            problem = f"its attribute {key!r} cannot be set when it is built"
    if problem is not None:
        raise GraphError(f"layer {name!r} ({type(module).__name__}) cannot be saved: {problem}")


def attributes(module: nn.Module) -> dict[str, Any]:
    """The settings of a layer: its attributes that are neither tensors nor private."""
    return {
        key: value
        for key, value in vars(module).items()
        if key != "training" and not key.startswith("_") and not isinstance(value, Tensor)
    }


def build(record: LayerRecord, given: nn.Module | None, tensors: dict[str, Tensor]) -> nn.Module:
    """A layer from its description and its tensors; what does not fit raises ValueError.

    Args:
        given: the layer of the model that the caller gave, for classes of the user's own.
    """
    missing = [key for key in record.masks if key not in tensors]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    layer = plain_layer(record, given)
    fill(layer, {k: v for k, v in tensors.items() if k not in record.masks}, record.frozen)
    if record.quantized is not None:
        op = op_of_module(layer)
        if op is None:
            raise ValueError(f"{record.kind} cannot be quantised")
        quant = parse_quant_config(op, from_plain(record.quantized), "quantized")
        layer = quantize_module(layer, op, quant)
    layer = masked(layer, {key: tensors[key] for key in record.masks})
    return layer.train(record.training)


def masked(layer: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """The layer pruned as it was."""
    inputs = {key: mask for key, mask in masks.items() if key in INPUT_BUFFERS}
    if len(inputs) > 1 or not masks.keys() <= {*INPUT_BUFFERS, MASK}:
        raise ValueError(f"masks {sorted(masks)} do not go together")
    if any(mask.dtype != MASK_TYPES.get(key, mask.dtype) for key, mask in masks.items()):
        raise ValueError("masks are of the wrong type")
    if MASK in masks:
        if masks[MASK].shape != getattr(layer, "weight", torch.empty(())).shape:
            raise ValueError("the mask has not the shape of the weight")
        layer = with_weight_mask(layer, masks[MASK])
    return with_input_mask(layer, **inputs) if inputs else layer


def plain_layer(record: LayerRecord, given: nn.Module | None) -> nn.Module:
    """The float layer: built, or for a class of the user's own the one that was given."""
    if record.kind is not None:
        return build_float(record)
    plain = None if given is None else float_module(without_input_mask(without_weight_mask(given)))
    name = f"{type(plain).__module__}.{type(plain).__qualname__}"
    if plain is None or name != record.known_as:
        raise ValueError(
            f"it is a {record.known_as}, which no file can build: load into a graph that has it"
        )
    return copy.deepcopy(plain)


def fill(layer: nn.Module, tensors: dict[str, Tensor], frozen: list[str]) -> None:
    """Give a layer its tensors."""
    for key, value in layer.state_dict().items():
        stored = tensors.get(key)
        if stored is not None and stored.dtype.is_floating_point != value.dtype.is_floating_point:
            raise ValueError(f"{key} is {stored.dtype}")
    try:
        layer.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(reason) from None
    for key, parameter in layer.named_parameters():
        parameter.requires_grad_(plain_name(key) not in frozen)
