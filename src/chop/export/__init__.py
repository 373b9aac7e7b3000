"""Integer programs as files that others can run.

The package is callable, so that ``chop.export(graph, to="c")`` is what
``chop.export.export(graph, to="c")`` is.
"""

from chop.callables import callable_package
from chop.export import integers as integers
from chop.export.c import target as c_target
from chop.export.exporting import Exported, export
from chop.export.onnx.write import qonnx, standard
from chop.export.targets import EXPORT_TARGETS, ExportTarget, export_target
from chop.export.verilog import target as verilog_target

MODULES = (integers, c_target, standard, qonnx, verilog_target)
"""Each has registered its target."""
__all__ = ["EXPORT_TARGETS", "ExportTarget", "Exported", "export", "export_target"]

callable_package(__name__, "chop.export.exporting", "export")
