"""Machop: train, analyse, quantise and search PyTorch models as torch.fx graphs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chop.aliases import install_aliases

if TYPE_CHECKING:
    from chop import export as export
    from chop.ir.graph.mase_graph import MaseGraph as MaseGraph
    from chop.verbs.quantize.module import quantize as quantize

__version__ = "0.1.0"
__all__ = [
    "MaseGraph", "__version__", "compare_formats", "evaluate", "export", "quantize", "report",
    "search", "sensitivity", "train",
]  # fmt: skip

MODULES = ("errors", "export", "search")
"""What is reached without an import of its own; all but the first are functions, too."""
OTHER_NAMES = {"evaluate": "test", "compare_formats": "formats"}
"""Verbs that have another name in Python."""

install_aliases()


def __getattr__(name: str) -> Any:
    """Import what takes seconds when it is first asked for: `ch --help` must not."""
    if name == "MaseGraph":
        return import_module("chop.ir.graph.mase_graph").MaseGraph
    if name in MODULES:
        return import_module(f"chop.{name}")
    if not name.startswith("_"):
        verb = import_module("chop.config.verb").verbs().get(OTHER_NAMES.get(name, name))
        if verb is not None:
            return verb.in_python
    raise AttributeError(f"module 'chop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
