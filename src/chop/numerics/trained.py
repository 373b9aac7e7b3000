"""Fixed point whose binary points are trained: the format, and the quantisers that learn.

Half-way cases go up. While a network trains nothing saturates and the gradient passes straight
through; ``ln 2 · (x - rounded x)`` of it reaches the bits after the point. In evaluation a value
saturates at the bits that the values seen so far need, as the plain format will once it is frozen.
"""

import math
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.numerics.arithmetic import half_way_up
from chop.numerics.base import FORMATS, Encoded, NumberFormat, Operand, Quantizer
from chop.numerics.elementwise import Integer

LN2 = math.log(2.0)
UNSEEN = 16
"""Bits before the point as long as no value was seen."""
WEIGHT_LIMITS, DATA_LIMITS = (-8.0, 10.0), (-6.0, 8.0)
"""Between which bits after the point stay; a start beyond them moves the upper limit."""
START = {"weight": 4.0, "bias": 6.0}
DATA_START = 3.0


@FORMATS.register("integer_trained")
class IntegerTrained(NumberFormat):
    """Fixed point with trained fractional bits; integer bits follow the values.

    `frac_width` is what training starts from. `granularity` is the finest part that has a separate
    number of bits: channels of data are known to layers, elements to parameters, and anything else
    has one for the whole tensor. Without `learns` the bits stay what they are. A value that needs
    no bits is zero.
    """

    label: ClassVar[str] = "IntegerTrained"
    every_operand: ClassVar[bool] = True

    frac_width: float = Field(default=4.0, ge=-24, le=24)
    granularity: Literal["tensor", "channel", "element"] = "element"
    learns: bool = True

    @classmethod
    def defaults_for(cls, role: str, *, flows: bool) -> dict[str, Any]:
        start = DATA_START if flows else START.get(role, cls.model_fields["frac_width"].default)
        granularity = "channel" if flows else "element"
        return {"frac_width": start, "granularity": granularity, "learns": role != "bias"}

    @cached_property
    def start(self) -> Integer:
        """The format that stands in where nothing can learn, as in a function."""
        frac = round(self.frac_width)
        width = max(UNSEEN + frac + 1, 1)
        return Integer(width=width, frac_width=frac, rounding="half_up")

    def round_to(self, x: Tensor) -> Tensor:
        return self.start.round_to(x)

    def round_(self, x: Tensor) -> None:
        self.start.round_(x)

    def encode(self, x: Tensor) -> Encoded:
        return self.start.encode(x)

    def decode(self, encoded: Encoded) -> Tensor:
        return self.start.decode(encoded)

    @property
    def element_bits(self) -> int:
        return self.start.element_bits

    def quantizer(self, operand: Operand) -> "TrainedQuantizer":
        kind = TrainedData if operand.parameter is None else TrainedParameter
        return kind(self, self.shape_for(operand))

    def shape_for(self, operand: Operand) -> tuple[int, ...]:
        """The shape of the bits, which broadcasts against the operand."""
        if self.granularity == "element" and operand.parameter is not None:
            return tuple(operand.parameter.shape)
        return () if self.granularity == "tensor" else operand.channels or ()


