"""Python's own numbers and lists in a saved graph: how large they can become, before it runs.

A tensor has the size that its shape says. An integer of Python has any size: ``pow(9, 10 ** 9)``
keeps a machine busy for hours, and so do shifts, chains of products and repeated lists. So the
largest value of every node that can only be a number is worked out from those before it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chop.ir.stored.record_checks import Reference, decode_value, inside

MOST_BITS = 4096
"""Of an integer. Sizes of tensors have 63, and a graph computes with few of them at a time."""
LONGEST_ROW = 1 << 16
SIZE, RANK = 1 << 63, 64
"""The largest size and the largest number of dimensions of a tensor."""
LARGEST_FLOAT = 1 << 1024


class Number(NamedTuple):
    """A number of Python."""

    most: int
    """Its absolute value is not larger."""
    is_whole: bool = True


class Row(NamedTuple):
    """A list, tuple or text of Python."""

    length: int
    most: int = LARGEST_FLOAT
    """The absolute values of its numbers are not larger."""
    inner: int = 0
    """The longest list or text in it."""


Known = Number | Row
FLOAT, ANY_SIZE = Number(LARGEST_FLOAT, is_whole=False), Number(SIZE)
OF_TENSORS: Mapping[str, Known] = {
    "size": Row(RANK, SIZE), "stride": Row(RANK, SIZE), "numel": ANY_SIZE, "nelement": ANY_SIZE,
    "dim": Number(RANK), "ndimension": Number(RANK), "item": Number(LARGEST_FLOAT),
    "builtins.len": ANY_SIZE, "builtins.int": Number(LARGEST_FLOAT), "torch.numel": ANY_SIZE,
}  # fmt: skip
"""What methods and functions give for a tensor, where that is a number of Python."""
ATTRIBUTES: Mapping[str, Known] = {"shape": Row(RANK, SIZE), "ndim": Number(RANK)}
WHOLE_OF_MATH = frozenset({"floor", "ceil", "trunc", "gcd", "isqrt", "lcm", "prod"})
NOT_IN_PLACE = frozenset({"index", "int", "inv"})


def check_numbers(nodes: Iterable[Any]) -> None:
    """Refuse a graph in which a number or list of Python can become too large to compute with.

    A graph that gives nothing but such numbers is refused, too.

    Args:
        nodes: records of nodes in their order.
    """
    known: dict[str, Known] = {}
    for node in nodes:
        if node.op == "output":
            read = [
                each.name for each in inside(decode_value(node.args)) if isinstance(each, Reference)
            ]
            if known.keys() >= set(read):
                raise ValueError("the output of the graph is not a tensor")
        if node.op not in ("call_function", "call_method") or node.given:
            continue
        given = [*decode_value(node.args), *decode_value(node.kwargs).values()]
        try:
            found = result_of(node.target, given, known)
        except OverflowError:
            raise ValueError(
                f"node {node.name!r}: {node.target} can give a number or list that is too large"
            ) from None
        if found is not None:
            known[node.name] = found


def result_of(target: str, given: Sequence[Any], known: Mapping[str, Known]) -> Known | None:
    """The known facts of the result of a call; nothing if it may be a tensor."""
    place, _, name = target.rpartition(".")
    values = [argument_value(each, known) for each in given]
    if name == "getattr" and len(given) > 1:
        return ATTRIBUTES.get(str(given[1]))
    if "sym_size" in target or "sym_numel" in target:
        return ANY_SIZE
    if place not in ("operator", "builtins", "math") or not values or values[0] is None:
        return ANY_SIZE if name in ("size", "stride") and len(given) > 1 else OF_TENSORS.get(target)
    operands = [each for each in values if each is not None]
    if len(operands) < len(values):
        return None
    if place == "math" and name not in WHOLE_OF_MATH:
        return FLOAT
    bare = name if name in NOT_IN_PLACE else name.removeprefix("i")
    return bounded_number(GROWTH.get(bare, largest_operand)(*operands))


def argument_value(value: Any, known: Mapping[str, Known]) -> Known | None:
    """The known facts of an argument."""
    if isinstance(value, Reference):
        return known.get(value.name)
    if isinstance(value, int):
        return Number(abs(value))
    if isinstance(value, float):
        return FLOAT
    if isinstance(value, str):
        return Row(len(value), inner=1)
    if isinstance(value, list | tuple | dict):
        items = list(value.values()) if isinstance(value, dict) else value
        found = [each for item in items if (each := argument_value(item, known)) is not None]
        most = max((each.most for each in found), default=0)
        inner = max((each.length for each in found if isinstance(each, Row)), default=0)
        return Row(len(items), most, inner) if len(found) == len(items) else None
    return Row(0, 0) if isinstance(value, slice) else Number(1)  # none, a type, a device


def bounded_number(value: Known) -> Known:
    """The same, if it can be computed with."""
    length = value.length if isinstance(value, Row) else 0
    if value.most.bit_length() > MOST_BITS or length > LONGEST_ROW:
        raise OverflowError
    return value


def whole(bits: int) -> Number:
    """A whole number of at most so many bits."""
    if bits > MOST_BITS:
        raise OverflowError
    return Number(1 << bits)


def largest_operand(*values: Known) -> Known:
    """The result of a function that gives nothing much larger than its operands."""
    is_whole = any(not isinstance(each, Number) or each.is_whole for each in values)
    return Number(2 * max(each.most for each in values) + 1, is_whole)


def are_whole(*values: Known) -> bool:
    """True if all operands are whole numbers."""
    return all(isinstance(each, Number) and each.is_whole for each in values)


def add(a: Known, b: Known) -> Known:
    """A sum, or two lists after one another."""
    if isinstance(a, Row) and isinstance(b, Row):
        return Row(a.length + b.length, max(a.most, b.most), max(a.inner, b.inner))
    return Number(a.most + b.most) if are_whole(a, b) else FLOAT


def multiply(a: Known, b: Known) -> Known:
    """A product, or a list repeated."""
    for row, count in ((a, b), (b, a)):
        if isinstance(row, Row):
            return Row(row.length * count.most, row.most, row.inner)
    return whole(a.most.bit_length() + b.most.bit_length()) if are_whole(a, b) else FLOAT


def power_of_numbers(a: Known, b: Known, modulus: Known | None = None) -> Known:
    """A power; with a modulus it stays below that."""
    if modulus is not None:
        return modulus
    return whole(a.most.bit_length() * b.most if a.most > 1 else 1) if are_whole(a, b) else FLOAT


def round_to(a: Known, digits: Known | None = None) -> Known:
    """A number rounded to places, which Python does with a power of ten."""
    whole(4 * digits.most if digits else 0)
    return Number(a.most + 1)


def sum_of_list(row: Known, start: Known | None = None) -> Known:
    """The sum of a list of numbers."""
    count = row.length if isinstance(row, Row) else 1
    return Number(count * row.most + (start.most if start else 0))


def product_of_list(row: Known, start: Known | None = None) -> Known:
    """The product of a list of numbers."""
    count = row.length if isinstance(row, Row) else 1
    return whole(count * row.most.bit_length() + (start.most.bit_length() if start else 0))


def element_of_list(row: Known, place: Known) -> Known:
    """An element of a list, or a part of it."""
    if not isinstance(row, Row) or (not isinstance(place, Row) and not row.inner):
        return Number(row.most)
    return row if isinstance(place, Row) else Row(row.inner, row.most)


GROWTH: Mapping[str, Callable[..., Known]] = {
    "add": add, "sub": add, "concat": add, "mul": multiply, "pow": power_of_numbers,
    "sum": sum_of_list, "prod": product_of_list, "round": round_to, "getitem": element_of_list,
    "lshift": lambda a, b: whole(a.most.bit_length() + b.most),
    "lcm": lambda *values: whole(sum(each.most.bit_length() for each in values)),
    "len": lambda row: Number(row.length if isinstance(row, Row) else 0),
    "int": lambda a, *_: whole(8 * a.length) if isinstance(a, Row) else Number(a.most),
    "float": lambda *_: FLOAT, "truediv": lambda *_: FLOAT,
    **dict.fromkeys(("floor", "ceil", "trunc"), lambda a: Number(a.most)),
}  # fmt: skip
"""How large results of functions become, by their names; those of others hardly grow."""
