"""The modules that a circuit is made of: adders, roundings, tables; one for each shape.

They are modules because synthesis tools merge sums that are written inline into larger cells, which
take more look-up tables. Every name and number here is made from integers.
"""

from functools import singledispatch
from textwrap import indent

from chop.export.verilog.netlist import (
    Add,
    Largest,
    LookupTable,
    Multiplier,
    Offset,
    Round,
    Shifted,
    Signal,
    code_bits,
)


def width_literal(value: int, width: int) -> str:
    """A number of so many bits, in two's complement."""
    return f"{width}'d{value & ((1 << width) - 1)}"


def signed_literal(value: int, width: int) -> str:
    """A number with a sign, for signed arithmetic."""
    return f"-{width}'sd{-value}" if value < 0 else f"{width}'sd{value}"


def part(name: str, high: int, low: int) -> str:
    """Some bits of a wire."""
    return f"{name}[{high}]" if high == low else f"{name}[{high}:{low}]"


def extended_bits(
    name: str, signal: Signal, width: int, start: int = 0, signed: bool | None = None
) -> str:
    """So many bits of a wire from a bit on, beyond its end the sign, if it has one."""
    end = start + width
    signed = signal.signed if signed is None else signed
    sign = f"{name}[{signal.width - 1}]" if signed else "1'b0"
    if start >= signal.width:
        return f"{{{width}{{{sign}}}}}"
    if end <= signal.width:
        return name if width == signal.width else part(name, end - 1, start)
    inside = name if start == 0 else part(name, signal.width - 1, start)
    more = end - signal.width
    fill = f"{{{more}{{{sign}}}}}" if signed else f"{more}'d0"
    return f"{{{fill}, {inside}}}"


def kind(signal: Signal) -> str:
    """Width and sign as they stand in the name of a module."""
    return f"{signal.width}{'s' if signal.signed else 'u'}"


def number_in_name(value: int) -> str:
    """A number as part of a name."""
    return f"m{-value}" if value < 0 else str(value)


