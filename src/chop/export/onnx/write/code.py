"""Pieces of ONNX: nodes and constants as they are written, and the file that they make."""

from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop import __version__
from chop.errors import ConfigError
from chop.lowering.program import Codes, Shape

OPSET, IR_VERSION = 21, 10
"""The first opset with 16-bit codes, and its version of the file format: 13 is the newest that
today's onnxruntime reads."""
Array = NDArray[Any]
BATCH = "N"


def import_optional(package: str) -> Any:
    """An optional package; one line that says how to get it, if it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        raise ConfigError(
            f"{name} is not installed, and ONNX needs it: "
            "pip install onnx onnxruntime onnxscript qonnx"
        ) from None


def power_array(exponent: Codes | int, dtype: Any) -> Array:
    """Two to a power, exactly."""
    found: Array = np.asarray(np.ldexp(np.ones(np.shape(exponent)), exponent), dtype)
    return found


def code_numbers(codes: Codes, frac: Codes | int, dtype: Any) -> Array:
    """The numbers that codes stand for."""
    found: Array = np.ldexp(codes.astype(np.float64), -np.asarray(frac)).astype(dtype)
    return found


def are_float32(codes: Codes, frac: Codes) -> bool:
    """Return True if float32 holds all numbers that codes stand for, whatever their bits."""
    if frac.size > 1:
        return False
    exact = code_numbers(codes, frac, np.float64)
    return bool((exact.astype(np.float32) == exact).all())


def onnx_type(dtype: Any) -> int:
    """The number that ONNX has for a type."""
    kind: int = import_optional("onnx").helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return kind


@dataclass(frozen=True)
class ModelEdge:
    """An input or output of the file; the batch comes before its shape."""

    name: str
    shape: Shape
    dtype: Any


@dataclass
class OnnxCode:
    """Nodes in the order in which they run, and the constants that they read."""

    domains: dict[str, int] = field(default_factory=lambda: {"": OPSET})
    nodes: list[tuple[str, tuple[str, ...], str, str, dict[str, Any]]] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    _names: Counter[str] = field(default_factory=Counter)
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def name(self, wanted: str) -> str:
        """A name that nothing has yet."""
        self._names[wanted] += 1
        count = self._names[wanted]
        return wanted if count == 1 else self.name(f"{wanted}_{count - 1}")

    def constant(self, array: Any, name: str = "constant") -> str:
        """The name of a constant; equal ones are stored once."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self.name(name)
            self.constants[self._known[key]] = array
        return self._known[key]

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; the name of its result."""
        result = self.name(kind.lower())
        self.nodes.append((kind, inputs, result, domain, attributes))
        return result

    def scaled(self, x: str, factor: Array) -> str:
        """A value times constants, and nothing where they are 1."""
        return x if (factor == 1).all() else self.node("Mul", x, self.constant(factor))

    def renamed(self, x: str, name: str) -> None:
        """The value under the name of an output."""
        self.nodes.append(("Identity", (x,), name, "", {}))

    def model(
        self, inputs: list[ModelEdge], outputs: list[ModelEdge], notes: str, batch: int | str
    ) -> Any:
        """The protocol buffer of the file."""
        onnx = import_optional("onnx")
        helper = onnx.helper

        def info(edge: ModelEdge) -> Any:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(edge.dtype))
            return helper.make_tensor_value_info(edge.name, kind, [batch, *edge.shape])

        nodes = [
            helper.make_node(kind, list(reads), [result], name=result, domain=domain, **attributes)
            for kind, reads, result, domain, attributes in self.nodes
        ]
        constants = [onnx.numpy_helper.from_array(a, name) for name, a in self.constants.items()]
        graph = helper.make_graph(
            nodes, "network", list(map(info, inputs)), list(map(info, outputs)), constants
        )
        opsets = [helper.make_opsetid(name, version) for name, version in self.domains.items()]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="machop",
            producer_version=__version__,
            doc_string=notes,
        )


def write_model(model: Any, path: Path) -> None:
    """Write the file, if it is valid."""
    onnx = import_optional("onnx")
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
