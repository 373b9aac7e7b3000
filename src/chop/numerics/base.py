"""The base of all number formats: typed fields, rounding, codes, a gradient and a size."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.registry import Registry

AUTO = "auto"
"""In place of a number that is to come from observed values."""


@dataclass(frozen=True)
class OrAuto:
    """Marks a field that may be "auto" in place of a value of its type, which is `kind`."""

    kind: Any

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            lambda value, plain: value if type(value) is str and value == AUTO else plain(value),
            handler.generate_schema(self.kind),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )


class Encoded(NamedTuple):
    """A tensor as the bits that would be stored.

    Attributes:
        codes: one integer for each element, shaped like the tensor.
        shared: what each block shares, one entry for each block; None where nothing is shared.
        dtype: the type of the tensor that was encoded, which is what decoding gives back.
        overall: a scale for the whole tensor, or for each index of its first dimension.
    """

    codes: Tensor
    shared: Tensor | None
    dtype: torch.dtype
    overall: Tensor | None = None


class Operand(NamedTuple):
    """The facts that a format may know of the operand that it rounds.

    Attributes:
        op: the name of the operation.
        role: which operand it is: ``data_in``, ``weight``, ``bias``, …, ``data_out``.
        parameter: the tensor that the layer holds; None for what flows through.
        channels: the shape of one number for each channel, which broadcasts against the operand;
            None where it is not known which dimension has the channels.
    """

    op: str
    role: str
    parameter: Tensor | None
    channels: tuple[int, ...] | None = None


class Quantizer(nn.Module):
    """Rounds one operand of one operation; its parameters and buffers are those of the layer."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """`x`, rounded; the gradients of `x` and of the quantiser's parameters flow through."""

    @abstractmethod
    def freeze(self) -> "NumberFormat":
        """The plain format that rounds to the same bits as the quantiser does now."""

    def freeze_on(self, parameter: Tensor | None) -> "NumberFormat":
        """The same for the parameter of a layer, whose values may decide; None for data."""
        return self.freeze()

    @abstractmethod
    def bits(self) -> Tensor:
        """The bits of an element, of the whole tensor or of each part; it can be differentiated."""


class NumberFormat(BaseModel):
    """A set of representable numbers and the rule that rounds any number to one of them.

    The fields of a format are the last parts of its configuration keys: `width` of a weight is
    written ``weight_width``. A format is a frozen value: equal fields make equal formats.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    label: ClassVar[str]
    """The part of a class name that stands for the format, as in ``LinearInteger``."""
    every_operand: ClassVar[bool] = False
    """Whether all operands are rounded, also those that a configuration does not mention."""
    scale_field: ClassVar[str | None] = None
    """The field whose number n divides all numbers of the format by 2**n; it may be "auto"."""
    largest_scale: ClassVar[int] = 1000
    """The largest magnitude of that number."""

    @abstractmethod
    def round_to(self, x: Tensor) -> Tensor:
        """The nearest representable value of each element, as a new tensor of the same dtype.

        Gradients are not recorded; calling the format itself does that.
        """

    @abstractmethod
    def encode(self, x: Tensor) -> Encoded:
        """The stored bits of `x` rounded to this format."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """The numbers that the stored bits stand for."""

    @classmethod
    def defaults_for(cls, role: str, *, flows: bool) -> dict[str, Any]:
        """Fields whose default depends on the operand.

        Args:
            flows: the operand flows through, rather than being a parameter.
        """
        return {}

    @property
    @abstractmethod
    def element_bits(self) -> int:
        """Bits of the code of one element, what a block shares left aside."""

    @property
    def shared_bits(self) -> int:
        """Bits of what one block shares."""
        return 0

    @property
    def bits(self) -> float:
        """Bits stored for one element, its part of what a block shares included."""
        return self.element_bits

    @property
    def mean_element_bits(self) -> float:
        """The same as `element_bits`, on average where elements have several widths."""
        return self.element_bits

    def bits_of(self, shape: Sequence[int]) -> float:
        """Bits stored for one element of a tensor of this shape; `bits` does not know the shape."""
        return self.bits

    @property
    def is_open(self) -> bool:
        """The scale is "auto": the format cannot round until it is calibrated."""
        return self.scale_field is not None and getattr(self, self.scale_field) == AUTO

    def require_closed(self) -> None:
        """Refuse to round before there is a scale."""
        if self.is_open:
            raise ConfigError(
                f"{self.scale_field} of {type(self).__name__} is 'auto', and no batches have set "
                "it: run calibrate_transform_pass(graph, {'input_generator': batches}) first, or "
                "give it a number"
            )

    def with_scale(self, number: Any) -> Self:
        """The format with this number as its scale; None stands for the default."""
        assert self.scale_field is not None
        return self.model_copy(update={self.scale_field: number})

    @property
    def saturation(self) -> tuple[Any, Any] | None:
        """Numbers below the first and from the second on saturate; None if none does.

        Both are numbers, or arrays that broadcast against the tensor. Blocks, which scale
        themselves by what they hold, do not saturate in this sense.
        """
        return None

    def require_shape(self, shape: Sequence[int]) -> None:
        """Refuse a tensor whose shape the format does not fit; most fit every shape."""

    def fixed_on(self, x: Tensor) -> "NumberFormat":
        """The format with all it takes from the whole of `x` as settings, to round parts of it."""
        return self

    def gradient(self, x: Tensor, grad: Tensor) -> Tensor:
        """The gradient that passes through rounding at `x`: straight through, unless overridden."""
        return grad

    def quantizer(self, operand: Operand) -> Quantizer | None:
        """A quantiser with a state, to round one operand of one operation.

        None, which is the default, means that the format rounds by itself.
        """
        return None

    def round_(self, x: Tensor) -> None:
        """Round a tensor that records no gradients in place."""
        x.copy_(self.round_to(x))

    def __call__(self, x: Tensor) -> Tensor:
        """Round `x`; where gradients are recorded, let them through."""
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self.round_to(x)
        if type(self).gradient is not NumberFormat.gradient:
            rounded: Tensor = OwnGradient.apply(x, self)  # type: ignore[no-untyped-call]
            return rounded
        # The gradient of a copy is the straight-through one, and costs far less than a Function.
        rounded = x.clone()
        self.round_(rounded.detach())
        return rounded

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The format with some fields changed; unlike pydantic's own, the change is checked."""
        return type(self).model_validate(self.fields() | dict(update or {}))

    def __copy__(self) -> Self:
        return self  # a value that cannot change needs no second copy

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).model_validate, (self.fields(),)  # without what was worked out

    def fields(self) -> dict[str, Any]:
        """The fields as they are, where a dump has nested lists."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def shown(self) -> dict[str, Any]:
        """The fields that are not as by default, in as few words as a table has room for."""
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return {name: value for name, value in self.fields().items() if value != defaults[name]}


FORMATS: Registry[type[NumberFormat]] = Registry("number format")


def require_float(fmt: NumberFormat, dtype: torch.dtype) -> None:
    """Refuse tensors that are not floating point."""
    if not dtype.is_floating_point:
        raise ConfigError(f"{type(fmt).__name__} rounds floating-point tensors, not {dtype}")


class OwnGradient(torch.autograd.Function):
    """Rounding forward, the gradient that the format defines backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: NumberFormat) -> Tensor:
        ctx.fmt = fmt
        ctx.save_for_backward(x)
        return fmt.round_to(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.fmt.gradient(x, grads[0]), None
