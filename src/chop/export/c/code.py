"""Pieces of C: types, numbers, constants, and a function for each kind of layer."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from textwrap import fill, indent

import numpy as np

from chop.lowering.program import Codes, Shape, Value

SIGNED = ((8, "int8_t"), (16, "int16_t"), (32, "int32_t"), (64, "int64_t"))
UNSIGNED = ((8, "uint8_t"), (16, "uint16_t"), (32, "uint32_t"))
BYTES = {name: bits // 8 for bits, name in (*SIGNED, *UNSIGNED)}
SHORT = {name: name[0] + str(8 * size) for name, size in BYTES.items()}
"""Names of the same types that may alias each other, as memory is used again for other types."""
ARRAYS = re.compile(r"\b(?:[cgv]\d+|input\d+|output\d+)\b")
"""Names of constants, geometries, buffers, inputs and outputs, as statements have them."""


def c_type(low: int, high: int) -> str:
    """The smallest type that holds both numbers, signed where the sizes are the same."""
    for bits, name in SIGNED:
        if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1):
            return name
        unsigned = dict(UNSIGNED).get(bits)
        if unsigned and low >= 0 and high < 2**bits:
            return unsigned
    raise ValueError(f"no type holds {low}..{high}")


def value_type(value: Value) -> str:
    """The C type of the codes of a value."""
    return c_type(*value.limits)


def short_type(value: Value) -> str:
    """The name that a type has inside the file."""
    return SHORT[value_type(value)]


def sum_type(magnitude: int) -> str:
    """The type in which numbers up to a magnitude are computed."""
    return "int32_t" if magnitude < 2**31 else "int64_t"


def literal(value: int) -> str:
    """A number as C writes it."""
    if -(2**15) <= value < 2**15:
        return str(value)
    if -(2**31) < value < 2**31:
        return f"INT32_C({value})"
    return f"INT64_C({value})"


def comment_line(text: str) -> str:
    """Text that neither ends a comment nor seems to begin one."""
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")


def loops(sizes: Shape, body: Iterable[str], letter: str = "i") -> Iterator[str]:
    """Nested loops around statements, over i0, i1 and so on."""
    for axis, size in enumerate(sizes):
        name = f"{letter}{axis}"
        yield "    " * axis + f"for (int {name} = 0; {name} < {size}; {name}++) {{"
    for line in body:
        yield "    " * len(sizes) + line
    for level in reversed(range(len(sizes))):
        yield "    " * level + "}"


def flat_index(sizes: Shape, letter: str) -> str:
    """The index into an array that is read by loops over all its dimensions."""
    index = f"{letter}0"
    for axis, size in enumerate(sizes[1:], 1):
        index = f"({index}) * {size} + {letter}{axis}"
    return index


def runs(index: Codes, offsets: Codes) -> list[tuple[int, int, int, int]]:
    """Split an index into copies: source, place in it, place in the result and length of each.

    A source of -1 stands for zeros.
    """
    source = np.where(index < 0, -1, np.searchsorted(offsets, index, side="right") - 1)
    breaks = (np.diff(index) != 1) | (np.diff(source) != 0)
    breaks &= ~((index[1:] < 0) & (index[:-1] < 0))
    starts = np.concatenate([[0], np.nonzero(breaks)[0] + 1, [len(index)]])
    return [
        (
            int(source[start]),
            int(index[start] - offsets[source[start]]) if source[start] >= 0 else 0,
            int(start),
            int(end - start),
        )
        for start, end in pairwise(starts)
    ]


@dataclass(frozen=True)
class Work:
    """Numbers of repetitions in a call, where its statements do not tell them."""

    trips: Mapping[str, float] = field(default_factory=dict)
    """Iterations of loops on average, by the names of their variables."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Work of the functions that are called, in all calls of them."""


@dataclass(frozen=True)
class Call:
    """A call of a function for a layer."""

    layer: int
    function: str
    sizes: Mapping[str, int]
    work: Work
    reads: tuple[str, ...]
    """Names of the arrays that it is given."""


NO_WORK = Work()


