"""Graphs made by torch.export, for models that fx cannot trace, and lifted to layers and functions.

torch.export follows Python code that depends on shapes, such as ``range(x.shape[1])``, by taking
the shape for granted. It notes what it took for granted, and the graph checks its inputs for that.
"""

import contextlib
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental import _config as export_settings
from torch.fx.graph import CodeGen, _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from chop.errors import GraphError
from chop.ir.graph.calling import FlatCall, bound_arguments, call_by_name, put_together
from chop.ir.graph.conditions import parse_condition, sizes_in
from chop.ir.graph.lifting import PREFIX, IsLeaf, lift
from chop.ir.graph.recorder import ModelSnapshot, set_evaluation
from chop.ir.graph.shapes import CONDITIONS, MADE_FOR, FixedValue, FreeSize, ShapedGraphModule

__all__ = ["FreeSize", "ShapedGraphModule", "export_model", "stopping_line"]
# Code of these folders is never the user's.
OUR_CODE = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
WAYS_OUT = (
    "fix the argument it depends on with cf_args={name: value}, keep that part whole in a separate "
    "module and pass tracer=MaseTracer(custom_leaf_modules=(ThatModule,)), or quantise without a "
    "graph: chop.quantize(model, …, trace=False)"
)
EXPORT_WAY_OUT = "pass example_inputs={name: tensor} to trace with torch.export, "
DECIDES = "the code decides by the value of a tensor, which a graph cannot follow"


class ExportableCall(nn.Module):
    """A call as the module that torch.export takes, in which the model has a name."""

    def __init__(self, call: FlatCall) -> None:
        super().__init__()
        self.call = call  # torch.export would restore or refuse attributes that are containers
        self.add_module(PREFIX, call.model)

    def forward(self, *tensors: Tensor) -> list[Any]:
        """The result of the call."""
        return self.call(tensors)


def export_model(
    model: nn.Module,
    fixed: Mapping[str, Any],
    example_inputs: Mapping[str, Any],
    is_leaf: IsLeaf,
) -> fx.GraphModule:
    """The graph of `model`, for as many shapes as torch.export can prove it for.

    It is made in evaluation mode; its layers follow train and eval afterwards.

    Args:
        is_leaf: whether a layer, given with its name, becomes one node.
    """
    order = bound_arguments(model, {**example_inputs, **fixed}).arguments
    known = [name for name in order if name in example_inputs]
    given = {name: example_inputs[name] for name in dict.fromkeys((*known, *example_inputs))}
    before = ModelSnapshot(model)
    failed: Exception | None = None
    for free in (rows_and_lengths, leading_size, no_size):
        try:
            in_evaluation(model)
            graph, made = export_call(FlatCall(model, given, fixed), free, is_leaf)
            before.restore()
            return graph_module(model, graph, made)
        except Exception as error:  # noqa: BLE001  # free sizes fail where others do not
            failed = error
        finally:
            before.restore()
    assert failed is not None
    if isinstance(failed, GraphError):
        raise failed
    try:
        in_evaluation(model)
        with torch.no_grad(), refusing_broken(model):
            call_by_name(model, {**given, **fixed})
    finally:
        before.restore()
    raise GraphError(f"{stopping_line(model, failed)}; {WAYS_OUT}") from failed


@contextlib.contextmanager
def refusing_broken(model: nn.Module) -> Iterator[None]:
    """Say where a model fails that cannot be called at all: that is not for tracing to mend."""
    try:
        yield
    except Exception as error:
        where = stopping_line(model, error)
        raise GraphError(f"{where}; the model fails so too when it is called") from error


@contextlib.contextmanager
def silence_torch() -> Iterator[None]:
    """Without what torch prints of an attempt that fails: its error says all that is needed."""
    talker = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = talker.level
    talker.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        talker.setLevel(level)


# Settings of transformers: a graph has no cache of what it saw, and experts are products in it.
FOR_GRAPHS = {"use_cache": (True, False), "_experts_implementation": ("grouped_mm", "batched_mm")}


