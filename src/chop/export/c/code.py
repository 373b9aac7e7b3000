"""Pieces of C: types, constants, functions, loops over elements that broadcast."""

import re
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from textwrap import fill, indent

import numpy as np

from chop.lowering.program import Codes, Shape, Value

SIGNED = ((8, "int8_t"), (16, "int16_t"), (32, "int32_t"), (64, "int64_t"))
UNSIGNED = ((8, "uint8_t"), (16, "uint16_t"), (32, "uint32_t"))
BYTES = {name: bits // 8 for bits, name in (*SIGNED, *UNSIGNED)}

HELPERS = """\
static inline int64_t floor_shift(int64_t x, int s) {
    return x >= 0 ? x >> s : ~(~x >> s);
}

static inline int64_t half_up(int64_t x, int s) {
    if (s <= 0) return x * ((int64_t)1 << -s);
    if (s > 62) return 0;
    return floor_shift(x + ((int64_t)1 << (s - 1)), s);
}

static inline int64_t half_even(int64_t x, int s) {
    if (s <= 0) return x * ((int64_t)1 << -s);
    if (s > 62) return 0;
    int64_t q = floor_shift(x, s), half = (int64_t)1 << (s - 1), rest = x - q * 2 * half;
    return q + (rest > half || (rest == half && q % 2 != 0));
}

static inline int64_t saturate(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

static inline int64_t wrap(int64_t x, int64_t low, int64_t high) {
    uint64_t mask = (uint64_t)high - (uint64_t)low;
    return (int64_t)(((uint64_t)x - (uint64_t)low) & mask) + low;
}
"""


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


def sum_type(magnitude: int) -> str:
    """The type in which sums up to a magnitude are computed."""
    return "int32_t" if magnitude < 2**31 else "int64_t"


def literal(value: int) -> str:
    """A number as C writes it."""
    return str(value) if -(2**31) < value < 2**31 else f"INT64_C({value})"


ARRAYS = re.compile(r"\b(?:c\d+|b\.v\d+|input\d+)\b")
"""Names of constants, buffers and inputs, as statements have them."""


class Code:
    """C as it is written: constants, buffers, a function for each kind of step, calls of them.

    Steps that differ in nothing but their arrays share a function, which takes pointers to arrays:
    sanitisers know their sizes then. So compilers see as much code as there are kinds of steps.
    All buffers are one structure: what pointers to thousands of variables may point to takes a
    compiler minutes to work out.
    """

    def __init__(self) -> None:
        self.buffer_bytes = 0
        self.body: list[str] = []
        self.used: set[str] = set()
        """Names of the arrays that some statement reads or writes."""
        self._buffers: list[str] = []
        self._constants: dict[str, str] = {}
        self._kinds: dict[str, tuple[str, int]] = {}
        self._functions: dict[str, str] = {}
        self._lines: list[str] = []
        self._names = count()

    @property
    def data(self) -> list[str]:
        """The constants that are read."""
        return [text for name, text in self._constants.items() if name in self.used]

    @property
    def functions(self) -> list[str]:
        """The functions that are called."""
        return [f"static void {name}{text}" for text, name in self._functions.items()]

    @property
    def buffers(self) -> str:
        """The structure of all buffers; nothing if there are none."""
        fields = "\n".join(self._buffers)
        return f"struct buffers {{\n{fields}\n}};" if fields else ""

    def constant(self, array: Codes) -> str:
        """The name of an array of constants."""
        name = f"c{next(self._names)}"
        numbers = ", ".join(literal(int(value)) for value in array.reshape(-1))
        kind = c_type(int(array.min()), int(array.max()))
        lines = indent(fill(numbers, 96), "    ")
        self._constants[name] = f"static const {kind} {name}[{array.size}] = {{\n{lines}\n}};"
        self._kinds[name] = f"const {kind}", array.size
        return name

    def input(self, place: int, kind: str, size: int) -> str:
        """The name of an input."""
        name = f"input{place}"
        self._kinds[name] = f"const {kind}", size
        return name

    def buffer(self, kind: str, size: int) -> str:
        """The name of a buffer."""
        field = f"v{next(self._names)}"
        self._buffers.append(f"    {kind} {field}[{size}];")
        self.buffer_bytes += size * BYTES[kind]
        self._kinds[name := f"b.{field}"] = kind, size
        return name

    def add(self, lines: Iterable[str]) -> None:
        """Add statements to the step that is being written."""
        self._lines += lines

    def finish(self, remark: str) -> None:
        """Make a function of the statements of a step, or find the one that is the same; call it.

        Args:
            remark: what is said of the step where it is called.
        """
        lines, self._lines = "".join(f"    {line}\n" for line in self._lines), []
        names = list(dict.fromkeys(ARRAYS.findall(lines)))
        self.used.update(names)
        self.body += ["", f"    /* {comment(remark)} */"]
        if not names:  # a constant, or codes that stay where they are
            return
        places = {name: f"a{number}" for number, name in enumerate(names)}
        heads = (
            f"{self._kinds[name][0]} (*{at})[{self._kinds[name][1]}]" for name, at in places.items()
        )
        inside = ARRAYS.sub(lambda found: f"(*{places[found[0]]})", lines)
        text = f"({', '.join(heads)}) {{\n{inside}}}\n"
        function = self._functions.setdefault(text, f"step{len(self._functions)}")
        self.body.append(f"    {function}({', '.join(map(self._address, names))});")

    def _address(self, name: str) -> str:
        """A pointer to an array; an input is a pointer already, to its first element."""
        if not name.startswith("input"):
            return f"&{name}"
        kind, size = self._kinds[name]
        return f"({kind} (*)[{size}]){name}"

    def entry(self, array: Codes, shape: Shape) -> str:
        """An expression for the entry of an array that broadcasts to what the loops are over."""
        if array.size == 1:
            return literal(int(array.reshape(-1)[0]))
        full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        return f"{self.constant(full)}[{place(full.shape, shape)}]"


def comment(text: str) -> str:
    """Text that neither ends a comment nor seems to begin one."""
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")


def place(shape: Shape, loops: Shape) -> str:
    """The index into an array of a shape that broadcasts to the loops over i0, i1 and so on."""
    assert len(shape) == len(loops)
    terms, stride = [], 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1:
            terms.append(f"i{axis}" if stride == 1 else f"i{axis} * {stride}")
        stride *= shape[axis]
    return " + ".join(reversed(terms)) or "0"


def loops(sizes: Shape, body: Iterable[str], letter: str = "i") -> Iterator[str]:
    """Nested loops around statements, over i0, i1 and so on."""
    for axis, size in enumerate(sizes):
        name = f"{letter}{axis}"
        yield "    " * axis + f"for (int {name} = 0; {name} < {size}; {name}++) {{"
    for line in body:
        yield "    " * len(sizes) + line
    for level in reversed(range(len(sizes))):
        yield "    " * level + "}"


def flat(sizes: Shape, letter: str) -> str:
    """The index into an array that is read by loops over all its dimensions."""
    index = f"{letter}0"
    for axis, size in enumerate(sizes[1:], 1):
        index = f"({index}) * {size} + {letter}{axis}"
    return index


def runs(index: Codes, offsets: Codes) -> list[tuple[int, int, int, int]]:
    """Where an index copies consecutive elements: source, its place, the result's place, length.

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
