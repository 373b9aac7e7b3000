"""A graph and the model it was made from, run on the same example: where they differ."""

import contextlib
import inspect
import math
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from chop.ir.graph.calling import bound_arguments, call_by_name, put_together, take_apart
from chop.ir.graph.exported import in_evaluation, refusing_broken
from chop.ir.graph.recorder import preserve_model, set_evaluation
from chop.ir.graph.shapes import ShapedGraphModule

WRITTEN_BY_FX = "eval_with_key"
"""In the names of the files that the code of graphs is in."""
ALL, HALF, NONE = math.inf, 0.5, -math.inf
"""How much of the digits of two numbers must be equal."""


def difference(
    model: nn.Module,
    graph: fx.GraphModule,
    given: Mapping[str, Any],
    fixed: Mapping[str, Any],
    *,
    exact: bool,
) -> str | None:
    """Say where a graph gives something else than its model; None if it gives the same.

    Both run once in evaluation mode, on copies of the inputs and from the same random numbers, and
    are left as they were. Of a model that draws random numbers, which fx may have built in, types
    and shapes are compared.

    Args:
        given: the inputs of the graph by name.
        fixed: arguments of the model that the graph has built in.
        exact: whether both run the same kernels, so that the last bits are equal, too, unless those
            of the model change from call to call. Otherwise half of the digits must be.
    """
    by_export = isinstance(graph, ShapedGraphModule)
    bound_arguments(model, {**given, **fixed})
    with preserve_model(nn.ModuleList([model, graph])) as before:
        wanted = model_result(model, {**given, **fixed}, by_export)
        is_random = before.drew_random_numbers()
        before.restore()
        try:
            found = graph_result(graph, given)
        except Exception as error:  # noqa: BLE001  # whatever it is, the model does not raise it
            return name_failing_node(error)
        unlike = first_difference(found, wanted, NONE if is_random else HALF)
        if unlike or not exact or is_random:
            return unlike
        unlike = first_difference(found, wanted, ALL)
        if unlike is None:
            return None
        before.restore()
        again = model_result(model, {**given, **fixed}, by_export)
        return None if first_difference(again, wanted, ALL) else unlike


def model_result(model: nn.Module, named: Mapping[str, Any], by_export: bool) -> Any:
    """The result of a model in evaluation mode, with the settings that its graph was made with."""
    (in_evaluation if by_export else set_evaluation)(model)
    with refusing_broken(model), in_python():
        return in_plain_containers(call_by_name(model, copy_inputs(named)))


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Without the fused kernels of transformers, which leave out what is padded."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def graph_result(graph: fx.GraphModule, given: Mapping[str, Any]) -> Any:
    """The result of the code of a graph; fx would print an error where a call raises one."""
    set_evaluation(graph)
    takes = inspect.signature(graph.forward).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        given = {name: value for name, value in given.items() if name in takes}
    if isinstance(graph, ShapedGraphModule):
        graph.check_inputs(pytree.tree_leaves([given[name] for name in takes]))
    return in_plain_containers(call_by_name(graph, copy_inputs(given), graph.forward))


def in_plain_containers(result: Any) -> Any:
    """The tensors and plain values of a result in lists, tuples and dictionaries."""
    found: list[Any] = []
    return put_together(take_apart(result, found), found)


def copy_inputs(named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with tensors of their own: a model may write to them."""
    return {
        name: pytree.tree_map_only(Tensor, lambda x: x.detach().clone(), value)
        for name, value in named.items()
    }


def name_failing_node(error: Exception) -> str:
    """Name the node that could not run, and why."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line or "" for frame in frames if WRITTEN_BY_FX in frame.filename]
    node = lines[-1].partition(" = ")[0].strip() if lines else ""
    return f"node {node!r} cannot run: {reason}" if node.isidentifier() else reason


def first_difference(found: Any, wanted: Any, digits: float) -> str | None:
    """Name the first value of a result that is not what it should be."""
    return next(differences(found, wanted, digits, ""), None)


def differences(found: Any, wanted: Any, digits: float, at: str) -> Iterator[str]:
    """Name each value that is not what it should be; `at` leads to it."""
    if isinstance(wanted, dict) and isinstance(found, dict) and {*found} == {*wanted}:
        for key, part in wanted.items():
            yield from differences(found[key], part, digits, f"{at}.{key}" if at else str(key))
    elif is_sequence(wanted) and is_sequence(found) and len(found) == len(wanted):
        for place, parts in enumerate(zip(found, wanted, strict=True)):
            yield from differences(*parts, digits, f"{at or 'output'}[{place}]")
    elif unlike := value_difference(found, wanted, digits):
        yield f"{at or 'the output'}{unlike}"


def value_difference(found: Any, wanted: Any, digits: float) -> str | None:
    """Say in what a value differs."""
    if isinstance(wanted, Tensor) and isinstance(found, Tensor):
        return tensor_difference(found, wanted, digits)
    if kind_of(found) != kind_of(wanted):
        return f" is {kind_of(found)}, not {kind_of(wanted)}"
    is_nan = found != found and wanted != wanted
    same = is_nan or digits == NONE or found == wanted
    return None if same else f" is {found!r}, not {wanted!r}"


def is_sequence(value: Any) -> bool:
    """True if parts of a value are counted."""
    return isinstance(value, list | tuple)


def kind_of(value: Any) -> str:
    """A value in words."""
    if isinstance(value, dict):
        return f"a dictionary of {', '.join(map(str, value))}"
    if is_sequence(value):
        return f"a list of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def tensor_difference(found: Tensor, wanted: Tensor, digits: float) -> str | None:
    """Say in what a tensor differs: shape, type, or the number that differs most."""
    if found.shape != wanted.shape:
        return f" has the shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
    if found.dtype != wanted.dtype:
        return f" is of {found.dtype}, not {wanted.dtype}"
    if digits == NONE or wanted.is_meta or torch.equal(found, wanted):
        return None
    one, other = (x.to_dense() if x.layout is not torch.strided else x for x in (found, wanted))
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    one, other = one.double(), other.double()
    apart = torch.where(one == other, 0.0, (one - other).abs())
    apart[one.isnan() & other.isnan()] = 0.0
    apart = apart.nan_to_num(math.inf, math.inf)
    step = torch.finfo(wanted.dtype).eps if wanted.dtype.is_floating_point else 0.0
    largest = float(other.abs().nan_to_num(0.0, 0.0).max())
    if apart.max() <= step**digits * largest:
        return None
    place = tuple(int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
    at = f"[{', '.join(map(str, place))}]" if place else ""
    return f"{at} is {one[place]:.9g}, not {other[place]:.9g}"
