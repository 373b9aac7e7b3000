"""C before it is flashed: what it takes on devices, its layers, and its plan of memory."""

import shutil
from typing import Any

from pydantic import BaseModel, Field

from chop.figures import number
from chop.tables import ResultTable


class PlannedLayer(BaseModel):
    """A layer: its constants, the scratch memory that lives while it runs, its instructions."""

    layer: int
    nodes: list[str]
    steps: list[str]
    weights: str | None = None
    constant_bytes: int
    scratch_bytes: int
    instructions: int


class PlannedBuffer(BaseModel):
    """A buffer: its place in the scratch memory, and the layers from and to which it lives."""

    label: str = Field(alias="for")
    offset: int
    size: int = Field(alias="bytes")
    first: int = Field(alias="from")
    last: int = Field(alias="to")


class MemoryPlan(BaseModel):
    """All layers and all buffers."""

    layers: list[PlannedLayer]
    buffers: list[PlannedBuffer]


class CodeEstimate(BaseModel):
    """The cost of a program on a device, without a compiler."""

    device: str
    flash_bytes: int
    ram_bytes: int
    instructions: int


class DeviceCost(BaseModel):
    """Sizes by a compiler, and the speed by a simulator if it ran."""

    flash_bytes: int
    stack_bytes: int
    instructions: int | None = None
    cycles: int | None = None
    layers: list[int] | None = None

    @property
    def speed(self) -> str:
        """Instructions of a row, or cycles where they are known."""
        if self.cycles is not None:
            return f"{number(self.cycles)} cycles"
        return "" if self.instructions is None else number(self.instructions)


class CodeReport(BaseModel):
    """The part of a manifest that is about C, shown as its tables."""

    scratch_bytes: int
    estimate: CodeEstimate
    memory: MemoryPlan
    devices: dict[str, DeviceCost | str] = Field(default_factory=dict)
    """The cost on each device, or why it is not known."""

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> "CodeReport":
        """Return the report of a manifest of C."""
        return cls.model_validate(manifest["c"])

    def layer_table(self) -> ResultTable:
        """A row for each layer: what it takes by estimate, and what devices count."""
        counted = {
            label: found.layers
            for label, found in self.devices.items()
            if isinstance(found, DeviceCost) and found.layers
        }
        rows = [
            (
                ", ".join(each.nodes), " + ".join(each.steps).lower(), each.weights or "",
                number(each.constant_bytes), number(each.scratch_bytes), number(each.instructions),
                *(number(found[each.layer]) for found in counted.values()),
            )
            for each in self.memory.layers
        ]  # fmt: skip
        headers = ("layer", "steps", "weights", "constants, bytes", "scratch, bytes",
                   f"instructions, {self.estimate.device} by estimate", *counted)  # fmt: skip
        spare = [*reversed(counted), "steps"]
        return ResultTable(headers, rows, "Layers", text_columns=3, spare=spare)

    def device_table(self) -> ResultTable:
        """A row for each device: flash, memory and instructions, or why they are not known."""
        guess, scratch = self.estimate, number(self.scratch_bytes)
        rows = [(f"{guess.device}, by estimate", number(guess.flash_bytes), scratch, "",
                 number(guess.instructions), "")]  # fmt: skip
        for label, found in self.devices.items():
            if isinstance(found, str):
                rows.append((label, "", "", "", "", found))
            else:
                sizes = number(found.flash_bytes), scratch, number(found.stack_bytes)
                rows.append((label, *sizes, found.speed, ""))
        headers = ("device", "flash, bytes", "scratch, bytes", "stack, bytes",
                   "instructions of a row", "note")  # fmt: skip
        return ResultTable(headers, rows, "Devices", text_columns=1).drop_empty_columns()

    def __str__(self) -> str:
        width = shutil.get_terminal_size((120, 24)).columns
        return f"\n{self.layer_table().text(width)}\n\n{self.device_table().text()}"
