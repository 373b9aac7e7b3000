"""Conditions on the sizes of the inputs of an exported graph, in a small closed language.

A condition is a comparison, or several joined by ``and``, ``or`` and ``not``, of whole numbers and
of sizes such as ``x[0]``: the first size of the input `x`. They are read from files too, so nothing
is evaluated as Python: a text that is not of this language raises ValueError.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

LONGEST = 2000  # characters
Shapes = Mapping[str, tuple[int, ...]]
ARITHMETIC: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type[ast.AST], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


@lru_cache(maxsize=256)
def parse_condition(text: str) -> ast.expr:
    """The tree of a condition; any other text raises ValueError."""
    try:
        match ast.parse(text).body if len(text) <= LONGEST else []:
            case [ast.Expr(value=tree)]:
                _check(tree)
                return tree
    except (SyntaxError, RecursionError, ValueError):
        pass  # said below, as for texts that are several statements
    raise ValueError(f"{text!r:.80} is not a condition on sizes")


def _check(tree: ast.AST) -> None:
    for part in _parts(tree):
        _check(part)


def _parts(tree: ast.AST) -> Iterator[ast.AST]:
    """The trees inside a tree; ValueError if it is not of the language."""
    match tree:
        case ast.Constant(value=int()):
            return
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int())):
            return
        case ast.BoolOp(values=parts):
            yield from parts
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
            yield part
        case ast.BinOp(left=left, right=right) if type(tree.op) in ARITHMETIC:
            yield from (left, right)
        case ast.Compare(left=left, comparators=others) if {*map(type, tree.ops)} <= {*COMPARISONS}:
            yield from (left, *others)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS:
            yield from parts
        case _:
            raise ValueError("not of the language")


def sizes_in(text: str) -> set[tuple[str, int]]:
    """The sizes that a condition speaks of: the name of an input, and which of its sizes."""
    found = [each for each in ast.walk(parse_condition(text)) if isinstance(each, ast.Subscript)]
    return {(each.value.id, each.slice.value) for each in found}  # type: ignore[attr-defined]


def holds(text: str, shapes: Shapes) -> bool:
    """True if a condition is true of these shapes."""
    return bool(_value(parse_condition(text), shapes))


def _value(tree: Any, shapes: Shapes) -> int:  # noqa: PLR0911  # one for each kind of tree
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(place))):
            return shapes[name][place]
        case ast.BoolOp():
            values = (_value(part, shapes) for part in tree.values)
            return all(values) if isinstance(tree.op, ast.And) else any(values)
        case ast.UnaryOp():
            inner = _value(tree.operand, shapes)
            return not inner if isinstance(tree.op, ast.Not) else -inner
        case ast.BinOp():
            left, right = _value(tree.left, shapes), _value(tree.right, shapes)
            return ARITHMETIC[type(tree.op)](left, right)
        case ast.Compare():
            numbers = [_value(part, shapes) for part in (tree.left, *tree.comparators)]
            pairs = zip(tree.ops, numbers, numbers[1:], strict=False)
            return all(COMPARISONS[type(op)](one, other) for op, one, other in pairs)
    return FUNCTIONS[tree.func.id](*(_value(part, shapes) for part in tree.args))
