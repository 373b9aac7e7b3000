"""Machop: train, analyse, quantise and search PyTorch models as torch.fx graphs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph as MaseGraph

__version__ = "0.1.0"
__all__ = ["MaseGraph", "__version__"]


def __getattr__(name: str) -> object:
    """Import `MaseGraph` when it is first asked for: torch takes seconds, `ch --help` must not."""
    if name == "MaseGraph":
        from chop.ir.graph.mase_graph import MaseGraph

        return MaseGraph
    raise AttributeError(f"module 'chop' has no attribute {name!r}")
