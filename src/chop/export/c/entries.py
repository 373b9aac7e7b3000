"""Functions that take the user's numbers: features in, scores or a class out.

Features are scaled as those that the network was trained on, each step in float32, and rounded to
the codes of the input as the engine does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chop.export.c.code import c_type, short_type, value_type
from chop.lowering.program import Input, IntegerProgram, Value
from chop.preprocessing import Preprocessing

if TYPE_CHECKING:
    from chop.export.c.source import CProgram

FLOAT_CODES = 2**24
"""Codes up to this are exact as float32."""
WAYS = {"integer": ("", "x * scale"), "integer_scaled": ("_scaled", "x / scale")}
"""Formats of inputs: the name of the function that rounds, and what it rounds."""


def float_literal(value: float) -> str:
    """A float32 number as C writes it, exactly."""
    return f"{float(np.float32(value)).hex()}f"


def integer_literal(value: float) -> str:
    """A whole number as C writes it."""
    return str(int(value))


LITERALS: dict[str, Callable[[float], str]] = {
    "float": float_literal,
    "double": lambda value: float(value).hex(),
}
CODE = "codes[i]"


def rounds_codes_oddly(settings: Mapping[str, Any]) -> bool:
    """True if half-way cases go where the code is even, and the zero point is not."""
    return settings["rounding"] == "half_even" and bool(settings.get("zero_point", 0) % 2)


def string_literal(text: str) -> str:
    """Text as C writes it, whatever is in it."""
    codes = text.encode()
    plain = set(range(32, 127)) - {ord('"'), ord("\\"), ord("?")}
    return '"' + "".join(chr(c) if c in plain else f"\\{c:03o}" for c in codes) + '"'


def why_no_floats(program: IntegerProgram) -> str | None:
    """Return why a program has no functions for numbers, None if it has them."""
    for each in program.inputs:
        if each.format is None:
            return f"the input {each.placeholder!r} takes integers"
        if each.format["name"] not in WAYS or each.format.get("overflow", "saturate") == "wrap":
            return f"the input {each.placeholder!r} is not rounded to fixed point that saturates"
        if rounds_codes_oddly(each.format):
            return f"the input {each.placeholder!r} rounds half-way cases by an odd zero point"
        if max(map(abs, each.value.limits)) > FLOAT_CODES:
            return f"the codes of the input {each.placeholder!r} need more than 24 bits"
    values = program.values
    if any(max(map(abs, values[name].limits)) > FLOAT_CODES for name in program.outputs):
        return "the codes of an output need more than 24 bits"
    return None


@dataclass(frozen=True)
class FloatEntries:
    """The functions for numbers of a program, if it can have them."""

    program: IntegerProgram
    preprocessing: Preprocessing | None = None

    @property
    def missing(self) -> str | None:
        """Return why there are none, or None."""
        return why_no_floats(self.program)

    @property
    def placeholders(self) -> dict[str, Value]:
        """The inputs of the network, each with a value of its shape."""
        return {each.placeholder: each.value for each in self.program.inputs}

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, if there are any and they fit."""
        known = () if self.preprocessing is None else self.preprocessing.classes
        size = self.program.values[self.program.outputs[0]].size
        return known if len(known) == size else ()

    @property
    def scaling(self) -> Preprocessing | None:
        """The scaling of rows that is not the identity, if any."""
        if self.preprocessing is None or len(self.placeholders) != 1:
            return None
        rows = self.preprocessing.of_rows
        return None if rows.is_identity else rows

    def parameters(self, scores: bool) -> str:
        """The parameters of a function that takes numbers."""
        names = self._names("features", len(self.placeholders))
        found = [f"const float *{name}" for name in names]
        if scores:
            count = len(self.program.outputs)
            found += [f"float *{name}" for name in self._names("scores", count)]
        return ", ".join([*found, "void *scratch"])

    @staticmethod
    def _names(word: str, count: int) -> list[str]:
        return [word] if count == 1 else [f"{word}{place}" for place in range(count)]

    def header(self, made: "CProgram", name: str) -> list[str]:
        """Lines of the header."""
        if self.missing:
            return [f"\n/* No functions for numbers: {self.missing}. */"]
        upper, lines = name.upper(), []
        sizes = [value.size for value in self.placeholders.values()]
        for word, size in zip(self._names("FEATURES", len(sizes)), sizes, strict=True):
            lines.append(f"#define {upper}_{word} {size}")
        how = "scaled as for training, then " if self.scaling else ""
        lines += [
            f"\n/* Numbers in, numbers out; features are {how}rounded to codes. What is not a",
            "   number becomes the smallest code. */",
            f"int {name}_predict_float({self.parameters(True)});",
            "\n/* The index of the largest score, the first of equal ones; -1 for bad scratch. */",
            f"int {name}_predict_class({self.parameters(False)});",
        ]
        if self.classes:
            lines.insert(0, f"#define {upper}_CLASSES {len(self.classes)}")
            lines.append(f"extern const char *const {name}_class_names[{upper}_CLASSES];")
        return lines

    def source(self, made: "CProgram", name: str) -> list[str]:
        """Lines of the source."""
        if self.missing:
            return []
        upper = name.upper()
        features = self._names("features", len(self.placeholders))
        known = dict(zip(self.placeholders, features, strict=True))
        codes = [f"(const {short_type(v)} *)(memory + {at})" for v, at in self._inputs(made)]
        outs = [f"({short_type(v)} *)(memory + {at})" for v, at in self._outputs(made)]
        fills = [
            line
            for place, each in enumerate(self.program.inputs)
            for line in self._fill(each, known[each.placeholder], self._inputs(made)[place][1])
        ]
        run = f"    run({', '.join([*codes, *outs, 'memory'])});"
        scores = self._names("scores", len(made.outputs))
        gives = [
            line
            for word, (value, at) in zip(scores, self._outputs(made), strict=True)
            for line in self._scores(value, word, at, made)
        ]
        inside = self.parameters(False).replace("void *scratch", "unsigned char *memory")
        begin = ["    unsigned char *memory = usable(scratch);"]
        names = [
            f"\nconst char *const {name}_class_names[{upper}_CLASSES] = {{",
            *(f"    {string_literal(each)}," for each in self.classes),
            "};",
        ]
        return [
            *self._rounding(),
            f"\nstatic void run_numbers({inside}) {{",
            *fills,
            run,
            "}",
            f"\nint {name}_predict_float({self.parameters(True)}) {{",
            *begin,
            f"    if (memory == 0) return {upper}_BAD_SCRATCH;",
            f"    run_numbers({', '.join(features)}, memory);",
            *gives,
            f"    return {upper}_OK;",
            "}",
            f"\nint {name}_predict_class({self.parameters(False)}) {{",
            *begin,
            "    if (memory == 0) return -1;",
            f"    run_numbers({', '.join(features)}, memory);",
            *self._largest(made),
            "    return best;",
            "}",
            *(names if self.classes else []),
        ]

    def _inputs(self, made: "CProgram") -> list[tuple[Value, int]]:
        """Values and places of the codes of inputs in the arena."""
        return [(value, made.buffers[place].offset) for place, value in enumerate(made.inputs)]

    def _outputs(self, made: "CProgram") -> list[tuple[Value, int]]:
        """Values and places of the codes of outputs behind the arena."""
        return list(zip(made.outputs, made.output_offsets, strict=True))

    def _rounding(self) -> list[str]:
        """The function that rounds a number to a code."""
        ways = {
            (each.format["name"], each.format["rounding"])
            for each in self.program.inputs
            if each.format
        }
        even = {"half_up": "up"}
        return [
            f"""
static int32_t {way}{WAYS[name][0]}_code({kind} x, {kind} scale, int32_t low, int32_t high) {{
    x = {WAYS[name][1]};
    if (!(x > ({kind})low)) return low;
    if (x >= ({kind})high) return high;
    int32_t code = (int32_t)x;
    const {kind} rest = x - ({kind})code;
    if (rest > 0.5f || (rest == 0.5f && {even.get(way, "(code & 1)").replace("up", "1")})) code++;
    if (rest < -0.5f || (rest == -0.5f && {even.get(way, "(code & 1)").replace("up", "0")})) code--;
    return code;
}}"""
            for name, way in sorted(ways)
            for kind in ("double" if name == "integer_scaled" else "float",)
        ]

    def _fill(self, each: Input, features: str, offset: int) -> list[str]:
        """Statements that round the features of an input."""
        value, assert_format = each.value, each.format
        assert assert_format is not None
        kind, x = value_type(value), f"{features}[i]"
        lines: list[str] = [f"    {{ {kind} *const codes = ({kind} *)(memory + {offset});"]
        arrays = {
            "scales": (value.unit if value.is_scaled else 1 / value.unit, "float"),
            "lows": (value.low, "int32_t"),
            "highs": (value.high, "int32_t"),
        }
        terms = []
        for word, (array, c_kind) in arrays.items():
            text, entry = _entries(np.asarray(array), value, word, c_kind)
            lines += text
            terms.append(entry)
        lines.append(f"    for (int i = 0; i < {value.size}; i++) {{")
        lines.append(f"        float x = {x};")
        lines[1:1], scaled = self._scaling(value)
        lines += scaled
        way = assert_format["rounding"] + WAYS[assert_format["name"]][0]
        lines.append(f"        codes[i] = ({kind}){way}_code(x, {', '.join(terms)});")
        return [*lines, "    } }"]

    def _scaling(self, value: Value) -> tuple[list[str], list[str]]:
        """Constants and statements that scale a feature, each step in float32."""
        rows = self.scaling
        if rows is None:
            return [], []
        many = len(rows.mean) > 1
        at = "i" if rows.kind == "features" else f"i / {value.size // len(rows.mean)}"
        place = f"[{at}]" if many else "[0]"
        data = [
            f"    static const float {word}[] = {{{', '.join(map(float_literal, numbers))}}};"
            for word, numbers in (("means", rows.mean), ("deviations", rows.scale))
        ]
        divide = [] if rows.divisor == 1 else [f"        x /= {float_literal(rows.divisor)};"]
        return data, [*divide, f"        x = (x - means{place}) / deviations{place};"]

    def _scores(self, value: Value, word: str, offset: int, made: "CProgram") -> list[str]:
        """Statements that turn the codes of an output to numbers."""
        kind = value_type(value)
        text, number = _number(value)
        lines = [f"    {{ const {kind} *const codes = (const {kind} *)(memory + {offset});", *text]
        targets = None if self.preprocessing is None else self.preprocessing.targets
        lines.append(f"    for (int i = 0; i < {value.size}; i++) {{")
        if targets is None or len(targets.mean) != value.size:
            lines.append(f"        {word}[i] = {number};")
        else:
            for name, numbers in (("shifts", targets.mean), ("spans", targets.scale)):
                values = ", ".join(map(float_literal, numbers))
                lines.insert(1, f"    static const float {name}[] = {{{values}}};")
            lines += [
                f"        volatile float product = {number};",
                "        product = product * spans[i]; /* rounded before the sum */",
                f"        {word}[i] = product + shifts[i];",
            ]
        return [*lines, "    } }"]

    def _largest(self, made: "CProgram") -> list[str]:
        """Statements that find the largest score of the first output."""
        value, offset = self._outputs(made)[0]
        kind = value_type(value)
        text, number = _number(value) if value.is_scaled or value.frac.size > 1 else ([], CODE)
        best = number.replace("[i]", "[best]")
        return [
            f"    const {kind} *const codes = (const {kind} *)(memory + {offset});",
            *text,
            "    int best = 0;",
            f"    for (int i = 1; i < {value.size}; i++) {{",
            f"        if ({number} > {best}) best = i;",
            "    }",
        ]

    def row_program(self, made: "CProgram", name: str) -> str:
        """A function that reads rows of features and prints the bits of scores and the class."""
        if self.missing:
            return ""
        upper = name.upper()
        features = self._names("features", len(self.placeholders))
        scores = self._names("scores", len(made.outputs))
        sizes = [value.size for value in self.placeholders.values()]
        data = [f"    static float {n}[{s}];" for n, s in zip(features, sizes, strict=True)]
        data += [
            f"    static float {n}[{v.size}];" for n, v in zip(scores, made.outputs, strict=True)
        ]
        reads = [
            f"        for (int i = 0; i < {size}; i++) {{\n            unsigned bits;\n"
            '            if (scanf("%x", &bits) != 1) return 0;\n'
            f"            memcpy(&{word}[i], &bits, 4);\n        }}"
            for word, size in zip(features, sizes, strict=True)
        ]
        prints = [
            f"        for (int i = 0; i < {value.size}; i++) {{\n            unsigned bits;\n"
            f"            memcpy(&bits, &{word}[i], 4);\n"
            '            printf("%x ", bits);\n        }'
            for word, value in zip(scores, made.outputs, strict=True)
        ]
        given, taken = ", ".join(features), ", ".join([*features, *scores])
        return "\n".join([
            "static int float_rows(void) {", *data, "    for (;;) {", *reads,
            f"        if ({name}_predict_float({taken}, scratch) != {upper}_OK) return 1;",
            *prints,
            f'        printf("%d\\n", {name}_predict_class({given}, scratch));',
            "    }", "}\n\n",
        ])  # fmt: skip


def _number(value: Value) -> tuple[list[str], str]:
    """Constants, and the number of element ``i`` as float32: that of its code, rounded once."""
    if value.is_scaled:
        text, entry = _entries(value.unit, value, "units", "double")
        return text, f"(float)((double){CODE} * {entry})"
    text, entry = _entries(value.unit, value, "units", "float")
    return text, f"(float){CODE} * {entry}"


def _entries(array: Any, value: Value, word: str, kind: str) -> tuple[list[str], str]:
    """Constants for each element, and the entry of element ``i``; a number alone if all agree."""
    write = LITERALS.get(kind, integer_literal)
    flat = np.broadcast_to(array, value.shape).reshape(-1)
    if (flat == flat[0]).all():
        return [], write(flat[0])
    kind = kind if kind in LITERALS else c_type(int(flat.min()), int(flat.max()))
    numbers = ", ".join(map(write, flat))
    return [f"    static const {kind} {word}[] = {{{numbers}}};"], f"{word}[i]"
