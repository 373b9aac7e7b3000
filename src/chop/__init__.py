"""Machop: train, analyse, quantise and search PyTorch models as torch.fx graphs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chop import export as export
    from chop.api.quantizing import quantize as quantize
    from chop.ir.graph.mase_graph import MaseGraph as MaseGraph

__version__ = "0.1.0"
__all__ = ["MaseGraph", "__version__", "export", "quantize"]


def __getattr__(name: str) -> object:
    """Import what takes seconds when it is first asked for: `ch --help` must not."""
    if name == "MaseGraph":
        from chop.ir.graph.mase_graph import MaseGraph

        return MaseGraph
    if name == "quantize":
        from chop.api.quantizing import quantize

        return quantize
    if name == "export":
        return import_module("chop.export")
    raise AttributeError(f"module 'chop' has no attribute {name!r}")
