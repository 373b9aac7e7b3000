"""Training of widths and weights together, and the plain networks that come of it."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.learned import LearnedWidths
from chop.passes.graph.transforms.quantize.freeze import freeze_transform_pass
from chop.preprocessing import Targets
from chop.search.learned.rows import Rows
from chop.search.learned.schedule import Schedule
from chop.search.learned.setup import LearnedSetup
from chop.search.learned.state import LearningFiles, empty_facts
from chop.search.spaces.space import Batch
from chop.training.checkpoint import write_checkpoint
from chop.training.loop import Loop, Part, StepRates
from chop.training.metrics import tally
from chop.training.optimisers import make_adam
from chop.training.parts import EpochLoss, SaveLast, WidthTraining


@torch.no_grad()
def score_of(model: nn.Module, batches: Iterable[Batch], targets: Targets | None) -> float:
    """The primary metric of a network in evaluation mode: accuracy, mean absolute error."""
    model.eval()
    copies = ((features.clone(), labels) for features, labels in batches)
    return tally(model, copies, targets).result().value


class FrozenNorms(Part):
    """Keeps the statistics of batch normalisations that could not be folded."""

    def begin_epoch(self, loop: Loop) -> None:
        for module in loop.model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


class Learning:
    """A network whose widths learn: its loop, and what becomes of its snapshots.

    Args:
        graph: with quantisers that learn; it is changed.
        first_epoch: how many epochs of the rows the float training has used.
    """

    def __init__(
        self, graph: MaseGraph, setup: LearnedSetup, rows: Rows, first_epoch: int = 0
    ) -> None:
        self.template = copy.deepcopy(graph)
        self.model, self.setup, self.rows = graph.model, setup, rows.after(first_epoch)
        self.schedule = Schedule(setup)
        self.widths = WidthTraining(self.model, setup.refresh, setup.magnitude, self._cost_weight)
        self.sample = rows.draw(setup.calibration_rows)
        self.widths.widen(self.sample)
        bits = self.widths.widths.parameters_of_bits()
        known = {id(each) for each in bits}
        others = [v for v in self.model.parameters() if id(v) not in known and v.requires_grad]
        self.optimiser = make_adam(
            [(others, setup.learning_rate), (bits, setup.bits_learning_rate)]
        )
        self.history: list[dict[str, Any]] = []
        """The figures of each epoch."""

    def _cost_weight(self, epoch: int) -> float:
        return self.schedule.cost_weight(epoch) / self.widths.start_ebops

    def loop(self, snapshots: "Snapshots") -> Loop:
        """The loop that trains the network, takes snapshots and saves every epoch."""
        parts = [
            StepRates(lambda epoch, step, steps: self.schedule.rate_factor(epoch + step / steps)),
            FrozenNorms(),
            EpochLoss(self._diverged),
            self.widths,
            snapshots,
            SaveLast(snapshots.files.last),
        ]
        return Loop(
            self.model, self.optimiser, self.rows, self.rows.loss, parts,
            facts=lambda: {**empty_facts(), "history": self.history},
        )  # fmt: skip

    def rehearse(self) -> None:
        """Take one step without changing anything; raise if some width cannot learn from it."""
        self.model.train()
        features, targets = next(self.rows.batches(0, self.model))
        self.widths.check(self.rows.loss(self.model(features), targets) + self.widths.widths.cost)
        self.optimiser.zero_grad()

    def _diverged(self, epoch: int) -> str:
        rate = self.setup.learning_rate
        has_snapshot = any(self.schedule.snapshot(each) is not None for each in range(epoch))
        left = f"Snapshots up to epoch {epoch} are kept" if has_snapshot else (
            "There was no snapshot before it"
        )  # fmt: skip
        return (
            f"widths: the loss or a weight is not a finite number in epoch {epoch + 1} (cycle "
            f"{self.schedule.cycle(epoch) + 1}): the learning rate {rate:g} is most likely too "
            f"high; try {rate / 10:g}. {left}"
        )

    def freeze(self, state: dict[str, Tensor], batches: Iterable[Tensor]) -> MaseGraph:
        """The network of a snapshot in plain formats, with ranges that batches show."""
        graph = copy.deepcopy(self.template)
        graph.model.load_state_dict(state)
        widths = LearnedWidths(graph.model)
        widths.calibrate(batches)
        widths.remove()
        freeze_transform_pass(graph)
        graph.model.eval()
        return graph


class Snapshots(Part):
    """Keeps the figures of every epoch, and the network after those that the schedule names.

    Args:
        metric: the name of the primary metric.
        score: returns it for a network.
    """

    def __init__(
        self,
        learning: Learning,
        files: LearningFiles,
        metric: str,
        score: Callable[[nn.Module], float],
    ) -> None:
        self.learning, self.files, self.metric, self.score = learning, files, metric, score

    def end_epoch(self, loop: Loop) -> None:
        learning, schedule = self.learning, self.learning.schedule
        row: dict[str, Any] = {
            "epoch": loop.epoch + 1,
            "cycle": schedule.cycle(loop.epoch) + 1,
            "cost_weight": schedule.cost_weight(loop.epoch),
            "loss": loop.metrics["loss"],
        }
        if (snapshot := schedule.snapshot(loop.epoch)) is not None:
            learning.widths.widths.calibrate(learning.sample)
            row[self.metric] = self.score(loop.model)
            row["ebops"] = learning.widths.estimate()
            write_checkpoint(self.files.snapshot(snapshot.epoch), loop.model.state_dict())
        learning.history.append(row)
