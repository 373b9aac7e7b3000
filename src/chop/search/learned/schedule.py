"""The schedule of a run: the weight of the cost, learning rates, snapshots."""

import math
from dataclasses import dataclass
from typing import Any

from chop.search.learned.setup import LearnedSetup

WARM_UP = 1.0
"""Epochs in which the rates rise to their start."""
LOWEST = 0.02
"""The share of its rate that is left at the end of a cycle."""


@dataclass(frozen=True)
class Snapshot:
    """A moment of the run at which the network is a candidate."""

    epoch: int
    """Counted from 1, over all cycles."""
    cycle: int
    cost_weight: float

    def config(self) -> dict[str, Any]:
        """The configuration of its trial."""
        return {"cycle": self.cycle, "epoch": self.epoch, "cost_weight": self.cost_weight}


@dataclass(frozen=True)
class PolishedSnapshot(Snapshot):
    """A round of polish, counted on after the epochs of all cycles."""

    start: int
    """The epoch of the network that is polished."""

    def config(self) -> dict[str, Any]:
        return {**super().config(), "polished": self.start}


@dataclass(frozen=True)
class Schedule:
    """Cycles, each with a larger cost weight than the one before."""

    setup: LearnedSetup

    @property
    def epochs(self) -> int:
        """Of all cycles."""
        return self.end(self.setup.cycles - 1)

    def end(self, cycle: int) -> int:
        """The epochs until the end of a cycle, counted from 0."""
        return (self.setup.first_epochs or self.setup.epochs) + cycle * self.setup.epochs

    def length(self, cycle: int) -> int:
        """The epochs of a cycle, counted from 0."""
        return self.setup.epochs if cycle else self.end(0)

    def cycle(self, epoch: int) -> int:
        """The cycle of an epoch, both counted from 0."""
        return max(0, 1 + (epoch - self.end(0)) // self.setup.epochs)

    def cost_weight(self, epoch: int) -> float:
        """The share in the loss of the EBOPs at the start, in an epoch counted from 0."""
        first, last = self.setup.cost_weight
        done = self.cycle(epoch) / max(self.setup.cycles - 1, 1)
        return float(f"{first * (last / first) ** done:.6g}")

    def rate_factor(self, time: float) -> float:
        """The factor of the learning rates after so many epochs."""
        cycle = self.cycle(int(time))
        left = (self.end(cycle) - time) / self.length(cycle)
        cosine = LOWEST + (1 - LOWEST) * (1 - math.cos(math.pi * left)) / 2
        warm = min(1.0, (time + LOWEST) / WARM_UP)
        return float(cosine * self.setup.restart_decay**cycle * warm)

    def snapshot(self, epoch: int) -> Snapshot | None:
        """The snapshot after an epoch, counted from 0, if there is one."""
        cycle = self.cycle(epoch)
        if epoch < self.end(cycle) - self.setup.snapshots:
            return None
        return Snapshot(epoch + 1, cycle + 1, self.cost_weight(epoch))

    def ends_cycle(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 0, is the last of its cycle."""
        return epoch + 1 == self.end(self.cycle(epoch))

    def snapshots_of(self, cycle: int) -> list[Snapshot]:
        """The snapshots of a cycle, counted from 0."""
        epochs = range(self.end(cycle) - self.length(cycle), self.end(cycle))
        return [each for epoch in epochs if (each := self.snapshot(epoch)) is not None]
