"""Settings of formats for each channel or element, stored beside the weights, not as text."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.ir.stored.graph_file import GraphRecord
from chop.numerics.int_tensor import ArrayValue, FloatTensor, IntTensor

PREFIX = "format::"  # no layer's name has a colon in it
TAG = "$format"
FEW = 16
"""So many numbers are easier to read as a list."""
Settings = dict[str, Any]


def moved_out(record: GraphRecord, tensors: dict[str, Tensor]) -> GraphRecord:
    """The record with names in the place of what moves to `tensors`, equal contents once."""

    def name_tensor(value: Any) -> Any:
        if not isinstance(value, ArrayValue):
            return value
        if value.array.size <= FEW:
            return value.tolist()
        numbers = value.array.astype(np.int8) if value.array.dtype == np.int16 else value.array
        tensors[PREFIX + value.digest.hex()] = torch.from_numpy(numbers.copy())
        return {TAG: value.digest.hex()}

    return _with_settings(record, name_tensor)


def moved_in(
    record: GraphRecord, tensors: Mapping[str, Tensor]
) -> tuple[GraphRecord, dict[str, Tensor]]:
    """The record with its tensors again, and the tensors that are left; errors are ValueErrors."""
    used: dict[str, ArrayValue] = {}

    def find_tensor(value: Any) -> Any:
        if not isinstance(value, dict) or TAG not in value:
            return value
        name = f"{PREFIX}{value[TAG]}"
        if name not in tensors:
            raise ValueError(f"{name!r:.60}, which a format refers to, is missing")
        if name not in used:
            floats = tensors[name].is_floating_point()
            used[name] = FloatTensor(tensors[name]) if floats else IntTensor(tensors[name])
        return used[name]

    record = _with_settings(record, find_tensor)
    return record, {name: tensor for name, tensor in tensors.items() if name not in used}


def _with_settings(record: GraphRecord, change: Callable[[Any], Any]) -> GraphRecord:
    """The record with every setting of a format changed."""

    def change_settings(settings: Settings | None) -> Settings | None:
        return settings and {key: change(value) for key, value in settings.items()}

    layers = {
        name: layer.model_copy(update={"quantized": change_settings(layer.quantized)})
        for name, layer in record.layers.items()
    }
    packed = {
        name: how.model_copy(update={"settings": change_settings(how.settings)})
        for name, how in record.packed.items()
    }
    return record.model_copy(update={"layers": layers, "packed": packed})
