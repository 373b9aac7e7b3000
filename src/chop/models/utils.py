"""The names the labs import from here; they live in `chop.models.info`."""

from chop.models.info import MaseModelInfo, ModelSource, ModelTaskType

__all__ = ["MaseModelInfo", "ModelSource", "ModelTaskType"]
