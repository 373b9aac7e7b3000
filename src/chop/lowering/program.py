"""Integer programs of quantised networks: values, a closed set of steps, a program.

A value is a tensor of integer codes for each row of a batch; the number that a code stands for is
``code * 2**-frac * scale``. Shapes leave out the batch: no step looks at more than one row. `frac`,
`low` and `high` are int64 arrays that broadcast to the shape, so that they may differ between
channels or elements; every code lies between `low` and `high`, whatever the input. `scale` is such
an array of positive numbers, and 1 where scales are powers of two; steps compute with codes alone,
so that it says only what the codes stand for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Numbers = NDArray[np.float64]
Shape = tuple[int, ...]
PADDING = -1
"""In the index of a `Move`: a zero that comes from nowhere."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of codes, its binary point, its range and its scale."""

    name: str
    shape: Shape
    frac: Codes
    low: Codes
    high: Codes
    scale: Numbers = field(default_factory=lambda: np.ones(()))

    @property
    def is_scaled(self) -> bool:
        """True if the binary point alone does not say what a code stands for."""
        return bool((self.scale != 1).any())

    @property
    def unit(self) -> Numbers:
        """The number that the code 1 stands for, in an array that broadcasts to the shape."""
        return np.asarray(np.ldexp(self.scale, -self.frac))

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest code of any element."""
        return int(self.low.min()), int(self.high.max())

    @property
    def size(self) -> int:
        """Elements of a row."""
        return int(np.prod(self.shape))

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        fracs = sorted({int(self.frac.min()), int(self.frac.max())})
        low, high = self.limits
        scale = f" scale {_scale_range(self.scale)}" if self.is_scaled else ""
        return f"{self.name}: {shape} frac {'..'.join(map(str, fracs))}{scale} in {low}..{high}"


@dataclass(frozen=True, eq=False)
class Input:
    """The format that makes numbers the codes of an input value."""

    value: Value
    placeholder: str
    """The argument of the network that is rounded."""
    format: Mapping[str, Any] | None
    """The number format as a dictionary with its name; None where the network takes integers."""


@dataclass(frozen=True, eq=False)
class Step:
    """One operation on values: what it reads, what it gives, and the node it was made from."""

    node: str
    sources: tuple[str, ...]
    out: Value
    in_double: bool = field(default=False, kw_only=True)
    """The simulation computes it in float64, in whatever type the network is."""

    arithmetic: ClassVar[bool] = False
    """Whether the step adds or multiplies, so that its result may need more bits."""


@dataclass(frozen=True, eq=False)
class Constant(Step):
    """The same codes for every row."""

    codes: Codes


@dataclass(frozen=True, eq=False)
class Product(Step):
    """Products of the last dimension with the rows of a constant matrix, and a bias."""

    weight: Codes
    bias: Codes

    arithmetic = True


@dataclass(frozen=True, eq=False)
class Convolution(Step):
    """Convolution of channels first, over one to three dimensions, with constants; zeros around."""

    weight: Codes
    bias: Codes
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int

    arithmetic = True


@dataclass(frozen=True, eq=False)
class MatMul(Step):
    """Matrix product of two values over their last two dimensions; the others are equal."""

    arithmetic = True


@dataclass(frozen=True, eq=False)
class Sum(Step):
    """Sources of the shape of the result or broadcast to it, each times a constant."""

    factors: tuple[Codes, ...]

    arithmetic = True


@dataclass(frozen=True, eq=False)
class Multiply(Step):
    """Element by element product of two sources, broadcast to the shape of the result."""

    arithmetic = True


@dataclass(frozen=True, eq=False)
class Clamp(Step):
    """Codes limited to a range: ReLU and what is like it."""

    low: Codes
    high: Codes


@dataclass(frozen=True, eq=False)
class Pool(Step):
    """The largest code, or the sum, of each window over the dimensions after the first."""

    kind: Literal["max", "sum"]
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    arithmetic = True


@dataclass(frozen=True, eq=False)
class Move(Step):
    """Codes in another place: element i is element ``index[i]`` of all sources, one by one."""

    index: Codes | None
    """None if all elements of the only source stay in order, and the shape alone changes."""


@dataclass(frozen=True, eq=False)
class Table(Step):
    """Any function of one code: element i is ``table[rows[i], code - start]``."""

    table: Codes
    rows: Codes
    """Which row of the table an element uses; broadcasts to the shape."""
    start: int
    stable: bool
    """PyTorch gave the same codes in another memory layout."""


@dataclass(frozen=True, eq=False)
class Lookup(Step):
    """Rows of a table chosen by codes: an embedding."""

    table: Codes


@dataclass(frozen=True, eq=False)
class Requantise(Step):
    """Another binary point, `shift` bits less after it, and codes between `low` and `high`."""

    shift: Codes
    low: Codes
    high: Codes
    rounding: Literal["half_even", "half_up"]
    overflow: Literal["saturate", "wrap"]


@dataclass(frozen=True, eq=False)
class Rescale(Step):
    """Codes of another scale: times `multiplier`, divided by ``2**shift``, rounded and limited.

    The rounding is that of `chop.numerics.arithmetic`, which the simulation computes, too.
    """

    multiplier: Codes
    shift: Codes
    low: Codes
    high: Codes
    rounding: Literal["half_even", "half_up"]
    in_integers: bool
    """The simulation computes the step by the same integers; otherwise by floating point."""

    @property
    def division(self) -> Requantise:
        """The rounding and the limits alone, of codes that were multiplied."""
        return Requantise(
            self.node, self.sources, self.out, self.shift, self.low, self.high, self.rounding,
            "saturate", in_double=self.in_double,
        )  # fmt: skip

    def product_of(self, source: Value) -> Value:
        """The value that is divided."""
        products = np.broadcast_arrays(source.low * self.multiplier, source.high * self.multiplier)
        return replace(source, name=f"{source.name} times", low=products[0], high=products[1])


STEPS: dict[str, type[Step]] = {
    kind.__name__: kind
    for kind in (
        *(Constant, Product, Convolution, MatMul, Sum, Multiply, Clamp, Pool, Move, Table, Lookup),
        *(Requantise, Rescale),
    )
}


@dataclass(frozen=True, eq=False)
class IntegerProgram:
    """Steps in the order in which they run, from input codes to output codes."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    """Names of values."""
    tail: tuple[str, ...] = ()
    """Nodes after the outputs that stay in floating point."""

    @property
    def values(self) -> dict[str, Value]:
        """Every value by name."""
        inputs = {each.value.name: each.value for each in self.inputs}
        return inputs | {step.out.name: step.out for step in self.steps}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for each in self.inputs:
            how = "integers" if each.format is None else _settings(each.format)
            yield f"input {each.value} = {each.placeholder} as {how}"
        for step in self.steps:
            kind, reads = type(step).__name__.lower(), ", ".join(step.sources)
            yield f"{step.out} = {kind}({reads}){_shown(step)}"
        yield f"output {', '.join(self.outputs)}"
        if self.tail:
            yield f"cut off {', '.join(self.tail)}"


def needed_steps(steps: list[Step], outputs: list[str]) -> tuple[Step, ...]:
    """The steps that lead to the outputs."""
    needed = set(outputs)
    kept = []
    for step in reversed(steps):
        if step.out.name in needed:
            needed.update(step.sources)
            kept.append(step)
    return tuple(reversed(kept))


def _settings(settings: Mapping[str, Any]) -> str:
    shown = {name: _range(value) for name, value in settings.items() if name != "name"}
    return " ".join(f"{name} {value}" for name, value in shown.items())


def _range(value: Any) -> Any:
    """A setting; of one for each channel or element, the smallest and the largest."""
    return f"{np.min(value)}..{np.max(value)}" if isinstance(value, list) else value


def _scale_range(scale: Numbers) -> str:
    ends = sorted({f"{float(end):.6g}" for end in (scale.min(), scale.max())}, key=float)
    return "..".join(ends)


def own_fields(step: type[Step]) -> tuple[str, ...]:
    """The names of what a kind of step has beside what all have."""
    shared = {field.name for field in fields(Step)}
    return tuple(field.name for field in fields(step) if field.name not in shared)


def _shown(step: Step) -> str:
    """The fields of a step, arrays by value where they are one number and by shape elsewhere."""
    shown = ((name, getattr(step, name)) for name in own_fields(type(step)))
    return "".join(f" {name} {_short(value)}" for name, value in shown if name != "index")


def _short(value: object) -> str:
    if isinstance(value, np.ndarray):
        return str(value.item()) if value.size == 1 else "x".join(map(str, value.shape))
    if isinstance(value, tuple):
        return ",".join(map(_short, value)) or "none"
    return str(value)
