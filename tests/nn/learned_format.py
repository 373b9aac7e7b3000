"""A user's number format that learns its width: the smallest real use of quantisers."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from chop.nn.quantizers import Quantizer
from chop.numerics import Integer, Operand

NAME = "learned_width"


def straight_through(x: Tensor) -> Tensor:
    """The nearest integers, with the gradient of `x` itself."""
    return x + (x.round() - x).detach()


class LearnedWidth(Integer):
    """Fixed point whose width is trained; the bits before the point stay as many."""

    label: ClassVar[str] = "LearnedWidth"

    strength: float = Field(default=0.0, ge=0)

    def quantizer(self, operand: Operand) -> "WidthQuantizer | None":
        # Results are rounded by the format itself, so that both kinds meet in one operation.
        return None if operand.role == "data_out" else WidthQuantizer(self)


class WidthQuantizer(Quantizer):
    """Rounds to the width that it has learned so far."""

    def __init__(self, fmt: LearnedWidth) -> None:
        super().__init__()
        self.before_point = fmt.width - fmt.frac_width
        self.strength = fmt.strength
        self.signed = fmt.signed
        self.width = nn.Parameter(torch.tensor(float(fmt.width)))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        width = straight_through(self.width)
        scale = 2.0 ** (width - self.before_point)
        levels = 2.0 ** (width - 1 if self.signed else width)
        low = -levels if self.signed else torch.zeros_like(levels)
        codes = torch.minimum(torch.maximum(straight_through(x * scale), low), levels - 1)
        return codes / scale

    def freeze(self) -> Integer:
        width = round(float(self.width))
        return Integer(width=width, frac_width=width - self.before_point, signed=self.signed)

    def bits(self) -> Tensor:
        return self.width

    def loss_term(self) -> Tensor:
        return self.strength * self.bits()