class Primitives:
    """The modules that a circuit needs, by name."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.rounds: dict[str, list[Round]] = {}
        """The roundings that each module stands for, to be proved."""
        self._tables: dict[tuple[object, ...], str] = {}

    def add(self, name: str, says: str, ports: str, body: str) -> str:
        """Remember a module; its name."""
        if name not in self.modules:
            self.modules[name] = (
                f"// {says}\nmodule {name} ({ports});\n{indent(body, '  ')}\nendmodule\n"
            )
        return name

    def table_name(self, signal: LookupTable) -> str:
        key = (signal.source.low, signal.source.high, signal.entries)
        return self._tables.setdefault(key, f"table_{len(self._tables)}")


def two_ports(signal: Add | Largest | Multiplier) -> str:
    """The ports of a module with two operands."""
    return (
        f"input wire [{signal.a.width - 1}:0] a, input wire [{signal.b.width - 1}:0] b, "
        f"output wire [{signal.width - 1}:0] y"
    )


def one_port(signal: Round | LookupTable, driven: str = "wire") -> str:
    """The ports of a module with one operand."""
    return f"input wire [{signal.source.width - 1}:0] a, output {driven} [{signal.width - 1}:0] y"


@singledispatch
def driver(signal: Signal, made: Primitives, *names: str) -> tuple[str, str]:
    """A module and an empty text, or no module and an expression: what drives a signal."""
    raise NotImplementedError(type(signal).__name__)


@driver.register
def _(signal: Add, made: Primitives, a: str, b: str) -> tuple[str, str]:
    width, shift = signal.width, signal.shift
    if signal.joins and not signal.raised:
        gap = shift - signal.a.width
        parts = [extended_bits(b, signal.b, width - shift), *([f"{gap}'d0"] if gap else []), a]
        return "", f"{{{', '.join(parts)}}}"
    operator = "-" if signal.subtract else "+"
    name = ("sub" if signal.subtract else "add") + "_raised" * signal.raised
    name = f"{name}_{kind(signal.a)}_{kind(signal.b)}_{shift}_{width}"
    lines: list[str] = []
    one, other = "a", "b"
    if signal.raised:
        one, other = "ra", "rb"
        lines += [inverted_sign(each, own) for each, own in (("a", signal.a), ("b", signal.b))]
    signs = [signal.extends(each) for each in (signal.a, signal.b)]
    upper = (
        f"{extended_bits(one, signal.a, width - shift, shift, signs[0])} {operator} "
        f"{extended_bits(other, signal.b, width - shift, 0, signs[1])};"
    )
    if shift:
        low = extended_bits(one, signal.a, shift, 0, signs[0])
        lines.append(f"assign {part('y', shift - 1, 0)} = {low};")
    lines.append(f"assign {part('y', width - 1, shift) if shift else 'y'} = {upper}")
    says = f"y = a {operator} (b << {shift})" + ", signs inverted" * signal.raised
    body = "\n".join(lines)
    return made.add(name, says, two_ports(signal), body), ""


def inverted_sign(name: str, signal: Signal) -> str:
    """A wire with the bits of a port, the sign inverted."""
    top = signal.width - 1
    rest = f", {part(name, top - 1, 0)}" if top else ""
    value = f"{{~{name}[{top}]{rest}}}" if signal.signed else name
    return f"wire [{top}:0] r{name} = {value};"


@driver.register
def _(signal: Offset, made: Primitives, a: str) -> tuple[str, str]:
    width = signal.width
    if signal.negative:
        return (
            "",
            f"{width_literal(signal.constant, width)} - {extended_bits(a, signal.source, width)}",
        )
    same = (signal.constant & -signal.constant).bit_length() - 1
    same = min(same, width - 1, signal.source.width)  # bits below the constant's last
    upper = (
        f"{extended_bits(a, signal.source, width - same, same)} + "
        f"{width_literal(signal.constant >> same, width - same)}"
    )
    return "", f"{{{upper}, {part(a, same - 1, 0)}}}" if same else upper


@driver.register
def _(signal: Shifted, made: Primitives, a: str) -> tuple[str, str]:
    wide = extended_bits(a, signal.source, signal.width - signal.places)
    return "", f"{{{wide}, {width_literal(signal.bits, signal.places)}}}"


@driver.register
def _(signal: Largest, made: Primitives, a: str, b: str) -> tuple[str, str]:
    low, high = min(signal.a.low, signal.b.low), max(signal.a.high, signal.b.high)
    wide = code_bits(low, high)
    cast = "$signed" if low < 0 else ""
    one, other = (
        f"{cast}({extended_bits(name, each, wide)})"
        for name, each in (("a", signal.a), ("b", signal.b))
    )
    results = [extended_bits(n, s, signal.width) for n, s in (("a", signal.a), ("b", signal.b))]
    body = f"assign y = {one} > {other} ? {results[0]} : {results[1]};"
    name = f"max_{kind(signal.a)}_{kind(signal.b)}_{signal.width}"
    return made.add(name, "the larger of two", two_ports(signal), body), ""


@driver.register
def _(signal: Multiplier, made: Primitives, a: str, b: str) -> tuple[str, str]:
    one, other = (
        extended_bits(name, each, signal.width) for name, each in (("a", signal.a), ("b", signal.b))
    )
    name = f"mul_{kind(signal.a)}_{kind(signal.b)}_{signal.width}"
    return made.add(name, "y = a * b", two_ports(signal), f"assign y = {one} * {other};"), ""


@driver.register
def _(signal: LookupTable, made: Primitives, a: str) -> tuple[str, str]:
    source, width = signal.source, signal.width
    usual = max(sorted(set(signal.entries)), key=signal.entries.count)
    lines = [
        f"  {width_literal(code, source.width)}: y = {width_literal(entry, width)};"
        for code, entry in zip(range(source.low, source.high + 1), signal.entries, strict=True)
        if entry != usual
    ]
    body = "\n".join(
        ["always @* case (a)", *lines, f"  default: y = {width_literal(usual, width)};", "endcase"]
    )
    name = made.table_name(signal)
    return made.add(name, "a function of one code", one_port(signal, "reg"), body), ""


@driver.register
def _(signal: Round, made: Primitives, a: str) -> tuple[str, str]:
    low, high = signal.before
    under, over = low < signal.low, high > signal.high
    if signal.wraps:
        under = over = False
    if not (signal.even or under or over):
        return "", extended_bits(a, signal.source, signal.width, signal.drop)
    wide = max(signal.source.width - signal.drop, code_bits(low, high))
    shown = "e" * signal.even + "u" * under + "o" * over + "w" * signal.wraps
    name = (
        f"round_{kind(signal.source)}_{signal.drop}{shown}_{number_in_name(signal.low)}_"
        f"{number_in_name(signal.high)}_{wide}"
    )
    body = [f"wire [{wide - 1}:0] q = {extended_bits('a', signal.source, wide, signal.drop)};"]
    q = "q"
    if signal.even:
        q = "e"
        last = f"q[0] & (|{part('a', signal.drop - 1, 0)})"
        rest = f"{{{part('q', wide - 1, 1)}, {last}}}" if wide > 1 else last
        body.append(f"wire [{wide - 1}:0] e = {rest};")
    body += limiting_lines(signal, q, wide, under, over)
    says = f"a without its last {signal.drop} bits, in {signal.low}..{signal.high}"
    made.rounds.setdefault(name, []).append(signal)
    return made.add(name, says, one_port(signal), "\n".join(body)), ""


def limiting_lines(signal: Round, q: str, wide: int, under: bool, over: bool) -> list[str]:
    """Lines that bring a code of so many bits into the range of a signal."""
    lines, result = [], part(q, signal.width - 1, 0)
    signed, top = signal.source.signed, wide - 1
    if over:
        lines.append(f"wire over = {is_beyond(q, signal.high, wide, signed)};")
        result = f"over ? {width_literal(signal.high, signal.width)} : {result}"
    if under:
        least = signal.low
        if least == 0:
            test = f"{q}[{top}]"
        elif least & -least == -least and -least < 1 << top - 1:
            test = f"{q}[{top}] & ~(&{part(q, top - 1, (-least).bit_length() - 1)})"
        elif signed:
            test = f"$signed({q}) < {signed_literal(least, wide)}"
        else:
            test = f"{q} < {width_literal(least, wide)}"
        lines.append(f"wire under = {test};")
        result = f"under ? {width_literal(least, signal.width)} : {result}"
    return [*lines, f"assign y = {result};"]


def is_beyond(q: str, most: int, wide: int, signed: bool) -> str:
    """Return a test that a code is larger than a number: for all ones, of the bits above."""
    top, above = wide - 1, most.bit_length()
    if most >= 0 and most & (most + 1) == 0:
        if not signed:
            return f"|{part(q, top, above)}"
        return f"~{q}[{top}] & (|{part(q, top - 1, above)})"
    if signed:
        return f"$signed({q}) > {signed_literal(most, wide)}"
    return f"{q} > {width_literal(most, wide)}"