def in_evaluation(model: nn.Module) -> None:
    """Put a model into evaluation mode, with the settings that a graph needs."""
    set_evaluation(model)
    for module in model.modules():
        config = getattr(module, "config", None)
        for name, (usual, wanted) in FOR_GRAPHS.items():
            if getattr(config, name, None) == usual:
                setattr(config, name, wanted)


def graph_module(model: nn.Module, graph: fx.Graph, made: dict[str, Any]) -> fx.GraphModule:
    """A graph and what it refers to as a module in the mode of `model`."""
    module = ShapedGraphModule(made, graph, type(model).__name__)
    module.graph.lint()
    own = {id(each) for each in model.modules()} | {id(each) for each in made.values()}
    for container in module.modules():
        if id(container) not in own:
            container.training = model.training
    return module


Free = Callable[[Tensor], dict[int, Any]]
AUTO: Any = torch.export.Dim.AUTO


def rows_and_lengths(tensor: Tensor) -> dict[int, Any]:
    """The first size, and the second where that is the length of a sequence."""
    sequence = tensor.ndim == 3 or (tensor.ndim > 1 and not tensor.is_floating_point())
    return leading_size(tensor) | ({1: AUTO} if sequence else {})


def leading_size(tensor: Tensor) -> dict[int, Any]:
    """The first size of a tensor."""
    return {0: AUTO} if tensor.ndim else {}


def no_size(tensor: Tensor) -> dict[int, Any]:
    """No size at all: the graph is for these shapes."""
    return {}


