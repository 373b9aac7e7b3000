"""Integer programs as files that others can run.

The package is callable, so that ``chop.export(graph, to="c")`` is what
``chop.export.export(graph, to="c")`` is.
"""

import sys
from types import ModuleType
from typing import Any

from chop.export.exporting import TARGETS, Exported, export

__all__ = ["TARGETS", "Exported", "export"]


class _Callable(ModuleType):
    """A module that is also a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Exported:
        return export(*args, **kwargs)


_Callable.__call__.__doc__ = export.__doc__
sys.modules[__name__].__class__ = _Callable
