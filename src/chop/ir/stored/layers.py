"""Layers as descriptions: a class that is known and its arguments, never code."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.parameters import plain_name
from chop.ir.stored.codec import NotStorable, StoredRecord, format_tensor, restore_value, to_plain
from chop.ir.stored.record_checks import LONGEST, Text, check_arguments, error_line, problem
from chop.ir.stored.targets import LAYERS
from chop.nn.masks import (
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
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import (
    QuantizedCall,
    QuantizedModule,
    float_module,
    quantize_module,
    quantized_call,
)
from chop.nn.quantizers import QUANTIZERS
from chop.ops.op import op_of_module
from chop.ops.table import OPS

RECURRENT = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
)  # fmt: skip
RECURRENT_KINDS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.LSTM: ("proj_size",),
    nn.RNN: ("nonlinearity",),
}
# Whether a layer has these is an argument of its class; what they hold is in its tensors.
PRESENCE = {
    "bias": ("bias", "in_proj_bias"),
    "add_bias_kv": ("bias_k",),
}
MASK_TYPES = {MASK: torch.bool, INPUT_MASK: torch.bool, INPUT_PATTERN: torch.int64}

WIDEST_GROUP = 1 << 16  # channels of a pruning pattern


class LayerRecord(StoredRecord):
    """A layer as it stands in the file.

    Args:
        kind: the class, a layer of `torch.nn` or of the operation table; None for a custom class,
            which only a given model can provide.
        known_as: the qualified name of a custom class.
        function: the operation, for a quantised function that is a module to own quantisers.
        quantized: the flat configuration of a quantised layer.
        masks: the buffers that pruning gave it.
        frozen: parameters that training leaves alone.
    """

    kind: str | None
    known_as: str = ""
    function: str | None = None
    arguments: dict[str, Any] = Field(default={})
    training: bool = True
    quantized: dict[str, Any] | None = None
    masks: list[Text] = Field(default=[])
    frozen: list[Text] = Field(default=[])

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.function is not None:
            op = OPS.get(self.function)
            if op is None or op.function is None or not op.quantizable or self.quantized is None:
                raise ValueError(f"{self.function!r:.60} is not a function that can be quantised")
        if self.kind is None:
            return self
        cls = known_classes().get(self.kind)
        if cls is None:
            raise ValueError(f"{self.kind!r:.60} is not a layer that a file may have")
        check_arguments(self.kind, accept_arguments(cls), self.arguments)
        return self


def known_classes() -> dict[str, type[nn.Module]]:
    """Every class that can be built again, by name: those of torch.nn and of the table."""
    return _known_classes(len(OPS))


@functools.lru_cache(maxsize=1)
def _known_classes(size: int) -> dict[str, type[nn.Module]]:
    """The same while the table has `size` rows: rows are only ever added."""
    found = {op.module.__name__: op.module for op in OPS.values() if op.module is not None}
    return {name: getattr(nn, name) for name in LAYERS} | found


def accept_arguments(cls: type[nn.Module]) -> list[str]:
    """The arguments of a class that a file may state: never where its tensors live."""
    if not issubclass(cls, nn.RNNBase):
        return parameter_names(cls.__init__)
    return [*RECURRENT, *RECURRENT_KINDS.get(cls, ())]


def describe_layer(name: str, module: nn.Module) -> LayerRecord:
    """The description of a layer, proven by building the layer from it."""
    frozen = [plain_name(k) for k, p in module.named_parameters() if not p.requires_grad]
    if isinstance(module, QuantizedCall):
        return LayerRecord(
            kind=None,
            function=module.op.name,
            training=module.training,
            quantized=to_plain(module.quant.fields(), format_tensor),
            frozen=frozen,
        )
    plain = without_input_mask(without_weight_mask(module))
    quant = plain.quant if isinstance(plain, QuantizedModule) else None
    plain = float_module(plain)
    if plain._forward_hooks or plain._forward_pre_hooks or plain._backward_hooks:
        # They are code, and without them the layer would compute something else.
        raise GraphError(f"layer {name!r} has hooks, which cannot be saved: remove them first")
    kind = type(plain).__name__
    own = known_classes().get(kind) is not type(plain)
    cls = type(plain)
    try:
        record = LayerRecord(
            kind=None if own else kind,
            known_as=f"{cls.__module__}.{cls.__qualname__}",
            arguments={} if own else stored_arguments(name, plain),
            training=module.training,
            quantized=quant and to_plain(quant.fields(), format_tensor),
            masks=mask_names(module),
            frozen=frozen,
        )
        built = None if own else build_float(record)
    except ValidationError as error:
        raise GraphError(f"layer {name!r} ({kind}) cannot be saved: {problem(error)}") from None
    except (TypeError, ValueError, RuntimeError) as error:  # of the constructor
        raise GraphError(f"layer {name!r} ({kind}) cannot be built: {error_line(error)}") from error
    if built is not None:
        check_rebuilt(name, plain, built)
    return record


def mask_names(module: nn.Module) -> list[str]:
    """The buffers by which a layer is pruned."""
    found = [MASK] if weight_mask(module) is not None else []
    if has_input_mask(module):
        found += [name for name in INPUT_BUFFERS if module._buffers.get(name) is not None]
    return found


def stored_arguments(name: str, module: nn.Module) -> dict[str, Any]:
    """The arguments of the class that make this layer, in their stored form."""
    try:
        return {key: to_plain(argument(module, key)) for key in argument_names(module)}
    except NotStorable as error:
        kind = type(module).__name__
        raise GraphError(
            f"layer {name!r} ({kind}) has an argument that is not data: {error}"
        ) from None


def argument_names(module: nn.Module) -> list[str]:
    """The arguments of a layer's class that can be read off the layer."""
    return [
        name for name in accept_arguments(type(module)) if hasattr(module, name) or name in PRESENCE
    ]


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
    cls = known_classes()[str(record.kind)]
    with torch.device("meta"):
        built = cls(**{key: restore_value(value) for key, value in record.arguments.items()})
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


