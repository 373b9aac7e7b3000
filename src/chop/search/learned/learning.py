"""Training of widths and weights together, and the plain networks that come of it."""

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from chop.errors import TrainingError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.learned import LearnedWidths
from chop.numerics.trained import Codes, TrainedQuantizer, codes_per_unit
from chop.passes.graph.transforms.quantize.freeze import freeze_transform_pass
from chop.preprocessing import Targets
from chop.search.learned.networks import make_adam, train_epoch
from chop.search.learned.rows import Rows
from chop.search.learned.schedule import Schedule
from chop.search.learned.setup import LearnedSetup
from chop.search.learned.state import fitting, optimiser_state, read_state, write_state
from chop.search.spaces.space import Batch
from chop.training.metrics import tally

State = dict[str, Tensor]
LEAST_BITS = 4
"""Bits that the largest magnitude of a tensor has at the start, or more."""


def _at_least(quantizer: TrainedQuantizer, values: Tensor) -> bool:
    """Raise the bits after the point until the largest of `values` has enough; whether any rose."""
    largest = float(values.abs().max())
    if largest == 0:
        return False
    wanted = float(LEAST_BITS - math.frexp(largest)[1])
    has_risen = bool((quantizer.frac_width < wanted).any())
    quantizer.frac_width.clamp_(min=wanted)
    quantizer.highest = max(quantizer.highest, wanted)
    return has_risen


@torch.no_grad()
def score_of(model: nn.Module, batches: Iterable[Batch], targets: Targets | None) -> float:
    """What decides of a task, of a network in evaluation mode: accuracy, mean absolute error."""
    model.eval()
    copies = ((features.clone(), labels) for features, labels in batches)
    return tally(model, copies, targets).result().value


