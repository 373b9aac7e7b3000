"""Which nodes a rule is for: `by` type, name or regular expression over names."""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from torch import fx

from chop.errors import ConfigError, suggestion
from chop.passes.graph.utils import get_mase_op

By = Literal["type", "name", "regex_name"]


def by_type(node: fx.Node, keys: Collection[str]) -> str | None:
    """The operation of the node, if it is among the keys."""
    op = get_mase_op(node)
    return op if op in keys else None


def by_name(node: fx.Node, keys: Collection[str]) -> str | None:
    """The name of the node, if it is among the keys."""
    return node.name if node.name in keys else None


def by_regex_name(node: fx.Node, keys: Collection[str]) -> str | None:
    """The first key that matches the whole name of the node."""
    return next((key for key in keys if re.fullmatch(key, node.name)), None)


SELECTORS: dict[By, Callable[[fx.Node, Collection[str]], str | None]] = {
    "type": by_type,
    "name": by_name,
    "regex_name": by_regex_name,
}


def select(
    nodes: Iterable[fx.Node], by: By, keys: Collection[str], where: str
) -> dict[fx.Node, str]:
    """The key of each node that has one, in the order of the nodes.

    A key that matches no node is an error: it is a misspelling, or meant for another model.

    Args:
        where: who asks, for the error message: ``pass 'quantize'``.
    """
    if by == "regex_name":
        check_patterns(keys, where)
    nodes = list(nodes)
    chosen = {node: key for node in nodes if (key := SELECTORS[by](node, keys)) is not None}
    for key in set(keys) - set(chosen.values()):
        # An earlier pattern may have taken every node of this one: it still matches.
        if not any(SELECTORS[by](node, (key,)) for node in nodes):
            raise ConfigError(f"{where}: {no_match(nodes, by, key)}")
    return chosen


def no_match(nodes: Iterable[fx.Node], by: By, key: str) -> str:
    """What to say of a key that matches nothing."""
    if by == "regex_name":
        return f"the pattern {key!r} matches no node; names are as in report_graph"
    ends = ("placeholder", "output") if by == "type" else ()  # whose types say nothing
    known = {
        get_mase_op(node) if by == "type" else node.name for node in nodes if node.op not in ends
    }
    return f"no node has the {by} {key!r}: {suggestion(key, known)}"


def check_patterns(patterns: Iterable[str], where: str) -> None:
    """Raise for the first pattern that is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            message = f"{where}: {pattern!r} is not a regular expression: {error}"
            raise ConfigError(message) from None
