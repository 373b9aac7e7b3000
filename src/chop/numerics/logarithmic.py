"""Powers of two."""

from functools import cached_property
from typing import ClassVar

from pydantic import Field

from chop.numerics.base import FORMATS
from chop.numerics.elementwise import ElementFormat
from chop.numerics.grids import LogGrid


@FORMATS.register("log")
class Log(ElementFormat):
    """Zero and powers of two: a sign and `width` - 1 bits of exponent, of which code 0 is zero."""

    label: ClassVar[str] = "Log"

    width: int = Field(ge=2, le=11)
    exponent_bias: int | None = Field(default=None, ge=-1000, le=1000)

    @property
    def bias(self) -> int:
        """The exponent bias in use: half the exponent's range, unless given."""
        return 2 ** (self.width - 2) - 1 if self.exponent_bias is None else self.exponent_bias

    @cached_property
    def grid(self) -> LogGrid:
        return LogGrid(self.width, 1 - self.bias)