def prepare_layer(
    record: LayerRecord, given: nn.Module | None, tensors: Mapping[str, Tensor]
) -> nn.Module:
    """A float layer without values; tensors that do not fit it raise ValueError.

    Args:
        given: the layer of the model that the caller gave, for custom classes.
        tensors: without values, too: nothing large is read until all of it is known to fit.
    """
    missing = [key for key in record.masks if key not in tensors]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    check_masks({key: tensors[key] for key in record.masks}, tensors.get("weight"))
    own, _ = float_tensors(record, tensors)
    # Each layer of a recurrent one has tensors, so a file cannot ask for more than it holds.
    if restore_value(record.arguments.get("num_layers", 0)) > len(own):
        raise ValueError(f"it has more layers than tensors ({len(own)})")
    layer = plain_layer(record, given)
    if record.kind is None and record.function is None:  # its own loading says what it takes
        return layer
    wanted = layer.state_dict()
    if odd := sorted(wanted.keys() ^ own.keys()):
        raise ValueError(f"tensor {odd[0]!r:.60} is {'missing' if odd[0] in wanted else 'surplus'}")
    for key, value in wanted.items():
        stored = own[key]
        if stored.dtype.is_floating_point != value.dtype.is_floating_point:
            raise ValueError(f"{key} is {stored.dtype}")
        if stored.shape != value.shape:
            raise ValueError(f"{key} has the shape {[*stored.shape]}, not {[*value.shape]}")
    return layer


