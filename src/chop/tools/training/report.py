"""What a run tells while it trains: progress, logged metrics, a table of the epochs."""

import csv
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from chop.files import write_text
from chop.tools.training.metrics import accuracy
from chop.tools.training.progress import Metrics, Progress
from chop.tools.training.state import History

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

COLUMNS = (
    "epoch",
    "step",
    "learning_rate",
    "train_loss",
    "train_acc",
    "train_loss_step",
    "train_acc_step",
    "val_loss_epoch",
    "val_acc_epoch",
    "seconds",
)


Outcome = tuple[Tensor, Tensor, Tensor]
"""What a step leaves behind: its loss, and the outputs and labels of its last batch."""


class Report:
    """Collects the metrics of a run and passes them on.

    Args:
        record: what was run, stored in every checkpoint.
        table: the CSV file of the epochs; None writes none.
        history: the rows of the epochs that an earlier part of the run has done.
    """

    def __init__(
        self,
        progress: Progress,
        logger: "Logger | None" = None,
        record: dict[str, Any] | None = None,
        table: Path | None = None,
        history: History | None = None,
    ) -> None:
        self.progress = progress
        self.logger = logger
        self.record = record or {}
        self.table = table
        self.history: History = list(history or [])
        self._epoch = self._steps = 0
        self._loss_sum = self._right_sum = self._began = 0.0
        self._shown: Metrics = {}

    def start_epoch(self, epoch: int, steps: int | None) -> None:
        self._epoch, self._steps, self._loss_sum, self._right_sum = epoch, 0, 0.0, 0.0
        self._began = time.perf_counter()
        self.progress.start(epoch, steps)

    def log_step(self, step: int, outcome: Outcome, rates: Metrics) -> None:
        """Log the loss and accuracy of one step."""
        self._step_metrics(outcome)
        chosen = ("train_loss_step", "train_acc_step")
        self.log({name: self._shown[name] for name in chosen} | rates, step)

    def advance(self, steps: int, loss: float, right: float) -> None:
        """Count steps that are done, with their mean loss and accuracy."""
        self._steps += steps
        self._loss_sum += loss * steps
        self._right_sum += right * steps
        self.progress.advance(steps, self._visible())

    def end_training(self, last: Outcome) -> None:
        """Keep the metrics of the last step of the epoch."""
        self._step_metrics(last)

    def evaluated(self, metrics: Metrics, step: int) -> None:
        """Keep and log the metrics of an evaluation."""
        self._shown |= metrics
        self.log(metrics, step)

    def end_epoch(self, step: int, rate: float) -> None:
        """Close the epoch: show it, and write it to the table."""
        row = {
            "epoch": self._epoch,
            "step": step,
            "learning_rate": rate,
            "train_loss": self.mean_loss,
            "train_acc": self._right_sum / max(self._steps, 1),
            "seconds": time.perf_counter() - self._began,
        } | self._shown
        self.history.append({name: row[name] for name in COLUMNS if name in row})
        self.progress.end(self._visible())
        if self.table is not None:
            write_table(self.table, self.history)

    def log(self, metrics: Metrics, step: int) -> None:
        """Pass metrics on to TensorBoard or whatever else was asked for."""
        if self.logger is not None:
            self.logger.log_metrics(metrics | {"epoch": self._epoch}, step)

    @property
    def mean_loss(self) -> float:
        """The mean training loss over the steps of this epoch."""
        return self._loss_sum / max(self._steps, 1)

    def _step_metrics(self, outcome: Outcome) -> None:
        loss, logits, labels = outcome
        right = float(accuracy(logits, labels))
        self._shown |= {"train_loss_step": float(loss), "train_acc_step": right}

    def _visible(self) -> Metrics:
        chosen = ("train_acc_step", "val_acc_epoch", "val_loss_epoch")
        return {name: self._shown[name] for name in chosen if name in self._shown}


def write_table(path: Path, history: History) -> None:
    """Write the epochs as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_text(path, text.getvalue())
