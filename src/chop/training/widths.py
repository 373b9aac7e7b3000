"""Widths that learn in a training run: their cost in the loss, their ranges, what is stored."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.bit_cost import learns_widths
from chop.nn.learned import LearnedWidths
from chop.training.settings import CostSettings, TrainingSettings


def check_cost(model: nn.Module, settings: TrainingSettings) -> None:
    """Refuse a cost for a network that has no bits to save."""
    if settings.cost is not None and not learns_widths(model):
        raise ConfigError(
            "[train.cost]: nothing in this network learns its widths, so no cost can change them: "
            "quantise it to the format 'integer_trained' first"
        )


def widths_of_run(model: nn.Module, settings: TrainingSettings) -> "RunWidths | None":
    """What learns the widths of a network while it is trained; None if it has none to learn."""
    check_cost(model, settings)
    return (
        RunWidths(model, settings.cost or CostSettings(weight=0.0))
        if learns_widths(model)
        else None
    )


class RunWidths:
    """The widths of a network in training.

    In training nothing saturates and ranges only follow the values, so before each validation they
    are set from the last batches that the network was trained on.
    """

    def __init__(self, model: nn.Module, cost: CostSettings) -> None:
        self.widths = LearnedWidths(model, cost.refresh, cost.magnitude)
        self.weight = cost.weight
        self.recent: deque[Tensor] = deque(maxlen=cost.calibration_batches)
        """Features of the last batches."""
        self._followed: list[Tensor] | None = None
        """The ranges of an epoch that was cut short, which it resumes with."""

    def loss_term(self) -> Tensor:
        """What the bits add to the loss, after a forward pass."""
        return self.widths.cost * self.weight

    @property
    def ebops(self) -> float:
        """The last estimate of the effective bit operations."""
        return float(self.widths.value)

    def end_epoch(self, *, cut_short: bool) -> None:
        """Make the network ready to be evaluated."""
        self._followed = [bound.clone() for bound in self._ranges()] if cut_short else None
        if not cut_short:
            self.widths.clamp()
        self.widths.calibrate(self.recent)
        self.recent.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to resume with the same numbers."""
        return {"widths": self.widths.state_dict(), "followed": self._followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.widths.load_state_dict(state["widths"])
        if state["followed"] is not None:
            with torch.no_grad():
                for bound, value in zip(self._ranges(), state["followed"], strict=True):
                    bound.copy_(value)

    def _ranges(self) -> list[Tensor]:
        return [bound for each in self.widths.parts.data for bound in (each.lo, each.hi)]
