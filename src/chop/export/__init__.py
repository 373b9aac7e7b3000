"""Integer programs as files that others can run.

The package is callable, so that ``chop.export(graph, to="c")`` is what
``chop.export.export(graph, to="c")`` is.
"""

from chop.callables import callable_package
from chop.export.exporting import TARGETS, Exported, export

__all__ = ["TARGETS", "Exported", "export"]

callable_package(__name__, "chop.export.exporting", "export")