class LearnedScale(torch.autograd.Function):
    """Two to the nearest whole number of bits; its gradient comes from `Rounded`."""

    @staticmethod
    def forward(ctx: Any, frac_width: Tensor) -> Tensor:
        return codes_per_unit(frac_width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * LN2


def codes_per_unit(frac_width: Tensor) -> Tensor:
    """Codes for each unit."""
    return frac_width.detach().round().exp2_()


class Rounded(torch.autograd.Function):
    """Rounds to multiples of the reciprocal of `scale`.

    What is handed back for `scale` is ``(x - rounded x) · gradient``, which is the gradient of the
    bits but for ln 2; what made the scale multiplies by it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, reciprocal: Tensor, codes: "Codes | None" = None
    ) -> Tensor:
        found = floor_of_sum(x, scale) if codes is None else codes(x, scale)
        rounded = found.mul_(reciprocal)
        if rounded.dtype != x.dtype:
            rounded = rounded.to(x.dtype)
        ctx.scale_shape = scale.shape
        ctx.save_for_backward(x, rounded)
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (grad,) = grads
        of_scale = None
        if ctx.needs_input_grad[1]:
            x, rounded = ctx.saved_tensors
            of_scale = sum_to_shape(torch.sub(x, rounded).mul_(grad), ctx.scale_shape)
        return (grad if ctx.needs_input_grad[0] else None), of_scale, None, None


def floor_of_sum(x: Tensor, scale: Tensor) -> Tensor:
    """The codes of a tensor as training sees them: the whole part of one half more."""
    if x.dtype != scale.dtype:
        return torch.mul(x, scale).add_(0.5).floor_()
    return torch.addcmul(half(x.dtype, x.device), x, scale).floor_()  # one pass less


@cache
def half(dtype: torch.dtype, device: torch.device) -> Tensor:
    """One half as a tensor."""
    return torch.full((), 0.5, dtype=dtype, device=device)


class Codes:
    """The codes of a tensor, exactly: also next to half-way cases, where adding one half rounds."""

    def __init__(self, low: Tensor | None = None, high: Tensor | None = None) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Tensor, scale: Tensor) -> Tensor:
        scaled = x * scale
        codes = half_way_up(scaled)
        return codes if self.low is None else codes.clamp_(self.low, self.high)


def bit_length(codes: Tensor) -> Tensor:
    """The bits of the magnitude of whole numbers."""
    return torch.frexp(codes)[1]


class TrainedQuantizer(Quantizer):
    """The part of both kinds: bits after the point that are trained, or stay."""

    frac_width: Tensor
    limits: tuple[float, float]

    def __init__(self, fmt: IntegerTrained, shape: tuple[int, ...]) -> None:
        super().__init__()
        start = torch.full(shape, fmt.frac_width)
        self.learns = fmt.learns
        if fmt.learns:
            self.frac_width = nn.Parameter(start)
        else:
            self.register_buffer("frac_width", start)
        self.highest = max(fmt.frac_width, self.limits[1])
        self.given: Any = None
        """What the fused rounding of the whole network has worked out for this forward pass."""
        self.fused = False

    @torch.no_grad()
    def clamp(self) -> None:
        """Keep the bits within their limits."""
        if self.learns:
            self.frac_width.clamp_(self.limits[0], self.highest)

    def _trained(self, x: Tensor) -> Tensor:
        """`x` as training sees it where nothing was worked out before."""
        if self.fused and torch._C._current_graph_task_id() != -1:
            raise ConfigError(
                "widths cannot be learned with activation checkpointing, which computes layers "
                "again in the backward pass: switch it off"
            )
        scale: Tensor = LearnedScale.apply(self.frac_width)  # type: ignore[no-untyped-call]
        rounded: Tensor = Rounded.apply(x, scale, scale.detach().reciprocal())  # type: ignore[no-untyped-call]
        return rounded

    def _round_in_evaluation(self, x: Tensor, codes: Codes) -> Tensor:
        """`x` as evaluation sees it, exactly as the frozen format rounds it."""
        scale = codes_per_unit(self.frac_width)
        rounded: Tensor = Rounded.apply(x, scale, scale.reciprocal(), codes)  # type: ignore[no-untyped-call]
        return rounded

    def _plain(self, low: Tensor, high: Tensor) -> Integer:
        """The plain format that has codes from `low` to `high`."""
        magnitude, negative = bits_between(low, high)
        width = (magnitude + negative).to(torch.int64)
        some = width > 0
        frac = self.frac_width.detach().round().to(torch.int64).where(some, 0)
        if not width.dim() and not some:  # only inside a list may a width be 0
            width, frac, negative = width[None], frac[None], negative[None]
        return Integer(width=width, frac_width=frac, signed=negative, rounding="half_up")  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return f"shape={tuple(self.frac_width.shape)}, learns={self.learns}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"given": None, "fused": False}  # a copy has no part in the rounding


def bits_between(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The bits of all codes between two, without the sign, and whether there is one."""
    return bit_length(torch.maximum(high, -low - 1).clamp_min_(0)), low < 0


class TrainedParameter(TrainedQuantizer):
    """Rounds a parameter; the bits before the point are those that its values need."""

    limits = WEIGHT_LIMITS

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self._round_in_evaluation(x, Codes())
        if self.given is not None:
            rounded: Tensor = self.given
            return rounded
        return self._trained(x)

    def freeze(self) -> Integer:
        raise ConfigError("the width of a parameter depends on its values: ask the layer (frozen)")

    @torch.no_grad()
    def freeze_on(self, parameter: Tensor | None) -> Integer:
        assert parameter is not None
        codes = Codes()(parameter, codes_per_unit(self.frac_width))
        return self._plain(*extremes(codes, self.frac_width.shape))

    def bits(self) -> Tensor:
        return self.frac_width  # those before the point are for the values to say


class TrainedData(TrainedQuantizer):
    """Rounds what flows through a network; the bits before the point follow the values seen."""

    limits = DATA_LIMITS
    lo: Tensor
    hi: Tensor

    def __init__(self, fmt: IntegerTrained, shape: tuple[int, ...]) -> None:
        super().__init__(fmt, shape)
        self.register_buffer("lo", torch.full(shape, math.inf))
        self.register_buffer("hi", torch.full(shape, -math.inf))
        self.watching: bool | None = None
        """Whether to look at values: None while training only, unless it is fused."""

    def forward(self, x: Tensor) -> Tensor:
        if self.watching:
            self.see(x)
        if self.given is not None and self.training:
            rounded: Tensor = Rounded.apply(x, *self.given)  # type: ignore[no-untyped-call]
            return rounded
        if self.training:
            if self.watching is None:
                self.see(x)
            return self._trained(x)
        return self._round_in_evaluation(
            x, Codes() if self.watching else Codes(*self.code_limits(x.dtype))
        )

    @property
    def seen(self) -> bool:
        """True if any value was seen, be it NaN."""
        return not bool((self.lo > self.hi).any())

    @property
    def usable(self) -> bool:
        """True if values were seen, all of them finite numbers."""
        return bool((self.hi - self.lo).isfinite().all())

    @torch.no_grad()
    def see(self, x: Tensor) -> None:
        """Widen the range to hold the values of `x`."""
        low, high = extremes(x, self.lo.shape)
        self.lo.copy_(torch.minimum(self.lo, low))
        self.hi.copy_(torch.maximum(self.hi, high))

    def forget(self) -> None:
        """Start a new range."""
        self.lo.fill_(math.inf)
        self.hi.fill_(-math.inf)

    def codes_seen(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest code; where nothing was seen, those of `UNSEEN` bits."""
        scale, seen = codes_per_unit(self.frac_width), self.hi >= self.lo
        unseen = scale * 2.0**UNSEEN
        codes = Codes()
        low, high = codes(self.lo, scale), codes(self.hi, scale)
        return torch.where(seen, low, -unseen), torch.where(seen, high, unseen - 1)

    def code_limits(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The codes at which values of a type saturate: the largest that the type can hold."""
        magnitude, negative = bits_between(*self.codes_seen())
        digits = 2 - math.frexp(torch.finfo(dtype).eps)[1]
        magnitude = magnitude.to(self.lo.dtype)
        beyond = magnitude.exp2()
        high = beyond - (magnitude - digits).clamp_min_(0).exp2_()
        return torch.where(negative, -beyond, 0), high

    def magnitude_bits(self) -> Tensor:
        """The bits of the largest magnitude seen; 0 where nothing was."""
        scale = codes_per_unit(self.frac_width)
        largest = torch.maximum(self.hi, -self.lo).clamp_min_(0)
        return bit_length(Codes()(largest, scale)).to(scale.dtype)

    @torch.no_grad()
    def freeze(self) -> Integer:
        return self._plain(*self.codes_seen())

    def bits(self) -> Tensor:
        with torch.no_grad():
            magnitude, negative = bits_between(*self.codes_seen())
            before_point = magnitude + negative - self.frac_width
        return self.frac_width + before_point


def extremes(x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element in each part of `x` that has a number in `shape`."""
    dims = shared_dims(x, shape)
    return (x.amin(dims).reshape(shape), x.amax(dims).reshape(shape)) if dims else (x, x)


def sum_to_shape(x: Tensor, shape: torch.Size) -> Tensor:
    """The sum of each part of `x` that has a number in `shape`; quicker than `sum_to_size`."""
    if x.shape == shape:
        return x
    dims = shared_dims(x, shape)
    return x.sum(dims).reshape(shape) if dims else x


def shared_dims(x: Tensor, shape: torch.Size) -> list[int]:
    """The dimensions of `x` along which elements share a number."""
    kept = x.dim() - len(shape)
    return [d for d in range(x.dim()) if d < kept or shape[d - kept] == 1 != x.shape[d]]