def export_call(call: FlatCall, free: Free, is_leaf: IsLeaf) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of one call, which refuses shapes that it does not hold for, and what it needs.

    Args:
        free: the sizes of a tensor that torch.export is to leave open.
    """
    shapes = {"tensors": tuple(map(free, call.tensors))}
    # Without this torch.export takes it that there are two rows or more, and does not say so.
    settings = export_settings.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with settings, silence_torch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of attributes that change, which are restored
        program = torch.export.export(
            ExportableCall(call), call.tensors, dynamic_shapes=shapes, strict=False
        )
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    graph = module.graph
    graph._tracer_cls = None  # one of torch's own, which no pickle could make again
    graph.set_codegen(CodeGen())
    note_shapes(program, graph)
    arguments = name_inputs(graph, call)
    made = lift(graph, module, call.model, is_leaf)
    output = graph.output_node()
    output.args = (put_together(call.structure, output.args[0]),)
    graph = in_order(graph)
    note_conditions(graph, arguments, program._guards_code)
    if len(call.leaves) != len(call.given):
        takes = pytree.tree_structure((tuple(call.given.values()), {}))
        graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo([*call.given], takes, None)))
    return graph, made


def name_inputs(graph: fx.Graph, call: FlatCall) -> list[str]:
    """Give each placeholder the name of its argument; those of the tensors are returned."""
    tensors = iter(graph.find_nodes(op="placeholder"))
    last = None
    names: list[str] = []
    for path, value in call.leaves:
        name = "_".join(re.sub(r"\W", "", pytree.keystr((key,))) for key in path)
        if isinstance(value, Tensor):
            last = next(tensors)
            last.target = name
            names.append(name)
        elif name not in call.given:  # beside tensors in a list or dictionary
            with graph.inserting_after(last) if last else graph.inserting_before():
                last = graph.placeholder(name)
            last.meta[MADE_FOR] = FixedValue(value)
    return names


def in_order(graph: fx.Graph) -> fx.Graph:
    """The same graph with its inputs first, names as fx gives them, and no notes of torch."""
    ordered = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for node in sorted(graph.nodes, key=lambda node: node.op != "placeholder"):
        new = ordered.create_node(
            node.op,
            node.target,
            fx.node.map_arg(node.args, known.__getitem__),
            fx.node.map_arg(node.kwargs, known.__getitem__),
        )
        new.meta = {key: node.meta[key] for key in (MADE_FOR,) if key in node.meta}
        known[node] = new
    return ordered


class Unprovable(Exception):
    """A condition on a free size that the graph could not check."""


SIZE = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
BOUND = re.compile(r"\w+\[\d+\] (<|<=|>|>=) \d+")  # torch.export states these as ranges too
NOT_ONE = re.compile(r"(\w+)\[(\d+)\] != 1")
EQUAL = re.compile(r"\w+\[\d+\] == \w+\[\d+\]")


def note_conditions(graph: fx.Graph, arguments: list[str], guards: Iterable[str]) -> None:
    """Give each condition of torch.export to the last of the inputs that it speaks of.

    Args:
        arguments: the names of the tensors, as torch.export counts them.
    """
    inputs = {node.name: node for node in graph.find_nodes(op="placeholder")}
    order = list(inputs)
    named = {str(node.target): name for name, node in inputs.items()}
    names = [named[argument] for argument in arguments]
    for guard in guards:
        text = SIZE.sub(lambda size: f"{names[int(size[1])]}[{size[2]}]", guard)
        try:
            parse_condition(text)
        except ValueError:
            raise Unprovable(text) from None
        if found := NOT_ONE.fullmatch(text):
            raise_least(inputs.values(), inputs[found[1]].meta[MADE_FOR][int(found[2])])
        elif not BOUND.fullmatch(text) and not is_known(inputs, text):
            last = max((name for name, _ in sizes_in(text)), key=order.index)
            known = inputs[last].meta.get(CONDITIONS, ())
            inputs[last].meta[CONDITIONS] = (*known, text)


def raise_least(inputs: Iterable[fx.Node], size: Any) -> None:
    """Ask for at least two of a free size: none at all are refused as well."""
    for node in inputs:
        shape = node.meta[MADE_FOR]
        if isinstance(shape, tuple) and not isinstance(shape, FixedValue):
            node.meta[MADE_FOR] = tuple(
                each._replace(least=max(2, each.least))
                if isinstance(each, FreeSize) and isinstance(size, FreeSize)
                and each.name == size.name
                else each
                for each in shape
            )  # fmt: skip


def is_known(inputs: Mapping[str, fx.Node], text: str) -> bool:
    """True if a condition says what the shapes say already, of fixed sizes or of one free size."""
    sizes = [inputs[name].meta[MADE_FOR][place] for name, place in sizes_in(text)]
    if not any(isinstance(size, FreeSize) for size in sizes):
        return True
    return EQUAL.fullmatch(text) is not None and sizes[0] == sizes[-1]


def note_shapes(program: torch.export.ExportedProgram, graph: fx.Graph) -> None:
    """Give each placeholder of an exported graph the shape that the graph holds for."""
    for node in graph.find_nodes(op="placeholder"):
        shape = (free_size(size, program.range_constraints) for size in node.meta["val"].shape)
        node.meta[MADE_FOR] = tuple(shape)


def free_size(size: Any, ranges: Mapping[Any, Any]) -> int | FreeSize:
    """A size of an exported tensor: a number, or free within the bounds torch.export found."""
    if isinstance(size, int):
        return size
    symbol = size.node.expr
    if symbol.is_Integer:
        return int(symbol)
    if not symbol.is_Symbol:
        raise Unprovable(f"the size {symbol}")
    bounds = ranges[symbol]
    most = int(bounds.upper) if bounds.upper.is_Integer else None
    return FreeSize(str(symbol), max(0, int(bounds.lower)), most)


def stopping_line(model: nn.Module, error: Exception) -> str:
    """The user's line that tracing stops at and the reason."""
    message = str(error).strip().partition("\n")[0]
    reason = message.partition(". ")[0].rstrip(".") or type(error).__name__
    if "data-dependent" in message or "DataDependent" in type(error).__name__:
        reason = DECIDES
    frames = traceback.extract_tb(error.__traceback__)  # the first is in this file
    theirs = [frame for frame in frames if not frame.filename.startswith(OUR_CODE)]
    packages = (sys.modules.get(type(module).__module__) for module in model.modules())
    files = {getattr(package, "__file__", None) for package in packages}
    # Decorators of a model's package are not where its layers are written.
    layers = [frame for frame in theirs if frame.filename in files]
    at = (layers or theirs or frames)[-1]  # a model may be all torch's
    code = f" (`{at.line}`)" if at.line else ""
    return f"cannot trace {type(model).__name__}: {at.filename}, line {at.lineno}{code}: {reason}"