class CText:
    """C as it is written: constants, a function for each kind of layer, and calls of them.

    Layers that differ in nothing but their arrays and sizes share a function, so that flash and
    compilers see as much code as there are kinds of layers.
    """

    def __init__(self) -> None:
        self.body: list[str] = []
        self.calls: list[Call] = []
        self.statements: list[dict[str, int]] = []
        """What each matrix that is written as statements has: terms, groups and factors."""
        self.layer = 0
        """The layer that is being written."""
        self.sizes: dict[str, int] = {}
        """Bytes of each constant."""
        self.used: set[str] = set()
        """Names of the arrays that some statement reads or writes."""
        self.kinds: dict[str, str] = {}
        """The type of a pointer to each array."""
        self._constants: dict[str, str] = {}
        self._known: dict[tuple[str, bytes], str] = {}
        self._functions: dict[str, str] = {}
        self._names = count()

    @property
    def data(self) -> list[str]:
        """The constants that are read."""
        return [text for name, text in self._constants.items() if name in self.used]

    @property
    def texts(self) -> dict[str, str]:
        """Parameters and statements of the functions that are called, by name."""
        return {name: text for text, name in self._functions.items()}

    @property
    def functions(self) -> list[str]:
        """The functions that are called."""
        return [f"static void {name}{text}" for name, text in self.texts.items()]

    def constant(self, array: Codes, kind: str | None = None) -> str:
        """Return the name of an array of constants; equal ones are stored once."""
        flat = np.ascontiguousarray(array.reshape(-1))
        kind = kind or c_type(int(flat.min()), int(flat.max()))
        key = (kind, flat.tobytes())
        if key not in self._known:
            name = self._known[key] = f"c{next(self._names)}"
            numbers = ", ".join(literal(int(value)) for value in flat)
            lines = indent(fill(numbers, 96), "    ")
            head = f"static const MODEL_FLASH {SHORT[kind]} {name}[{flat.size}]"
            self._constants[name] = f"{head} MODEL_CONSTANT = {{\n{lines}\n}};"
            self.kinds[name] = f"MODEL_FLASH {SHORT[kind]} *"
            self.sizes[name] = flat.size * BYTES[kind]
        return self._known[key]

    def geometry(self, numbers: Iterable[int]) -> str:
        """Return a pointer to the sizes of a window."""
        fields = list(numbers)
        text = ", ".join(map(str, fields))
        key = ("geometry", text.encode())
        if key not in self._known:
            name = self._known[key] = f"g{next(self._names)}"
            self._constants[name] = (
                f"static const MODEL_FLASH struct window {name}[1] = {{{{{text}}}}};"
            )
            self.kinds[name] = "MODEL_FLASH struct window *"
            self.sizes[name] = 2 * len(fields)
        return self._known[key]

    def call(
        self, lines: Iterable[str], remark: str, sizes: Iterable[tuple[str, int]] = (),
        writes: Container[str] = (), work: Work = NO_WORK,
    ) -> None:  # fmt: skip
        """Make a function of statements, or find the one that is the same; call it.

        Args:
            remark: a comment for the place where it is called.
            sizes: numbers that the statements know by name, so that layers share a function.
            writes: arrays that are written by functions which the statements call.
            work: what the statements do not tell an estimate.
        """
        text = "".join(f"    {line}\n" for line in lines)
        names = list(dict.fromkeys(ARRAYS.findall(text)))
        self.used.update(names)
        if not self.calls or self.calls[-1].layer != self.layer:
            self.body.append(f"    MODEL_LAYER({self.layer});")
        self.body += [f"    /* {comment_line(remark)} */"]
        places = {name: f"a{number}" for number, name in enumerate(names)}
        heads = [f"{self._pointer(name, text, writes)}{at}" for name, at in places.items()]
        heads += [f"int {name}" for name, _ in sizes]
        inside = ARRAYS.sub(lambda found: places[found[0]], text)
        text = f"({', '.join(heads)}) {{\n{inside}}}\n"
        function = self._functions.setdefault(text, f"layer{len(self._functions)}")
        given = [*names, *(str(number) for _, number in sizes)]
        self.calls.append(Call(self.layer, function, dict(sizes), work, tuple(names)))
        self.body.append(f"    {function}({', '.join(given)});")

    def _pointer(self, name: str, text: str, writes: Container[str]) -> str:
        """The type of a pointer to an array, to constants unless a statement writes there."""
        kind = self.kinds[name].removeprefix("const ")
        is_written = name in writes or re.search(rf"\b{name}\[[^\]]*\] = ", text)
        return kind if is_written else f"const {kind}"
