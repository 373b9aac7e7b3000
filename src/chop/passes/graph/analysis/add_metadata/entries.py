"""Records of tensors, and snapshots of values that later operations may overwrite."""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from chop.ir.graph.mase_metadata import ParameterEntry, TensorEntry

UNKNOWN: TensorEntry = {"type": None, "precision": None, "shape": None, "torch_dtype": None}
"""What is recorded of a tensor when the model was not run."""


@functools.cache
def dtype_format(dtype: torch.dtype) -> tuple[str, int]:
    """The kind and the width of a torch dtype, in the words of the metadata."""
    if dtype is torch.bool:
        return "bool", 1
    kind = "float" if dtype.is_floating_point else "complex" if dtype.is_complex else "int"
    return kind, dtype.itemsize * 8


class Snapshots:
    """Copies of tensors as they are now; a tensor that has not changed is copied only once."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor; parameters are shared, for they are the model's to keep."""
        if isinstance(tensor, nn.Parameter) or tensor.is_meta:
            return tensor.detach()
        found = self._taken.get(id(tensor))
        # An id is used again once its tensor is gone, and an in-place operation keeps the id.
        if found is None or found[0]() is not tensor or found[1] != tensor._version:
            found = weakref.ref(tensor), tensor._version, tensor.detach().clone()
            self._taken[id(tensor)] = found
        return found[2]


def tensor_entry(tensor: Tensor, snapshots: Snapshots | None) -> TensorEntry:
    """The record of a tensor, with its value if snapshots are taken."""
    kind, width = dtype_format(tensor.dtype)
    entry: TensorEntry = {
        "type": kind,
        "precision": [width],
        "shape": list(tensor.shape),
        "torch_dtype": tensor.dtype,
    }
    if snapshots is not None:
        entry["value"] = snapshots.of(tensor)
    return entry


def parameter_entry(tensor: Tensor, add_value: bool) -> ParameterEntry:
    """The record of a parameter; its value shares the memory of the model's."""
    kind, width = dtype_format(tensor.dtype)
    entry: ParameterEntry = {
        "type": kind,
        "precision": [width],
        "shape": list(tensor.shape),
        "from": None,
    }
    if add_value:
        entry["value"] = tensor.detach()
    return entry


def named_results(result: Any) -> Iterator[tuple[str, Any]]:
    """What a node gives: the parts of nested containers with tensors, or the value as it is."""
    leaves = pytree.tree_leaves(result)
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        leaves = [result]
    for index, leaf in enumerate(leaves):
        yield f"data_out_{index}", leaf


def result_entries(result: Any, snapshots: Snapshots | None) -> dict[str, Any]:
    """The records of what a node gives."""
    return {
        name: tensor_entry(value, snapshots)
        if isinstance(value, Tensor)
        else {"type": type(value).__name__, "shape": [1], "value": value}
        for name, value in named_results(result)
    }