def finish_layer(record: LayerRecord, layer: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A prepared layer with its values, quantised and pruned as it was."""
    own, learned = float_tensors(record, tensors)
    layer.load_state_dict(own, strict=True, assign=True)
    if record.quantized is not None:
        layer = with_formats(record, layer)
        states = {key.partition(".")[2]: tensors[key] for key in learned}
        quantizers = nn.ModuleDict(layer.quantizers_by_role)
        quantizers.load_state_dict(states, strict=True, assign=True)
    for key, parameter in layer.named_parameters():
        parameter.requires_grad_(plain_name(key) not in record.frozen)
    layer = with_masks(layer, {key: tensors[key] for key in record.masks})
    return layer.train(record.training)


def float_tensors(
    record: LayerRecord, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of the float layer, and the names of those that quantisers own."""
    prefix = f"{QUANTIZERS}."
    learned = [key for key in tensors if record.quantized is not None and key.startswith(prefix)]
    own = [key for key in tensors if key not in (*record.masks, *learned)]
    return {key: tensors[key] for key in own}, learned


def with_formats(record: LayerRecord, layer: nn.Module) -> QuantizedModule:
    """The layer, or the function that a record names, with the formats that it had."""
    op = op_of_module(layer) if record.function is None else OPS[record.function]
    if op is None:
        raise ValueError(f"{record.kind} cannot be quantised")
    quant = parse_quant_config(op, restore_value(record.quantized), "quantized")
    if record.function is None:
        return quantize_module(layer, op, quant)
    call = quantized_call(op, quant)
    if call is None:
        raise ValueError(f"{op.name} in {quant.name!r} has no quantiser of which to be the module")
    return call


def check_masks(masks: Mapping[str, Tensor], weight: Tensor | None) -> None:
    """Refuse masks that do not go together, or are not of their type or shape."""
    inputs = [key for key in masks if key in INPUT_BUFFERS]
    if len(inputs) > 1 or not masks.keys() <= {*INPUT_BUFFERS, MASK}:
        raise ValueError(f"masks {sorted(masks)} do not go together")
    if any(mask.dtype != MASK_TYPES.get(key, mask.dtype) for key, mask in masks.items()):
        raise ValueError("masks are of the wrong type")
    if MASK in masks and (weight is None or masks[MASK].shape != weight.shape):
        raise ValueError("the mask has not the shape of the weight")


def with_masks(layer: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """The layer pruned as it was."""
    if MASK in masks:
        layer = with_weight_mask(layer, masks[MASK])
    inputs = {key: mask for key, mask in masks.items() if key in INPUT_BUFFERS}
    if INPUT_PATTERN in inputs:
        keep, group = inputs[INPUT_PATTERN].tolist()
        if not 0 <= keep <= group <= WIDEST_GROUP:
            raise ValueError(f"of {group} channels {keep} cannot stay")
    return with_input_mask(layer, **inputs) if inputs else layer


def plain_layer(record: LayerRecord, given: nn.Module | None) -> nn.Module:
    """The float layer: built, or for a custom class the one that was given; a function has none."""
    if record.function is not None:
        return nn.Module()
    if record.kind is not None:
        return build_float(record)
    plain = None if given is None else float_module(without_input_mask(without_weight_mask(given)))
    name = f"{type(plain).__module__}.{type(plain).__qualname__}"
    if plain is None or name != record.known_as:
        raise ValueError(
            f"it is a {record.known_as}, which no file can build: load into a graph that has it"
        )
    return copy.deepcopy(plain)


def by_layer(
    layers: Collection[str], attributes: Collection[str], tensors: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """The tensors of each layer by their names in it; a tensor of no layer is an error.

    Args:
        attributes: the tensors of the model itself, all of which must be there.
    """
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in layers}
    for name, tensor in tensors.items():
        if len(name) > 2 * LONGEST:
            raise ValueError(f"tensor {name!r:.60} has too long a name")
        owner, _, last = name.rpartition(".")
        while owner and owner not in groups:
            owner, _, outer = owner.rpartition(".")
            last = f"{outer}.{last}"
        if owner in groups:
            groups[owner][last] = tensor
        elif name not in attributes:
            raise ValueError(f"tensor {name!r:.60} belongs to nothing")
    missing = [name for name in attributes if name not in tensors]
    if missing:
        raise ValueError(f"tensor {missing[0]!r} is missing")
    return groups


def root_module(
    layers: Mapping[str, nn.Module], same: Mapping[str, str], attributes: Mapping[str, Tensor]
) -> nn.Module:
    """A module with the layers and tensors of a graph under their names.

    Args:
        same: further names of layers.
    """
    root = nn.Module()
    for name, layer in layers.items():
        set_by_name(root, name, layer)
    for name, first in same.items():
        set_by_name(root, name, layers[first])
    for name, value in attributes.items():
        set_by_name(root, name, value)
    return root


def set_by_name(root: nn.Module, name: str, value: nn.Module | Tensor) -> None:
    """Set an attribute by its dotted name, with plain modules on the way to it."""
    *path, last = name.split(".")
    owner = root
    for part in path:
        if not isinstance(getattr(owner, part, None), nn.Module):
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    if isinstance(value, nn.Module | nn.Parameter) or last in owner._buffers:
        setattr(owner, last, value)
    else:
        owner.register_buffer(last, value)
