"""Quantisers: they round an operand and have a state, such as trained parameters.

A number format is a frozen value. One that learns says how to make its quantiser
(`NumberFormat.quantizer`); the quantised operation owns it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.quant_config import OUTPUT
from chop.numerics import NumberFormat, Operand, Quantizer

__all__ = ["QUANTIZERS", "Quantizer", "Rounder", "loss_terms", "make_quantizers"]
QUANTIZERS = "quantizers"
"""The name under which a quantised operation registers them."""
Rounder = NumberFormat | Quantizer
"""What is called with a tensor to round it."""


def make_quantizers(
    layer: Any, formats: Mapping[str, NumberFormat], known: Mapping[str, Quantizer]
) -> dict[str, Quantizer]:
    """The quantiser of each operand whose format has one, by role.

    Args:
        layer: the quantised module; for a parameter that it lacks no quantiser is made.
        known: quantisers that stay as they are.
    """
    found: dict[str, Quantizer] = {}
    for role, fmt in formats.items():
        own = parameter_of(layer, role)
        if role in layer.operation.params and own is None and layer.operation.parameters is None:
            continue
        operand = Operand(layer.op.name, role, own, channels_of(layer, role, own))
        made = known.get(role) or fmt.quantizer(operand)
        if not isinstance(made, Quantizer | None):
            raise ConfigError(
                f"{type(fmt).__name__}.quantizer must give a chop.nn.quantizers.Quantizer or None "
                f"(got a {type(made).__name__})"
            )
        if made is not None:
            device = next((each.device for each in layer.parameters()), None)
            found[role] = made.to(device).train(layer.training)
    return found


def parameter_of(layer: Any, role: str) -> Tensor | None:
    """The parameter that an operand is; None where several share the role, as in an LSTM."""
    if role not in layer.operation.params or layer.operation.parameters is not None:
        return None
    own: Tensor | None = getattr(layer, role, None)
    return own


def channels_of(layer: Any, role: str, own: Tensor | None) -> tuple[int, ...] | None:
    """The shape of one number for each channel of an operand, if that is known.

    Args:
        own: the operand, where it is a parameter; its first dimension has the channels.
    """
    if own is not None:
        return own.shape[:1] + (1,) * (own.dim() - 1)
    weight = getattr(layer, "weight", None)
    if not layer.op.has_weight_matrix or not isinstance(weight, Tensor):
        return None
    inputs = weight.shape[1] * getattr(layer, "groups", 1)
    count = weight.shape[0] if role == OUTPUT else inputs
    return (count,) + (1,) * (weight.dim() - 2)


def loss_terms(model: nn.Module) -> list[Callable[[], Tensor]]:
    """The terms that training adds to its loss: the `loss_term()` of every part that has one."""
    terms = (getattr(module, "loss_term", None) for module in model.modules())
    return [term for term in terms if callable(term)]
