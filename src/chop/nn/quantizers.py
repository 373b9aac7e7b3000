"""What rounds an operand and has a state: parameters that are trained, statistics that are kept.

A number format is a frozen value. One that learns says how to make its quantiser
(`NumberFormat.quantizer`); the quantised operation owns it.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from chop.errors import ConfigError
from chop.numerics import NumberFormat, Operand

QUANTIZERS = "quantizers"
"""The name under which a quantised operation registers them."""


class Quantizer(nn.Module):
    """Rounds one operand of one operation; its parameters and buffers are those of the layer."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """`x`, rounded; the gradients of `x` and of the quantiser's parameters flow through."""

    @abstractmethod
    def freeze(self) -> NumberFormat:
        """The plain format that rounds to the same bits as the quantiser does now."""

    @abstractmethod
    def bits(self) -> Tensor:
        """The bits of an element, of the whole tensor or of each part; it can be differentiated."""


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
        own = getattr(layer, role, None) if role in layer.operation.params else None
        if role in layer.operation.params and own is None:
            continue
        made = known.get(role) or fmt.quantizer(Operand(layer.op.name, role, own))
        if not isinstance(made, Quantizer | None):
            raise ConfigError(
                f"{type(fmt).__name__}.quantizer must give a chop.nn.quantizers.Quantizer or None "
                f"(got a {type(made).__name__})"
            )
        if made is not None:
            device = next((each.device for each in layer.parameters()), None)
            found[role] = made.to(device).train(layer.training)
    return found


def loss_terms(model: nn.Module) -> list[Callable[[], Tensor]]:
    """What training adds to its loss: the `loss_term()` of every part of a model that has one."""
    terms = (getattr(module, "loss_term", None) for module in model.modules())
    return [term for term in terms if callable(term)]