class Learning:
    """A network whose widths learn, epoch by epoch.

    Args:
        graph: with quantisers that learn; it is changed.
        first_epoch: how many epochs of the rows the float training has used.
    """

    def __init__(
        self, graph: MaseGraph, setup: LearnedSetup, rows: Rows, first_epoch: int = 0
    ) -> None:
        self.template = copy.deepcopy(graph)
        self.model, self.setup, self.rows, self.first_epoch = graph.model, setup, rows, first_epoch
        self.schedule = Schedule(setup)
        self.widths = LearnedWidths(self.model, setup.refresh, setup.magnitude)
        bits = self.widths.parameters_of_bits()
        known = {id(each) for each in bits}
        others = [v for v in self.model.parameters() if id(v) not in known and v.requires_grad]
        self.optimiser = make_adam(
            [(others, setup.learning_rate), (bits, setup.bits_learning_rate)]
        )
        self.sample = rows.drawn(setup.calibration_rows)
        self.widen()
        self.start_ebops = self.estimate()
        """What the network costs before anything is learned; the cost weight is relative to it."""

    @torch.no_grad()
    def widen(self) -> None:
        """Give what is small enough bits to begin with, and see ranges.

        The same number of bits after the point may be right for one network and round all weights
        of a wider one, or its data, to zero. What a layer gives is known once those before it give
        something, so this goes through the network until nothing changes.
        """
        for weight in self.widths.parts.weights:
            _at_least(weight.quantizer, weight.value)
        data = self.widths.parts.data
        for _ in range(len(data) + 1):
            self.widths.calibrate(self.sample)
            risen = [_at_least(each, torch.stack([each.lo, each.hi])) for each in data]
            if not any(risen):
                break

    def estimate(self) -> float:
        """The EBOPs as the widths and the ranges stand; never less than the exact count."""
        weights = self.widths.parts.weights
        scales = [codes_per_unit(weight.quantizer.frac_width) for weight in weights]
        codes = [Codes()(w.value.detach(), scale) for w, scale in zip(weights, scales, strict=True)]
        self.widths.count([c / s for c, s in zip(codes, scales, strict=True)], scales)
        return float(self.widths.value)

    def rehearse(self) -> None:
        """Take one step without changing anything; raise if some width cannot learn from it."""
        self.model.train()
        features, targets = next(self.rows.batches(0, self.model))
        loss = self.rows.loss(self.model(features), targets) + self.widths.cost
        loss.backward()  # type: ignore[no-untyped-call]
        bits = self.widths.parameters_of_bits()
        if not bool(loss.isfinite()) or any(each.grad is None for each in bits):
            raise TrainingError("the loss is no finite number, or some width gets no gradient")
        if not self.start_ebops > 0:
            raise TrainingError("its multiplications cost nothing from the start: give more bits")
        self.optimiser.zero_grad()

    def epoch(self, epoch: int) -> float:
        """Train for an epoch; the mean loss."""
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):  # one that could not be folded keeps its statistics
                module.eval()
        weight = self.schedule.cost_weight(epoch) / self.start_ebops
        steps, widths = max(self.rows.steps, 1), self.widths
        batches = self.rows.batches(self.first_epoch + epoch, self.model)
        loss = train_epoch(
            self.model, batches, self.optimiser, self.rows.loss,
            lambda step: self.schedule.rate_factor(epoch + step / steps),
            lambda: widths.cost * weight,
        )  # fmt: skip
        if not math.isfinite(loss) or not self._is_finite():
            raise TrainingError(
                f"widths: the loss or a weight is no finite number in epoch {epoch + 1} (cycle "
                f"{self.schedule.cycle(epoch) + 1}): the learning rate "
                f"{self.setup.learning_rate:g} is most likely too high; try "
                f"{self.setup.learning_rate / 10:g}. {self._kept_before(epoch)}"
            )
        widths.clamp()
        return loss

    def _kept_before(self, epoch: int) -> str:
        """What is left of the epochs before one, counted from 0."""
        if all(self.schedule.snapshot(each) is None for each in range(epoch)):
            return "There was no snapshot before it"
        return f"Snapshots up to epoch {epoch} are kept"

    def _is_finite(self) -> bool:
        return all(bool(value.isfinite().all()) for value in self.model.parameters())

    def score(self, batches: Iterable[Batch]) -> float:
        """How good the network is as it would be frozen now, by what decides of its task."""
        self.widths.calibrate(self.sample)
        return score_of(self.model, batches, self.rows.scaling)

    def frozen(self, state: State, batches: Iterable[Tensor]) -> MaseGraph:
        """The network of a snapshot in plain formats, with ranges that batches show."""
        graph = copy.deepcopy(self.template)
        graph.model.load_state_dict(state)
        widths = LearnedWidths(graph.model)
        widths.calibrate(batches)
        widths.remove()
        freeze_transform_pass(graph)
        graph.model.eval()
        return graph

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "widths": self.widths.state_dict(),
            "start_ebops": self.start_ebops,
        }

    def put_back(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(optimiser_state(state["optimiser"]))
        self.widths.load_state_dict(state["widths"])
        self.start_ebops = float(state["start_ebops"])


class Kept:
    """The files of a run that learns widths.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = folder / "last.safetensors"
        self.teacher, self.network = folder / "teacher.safetensors", folder / "float.safetensors"
        self.lock = folder / ".lock"

    def snapshot(self, epoch: int) -> Path:
        """The file of the weights and widths after an epoch."""
        return self.folder / f"snapshot_{epoch}.safetensors"

    def keep(self, learning: Learning, done: int, history: list[dict[str, Any]]) -> None:
        """Keep the run as it is after so many epochs."""
        write_state(self.last, {"epochs": done, "history": history, **learning.state()})

    def resume(self, learning: Learning) -> tuple[int, list[dict[str, Any]]]:
        """Put back what was kept; the epochs that are done, and what is known of them."""
        state = read_state(self.last)
        if state is None:
            return 0, []
        with fitting(self.last):
            learning.put_back(state)
            return int(state["epochs"]), list(state["history"])
