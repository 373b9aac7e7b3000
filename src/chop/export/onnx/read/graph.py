"""QONNX files as graphs: a layer for each product, a rounding for each ``Quant``.

What qonnx, Brevitas and `chop.export` write can be read. Strings of the file name nothing in the
graph, apart from inputs whose names are plain words; its operators come from a closed table.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from chop.errors import CheckpointError, ChopError
from chop.export.onnx.read.file import (
    LARGEST_SIZE,
    MOST_ELEMENTS,
    Attributes,
    constant_array,
    input_shape,
    read_model,
)
from chop.export.onnx.read.scales import NotBinaryError, ScaledCodes, is_granular
from chop.export.onnx.write.code import Array
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering.program import Shape
from chop.nn.quant_config import QuantConfig
from chop.nn.quantized import quantize_module
from chop.numerics import NumberFormat
from chop.ops.op import op_of_module

WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
DOMAINS = ("", "ai.onnx", "qonnx.custom_op.general", "finn.custom_op.general", "onnx.brevitas")

ROWS, INT64 = 2, 7
SHAPES = "meta"
"""The device of tensors that have a shape and no numbers."""


@dataclass(frozen=True)
class FileConstant:
    """Numbers of the file, and what a ``Quant`` has rounded them to."""

    array: Array
    target: ScaledCodes | None = None

    @property
    def tensor(self) -> Tensor:
        is_float = self.array.dtype.kind == "f"
        return torch.from_numpy(self.array.astype(np.float32) if is_float else self.array)


@dataclass(frozen=True)
class FileValue:
    """A value that depends on the input: its node, and a tensor of its shape."""

    node: fx.Node
    fake: Tensor
    format: NumberFormat | None = None
    """What all its numbers are of, if that is known."""
    stored: ScaledCodes | None = None
    """The codes that it is, until they are made numbers again."""

    def in_format_of(self, other: "FileValue") -> "FileValue":
        """The value, whose numbers are those of another in other places."""
        return replace(self, format=None if is_granular(other.format) else other.format)


FileOperand = FileConstant | FileValue


@dataclass
class FileNode:
    """One node of the file: what it reads, and the graph that is being built."""

    kind: str
    operands: list[FileOperand | None]
    attributes: Attributes
    builder: "FileGraph"

    def operand(self, place: int) -> FileOperand | None:
        """An operand, None if it is left out."""
        return self.operands[place] if place < len(self.operands) else None

    def refuse_codes(self) -> None:
        """Refuse codes where numbers are computed with."""
        stored = [each for each in self.operands if isinstance(each, FileValue) and each.stored]
        if stored and self.kind != "DequantizeLinear":
            raise ValueError("computes with codes, which only DequantizeLinear reads")

    def traced(self, place: int = 0) -> FileValue:
        """An operand that depends on the input."""
        found = self.operand(place)
        if not isinstance(found, FileValue):
            raise ValueError("reads a constant where what depends on the input is expected")
        return found

    def constant(self, place: int) -> FileConstant:
        """An operand that does not."""
        found = self.operand(place)
        if not isinstance(found, FileConstant):
            raise ValueError("reads something that varies where a constant is expected")
        return found

    def integers(self, place: int, name: str, default: list[int] | None = None) -> list[int]:
        """Whole numbers that are an operand, or in older files an attribute."""
        if self.operand(place) is not None:
            return [int(each) for each in self.constant(place).array.reshape(-1)]
        if name in self.attributes.by_name:
            return [int(each) for each in self.attributes.by_name[name].ints]
        if default is None:
            raise ValueError(f"has no {name}")
        return default


@dataclass
class FileGraph:
    """The graph as it is built."""

    binary: bool
    """Whether all formats are fixed point, which integer programs are made of."""
    root: nn.Module = field(default_factory=nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)

    def input(self, name: str, shape: Shape, is_integer: bool) -> FileValue:
        """Add a placeholder; a name that is not a plain word is replaced."""
        plain = WORD.fullmatch(name) and not iskeyword(name)
        count = sum(node.op == "placeholder" for node in self.graph.nodes)
        node = self.graph.placeholder(name if plain else f"input_{count}")
        dtype = torch.int64 if is_integer else torch.float32
        return FileValue(node, torch.empty((1, *shape), dtype=dtype, device=SHAPES))

    def layer(
        self,
        module: nn.Module,
        x: FileValue,
        quant: QuantConfig | None = None,
        *,
        shape: Sequence[int] | None = None,
    ) -> FileValue:
        """A layer, quantised or not.

        Args:
            shape: of the result, where it is known: PyTorch takes seconds to get ready for some.
        """
        name = f"{type(module).__name__.lower()}_{len(self.root._modules)}"
        module = module.eval().requires_grad_(False)
        if shape is None:
            state = {name: each.to(SHAPES) for name, each in module.state_dict().items()}
            fake = functional_call(module, state, (x.fake,))
        else:
            fake = torch.empty(tuple(shape), device=SHAPES)
        if quant is not None:
            op = op_of_module(module)
            assert op is not None
            module = quantize_module(module, op, quant)
        self.root.add_module(name, module)
        return self._small(FileValue(self.graph.call_module(name, (x.node,)), fake))

    def call(self, function: Any, *args: Any, shape: Sequence[int] | None = None) -> FileValue:
        """A function of traced values, constants and plain values."""
        nodes, fakes = (self._arguments(list(args), traced) for traced in (True, False))
        fake = function(*fakes) if shape is None else torch.empty(tuple(shape), device=SHAPES)
        return self._small(FileValue(self.graph.call_function(function, tuple(nodes)), fake))

    def by_element(self, function: Any, *args: Any) -> FileValue:
        """The same of a function of single elements."""
        tensors = [each for each in self._arguments(list(args), False) if isinstance(each, Tensor)]
        shape = np.broadcast_shapes(*(tuple(each.shape) for each in tensors))
        result = self.call(function, *args, shape=shape)
        dtypes = [each.fake.dtype for each in args if isinstance(each, FileValue)]
        return replace(result, fake=result.fake.to(dtypes[0]))

    def whole(self, x: FileValue) -> FileValue:
        """Numbers as integers."""
        return FileValue(self.graph.call_method("long", (x.node,)), x.fake.long())

    def _arguments(self, values: list[Any], as_nodes: bool) -> list[Any]:
        found: list[Any] = []
        for value in values:
            if isinstance(value, FileValue):
                found.append(value.node if as_nodes else value.fake)
            elif isinstance(value, FileConstant):
                tensor = value.tensor
                found.append(self._buffer(tensor) if as_nodes else tensor.to(SHAPES))
            else:
                inner = isinstance(value, list)
                found.append(self._arguments(value, as_nodes) if inner else value)
        return found

    def _buffer(self, tensor: Tensor) -> fx.Node:
        name = f"constant_{len(self.root._buffers)}"
        self.root.register_buffer(name, tensor)
        return self.graph.get_attr(name)

    def _small(self, value: FileValue) -> FileValue:
        if value.fake.numel() > MOST_ELEMENTS:
            raise ValueError(f"makes a tensor of {value.fake.numel():,} elements for a row")
        return value


def load_qonnx(path: str | Path) -> tuple[MaseGraph, dict[str, Tensor]]:
    """The graph in a QONNX file, and some rows of zeros by the names of its inputs."""
    from chop.export.onnx.read.operators import OPERATORS

    path = Path(path).expanduser()
    model = read_model(path)
    foreign = {
        node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        for node in model.graph.node
        if node.op_type not in OPERATORS or node.domain not in DOMAINS
    }
    if foreign:
        names = ", ".join(sorted(f"{each!s:.40}" for each in foreign)[:20])
        raise CheckpointError(f"{path}: uses operators that are not known here: {names}")
    try:
        return graph_of_model(model, path, binary=True)
    except NotBinaryError:
        return graph_of_model(model, path, binary=False)


def graph_of_model(model: Any, path: Path, binary: bool) -> tuple[MaseGraph, dict[str, Tensor]]:
    """The graph, with all formats fixed point or all with scales of their own."""
    builder = FileGraph(binary)
    known: dict[str, FileOperand] = {
        each.name: FileConstant(constant_array(each, path)) for each in model.graph.initializer
    }
    rows: dict[str, Tensor] = {}
    for edge in model.graph.input:
        if edge.name not in known:  # old files list their constants as inputs, too
            is_integer = edge.type.tensor_type.elem_type == INT64
            given = builder.input(edge.name, input_shape(edge, path), is_integer)
            known[edge.name] = given
            shape = (ROWS, *given.fake.shape[1:])
            rows[str(given.node.target)] = torch.zeros(shape, dtype=given.fake.dtype)
    for place, node in enumerate(model.graph.node):
        read_node(node, place, known, builder, path)
    outputs = [known.get(edge.name) for edge in model.graph.output]
    results = [each.node for each in outputs if isinstance(each, FileValue)]
    if any(isinstance(each, FileValue) and each.stored for each in outputs):
        raise CheckpointError(f"{path}: an output is codes: end it with a DequantizeLinear")
    if not results or len(results) != len(outputs):
        raise CheckpointError(f"{path}: an output does not depend on the input")
    builder.graph.output(results[0] if len(results) == 1 else tuple(results))
    builder.graph.lint()
    return MaseGraph(fx.GraphModule(builder.root, builder.graph, "QONNX").eval()), rows


def read_node(
    node: Any, place: int, known: dict[str, FileOperand], builder: FileGraph, path: Path
) -> None:
    """Add one node of the file to the graph; one line for what does not fit."""
    from chop.export.onnx.read.operators import OPERATORS

    where = f"{path}: {node.op_type} (node {place})"
    missing = [name for name in node.input if name and name not in known]
    if missing or len(node.output) != 1 or node.output[0] in known:
        raise CheckpointError(f"{where} is out of order or has more than one result")
    operands = [known[name] if name else None for name in node.input]
    if node.op_type == "Constant":
        tensors = [each.t for each in node.attribute if each.name == "value"]
        if not tensors:
            raise CheckpointError(f"{where} holds no tensor")
        known[node.output[0]] = FileConstant(constant_array(tensors[0], path))
        return
    try:
        call = FileNode(node.op_type, operands, Attributes(node), builder)
        call.refuse_codes()
        known[node.output[0]] = OPERATORS[node.op_type](call)
    except ChopError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(f"{where} cannot be read: {' '.join(str(error).split())}") from None


def bounded_sizes(sizes: list[int]) -> list[int]:
    """Sizes of a tensor; -1 stands for one that follows from the others."""
    if any(not -1 <= size <= LARGEST_SIZE for size in sizes):
        raise ValueError(f"sizes {sizes!s:.60} are out of bounds")
    return sizes
