"""Integer programs as files that others can run."""

from chop.export.exporting import TARGETS, Exported, export

__all__ = ["TARGETS", "Exported", "export"]
