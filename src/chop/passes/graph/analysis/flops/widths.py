"""How many bits the tensors of a graph take, from their number formats and their dtypes."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedModule
from chop.nn.quantizers import QUANTIZERS
from chop.numerics import NumberFormat
from chop.ops.op import Op
from chop.passes.graph.analysis.add_metadata.arguments import plain_name
from chop.passes.graph.analysis.add_metadata.entries import dtype_format

Formats = Mapping[str, NumberFormat]
"""The number format of each operand that is rounded, by role; what is missing is not rounded."""


class StoredParameter(NamedTuple):
    """A parameter and the bits that storing it takes."""

    parameter: nn.Parameter
    bits: int


def formats_of_module(module: nn.Module | None) -> Formats:
    """The formats a module rounds its operands to; none if it is not quantised or bypassed."""
    if not isinstance(module, QuantizedModule) or module.bypass:
        return {}
    return module.frozen


def formats_of_node(node: fx.Node, module: nn.Module | None) -> Formats:
    """The formats the module or the function of a node rounds its operands to."""
    op: Any = getattr(node.target, "op", None)
    if node.op != "call_function" or not isinstance(op, Op):
        return formats_of_module(module)
    config: Any = node.kwargs.get("config", {})
    if isinstance(config, QuantConfig):
        return in_effect(config)
    name = str(getattr(node.target, "__name__", "")).removeprefix(f"{op.name}_")
    return in_effect(parse_quant_config(op, {"name": name, **config}, f"node {node.name!r}"))


def in_effect(quant: QuantConfig) -> Formats:
    """The formats of a configuration, of which a bypassed one has none."""
    return {} if quant.bypass else quant.operands


def element_bits(fmt: NumberFormat | None, dtype: torch.dtype) -> int:
    """The width at which one element enters a multiplier; what a block shares stays outside.

    Only floating-point tensors are rounded, so any other keeps the width of its dtype.
    """
    rounded = fmt is not None and dtype.is_floating_point
    return fmt.element_bits if fmt is not None and rounded else dtype_format(dtype)[1]


def stored_bits(fmt: NumberFormat | None, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The bits of a whole tensor, what its blocks share included."""
    if fmt is None or not dtype.is_floating_point:
        return dtype_format(dtype)[1] * prod(shape)
    return round(fmt.bits_of(shape) * prod(shape))


def stored_parameters(module: nn.Module, formats: Formats) -> Iterator[StoredParameter]:
    """The parameters of a module and of what is inside it, pruned ones included.

    What quantisers own is left aside: it ends up in the format, not beside the weights.
    """
    for name, parameter in module.named_parameters():
        if name.startswith(f"{QUANTIZERS}."):
            continue
        fmt = formats.get(plain_name(name))
        bits = stored_bits(fmt, tuple(parameter.shape), parameter.dtype)
        yield StoredParameter(parameter, bits)


def widest(stored: Iterable[StoredParameter]) -> dict[nn.Parameter, int]:
    """Each parameter once; one that several layers share must be stored for the most exacting."""
    found: dict[nn.Parameter, int] = {}
    for parameter, bits in stored:
        found[parameter] = max(bits, found.get(parameter, 0))
    return found


def model_parameters(model: nn.Module) -> dict[nn.Parameter, int]:
    """Every parameter of a model once, with the bits that storing it takes."""
    quantised = [module for module in model.modules() if isinstance(module, QuantizedModule)]
    inside = {part for module in quantised for part in module.modules()}
    return widest(
        [
            found
            for module in quantised
            for found in stored_parameters(module, formats_of_module(module))
        ]
        + [
            StoredParameter(parameter, stored_bits(None, tuple(parameter.shape), parameter.dtype))
            for module in model.modules()
            if module not in inside
            for parameter in module.parameters(recurse=False)
        ]
    )
