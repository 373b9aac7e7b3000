"""ONNX files from anywhere: read as data, checked, and nothing beside them is opened."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chop.errors import CheckpointError
from chop.export.onnx.write.code import Array, import_optional
from chop.files import regular
from chop.lowering.program import Shape

LARGEST_FILE = 2**31 - 1
"""Bytes: a protocol buffer cannot be larger."""
MOST_NODES, MOST_ELEMENTS, LARGEST_SIZE = 100_000, 2**31, 2**20
LONGEST_ROW = 2**26
"""Elements of an input, as rows of it are made to run the graph once."""


def read_model(path: Path) -> Any:
    """Return the protocol buffer in a file; refuse what is not ONNX or has parts in other files."""
    onnx = import_optional("onnx")
    try:
        if regular(path).stat().st_size > LARGEST_FILE:
            raise CheckpointError(f"{path}: larger than 2 GiB, so no ONNX file")
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # noqa: BLE001  # what protobuf raises depends on its version
        raise CheckpointError(f"{path}: no ONNX file, or damaged: {error}") from None
    if not model.graph.node or not model.opset_import:
        raise CheckpointError(f"{path}: no ONNX file, or damaged: it holds no network")
    if len(model.graph.node) > MOST_NODES:
        raise CheckpointError(f"{path}: {len(model.graph.node):,} nodes are too many")
    return model


def constant_array(tensor: Any, path: Path) -> Array:
    """The constant of a file, if it is inside and as large as it says."""
    onnx = import_optional("onnx")
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise CheckpointError(
            f"{path}: keeps {tensor.name!r:.60} in another file, which is not read: store it in one"
        )
    try:
        count = math.prod(tensor.dims)
        stored = len(tensor.raw_data) or sum(len(getattr(tensor, each)) for each in DATA)
        if any(size < 0 for size in tensor.dims) or count > max(stored, 1) * 2:
            raise ValueError("it holds fewer numbers than it says")
        found: Array = np.array(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        what = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: the constant {tensor.name!r:.60} is damaged: {what}"
        ) from None
    if found.dtype.kind not in "fiub" or not np.isfinite(found.astype(np.float64)).all():
        raise CheckpointError(f"{path}: the constant {tensor.name!r:.60} holds no plain numbers")
    return found


DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def input_shape(edge: Any, path: Path) -> Shape:
    """The shape of a row of an input."""
    dims = edge.type.tensor_type.shape.dim
    sizes = tuple(int(each.dim_value) for each in list(dims)[1:])
    if not dims or any(size <= 0 for size in sizes):
        raise CheckpointError(f"{path}: the shape of the input {edge.name!r:.60} is not known")
    if math.prod(sizes) > LONGEST_ROW:
        raise CheckpointError(
            f"{path}: rows of {math.prod(sizes):,} elements are too long: at most {LONGEST_ROW:,}"
        )
    return sizes


class Attributes:
    """The attributes of a node, each of the type that is asked for."""

    def __init__(self, node: Any) -> None:
        self.node, self.by_name = node, {each.name: each for each in node.attribute}

    def integer(self, name: str, default: int) -> int:
        return int(self.by_name[name].i) if name in self.by_name else default

    def number(self, name: str, default: float) -> float:
        return float(self.by_name[name].f) if name in self.by_name else default

    def text(self, name: str, default: str) -> str:
        return self.by_name[name].s.decode(errors="replace") if name in self.by_name else default

    def sizes(self, name: str, default: Sequence[int]) -> list[int]:
        """Whole numbers that are not negative and no larger than a tensor can be."""
        found = list(self.by_name[name].ints) if name in self.by_name else list(default)
        if any(not 0 <= size <= LARGEST_SIZE for size in found):
            raise ValueError(f"{name} {found!s:.60} is out of bounds")
        return found
