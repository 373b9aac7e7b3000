"""The shapes that an exported graph holds for, and the check of its inputs against them."""

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from chop.errors import GraphError
from chop.ir.graph.conditions import holds

MADE_FOR = "made_for"
"""Where a placeholder has its shape in its `meta`."""
CONDITIONS = "conditions"
"""Where it has what is asked of its sizes and of those of inputs before it."""


class FreeSize(NamedTuple):
    """A size that may vary; those of the same name vary together."""

    name: str
    least: int
    most: int | None = None

    def __str__(self) -> str:
        if self.most is not None:
            return f"{self.least} to {self.most}"
        return f"{self.least} or more" if self.least else "any"

    def holds(self, size: int) -> bool:
        """True if a size is within the bounds."""
        return size >= self.least and (self.most is None or size <= self.most)


Shape = tuple[int | FreeSize, ...]


class FixedValue(NamedTuple):
    """A value given in the place of a tensor; the graph has it built in."""

    value: Any


class Outputs(dict[str, Any]):
    """A dictionary whose entries are attributes too, as models have that return a dataclass."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the graph returns {', '.join(self)}, not {name!r}") from None


class ShapedGraphModule(fx.GraphModule):
    """A graph that runs only on the shapes it holds for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        self.check_inputs(pytree.tree_leaves(list(given.values())))
        found = super().__call__(*args, **kwargs)
        return Outputs(found) if isinstance(found, dict) else found

    def check_inputs(self, values: Iterable[Any]) -> None:
        """Raise GraphError if a value is not of the shape that its placeholder was made for."""
        free: dict[str, tuple[fx.Node, int, int]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for node, value in zip(self.graph.find_nodes(op="placeholder"), values, strict=False):
            made_for = node.meta.get(MADE_FOR)
            if isinstance(made_for, FixedValue):
                if value != made_for.value:
                    raise GraphError(refusal(node, repr(made_for.value), repr(value)))
            elif made_for is not None:
                check_shape(node, made_for, value, free)
                shapes[node.name] = tuple(value.shape)
                check_conditions(node, made_for, shapes)

    def __reduce__(self) -> tuple[Any, ...]:
        inputs = self.graph.find_nodes(op="placeholder")
        known = [
            {key: n.meta[key] for key in (MADE_FOR, CONDITIONS) if key in n.meta} for n in inputs
        ]
        return _restore_shapes, (super().__reduce__(), known)


def _restore_shapes(reduced: tuple[Any, ...], known: list[dict[str, Any]]) -> fx.GraphModule:
    """A pickled graph again: torch leaves out what is known of the nodes."""
    make, args = reduced
    module: fx.GraphModule = make(*args)
    for node, facts in zip(module.graph.find_nodes(op="placeholder"), known, strict=True):
        node.meta |= facts
    return ShapedGraphModule(module, module.graph, type(module).__name__)


def check_shape(
    node: fx.Node, made_for: Shape, value: Any, free: dict[str, tuple[fx.Node, int, int]]
) -> None:
    """Raise GraphError unless a value has the shape; `free` has the free sizes met so far."""
    if not isinstance(value, Tensor):
        raise GraphError(refusal(node, "a tensor", f"a {type(value).__name__}"))
    found = tuple(value.shape)
    if len(found) != len(made_for) or not all(
        wanted.holds(size) if isinstance(wanted, FreeSize) else wanted == size
        for wanted, size in zip(made_for, found, strict=True)
    ):
        raise GraphError(refusal(node, f"shape {shape_text(made_for)}", f"{found}"))
    for place, (wanted, size) in enumerate(zip(made_for, found, strict=True)):
        if isinstance(wanted, FreeSize):
            first, at, known = free.setdefault(wanted.name, (node, place, size))
            if size != known:
                what = "columns" if at else "rows"
                raise GraphError(
                    f"node {node.name!r}: this graph was made for as many {what} as {first.name!r} "
                    f"has, which is {known}, not {size}"
                )


def check_conditions(node: fx.Node, made_for: Shape, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise GraphError unless all that is asked of the sizes up to this input is true."""
    for condition in node.meta.get(CONDITIONS, ()):
        if not holds(condition, shapes):
            wanted = f"shape {shape_text(made_for)} where ({condition})"
            raise GraphError(refusal(node, wanted, f"{shapes[node.name]}"))


def shape_text(made_for: Shape) -> str:
    """A shape as people write it: ``(any, 4)``."""
    return f"({', '.join(map(str, made_for))}{',' * (len(made_for) == 1)})"


def refusal(node: fx.Node, made_for: str, found: str) -> str:
    """The reason why an input cannot be taken."""
    return (
        f"node {node.name!r}: this graph was made for {made_for}, not {found}; "
        "MaseGraph(model, example_inputs=…) makes one for other inputs"
    )
