"""Output of a training run: progress, a table of epochs, curves, metrics."""

import csv
import io
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from chop.charts import LineChart, write_png
from chop.files import write_text
from chop.logger import get_logger
from chop.tasks import CLASSES, NUMBERS, Task, task_of, task_of_history

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from rich.console import Console
    from torch import Tensor

    from chop.preprocessing import Targets
    from chop.training.checkpoint import History


logger = get_logger("chop")

REFRESH_SECONDS = 0.25
Metrics = dict[str, float]


class TrainingProgress(Protocol):
    """The progress that a training loop reports."""

    def start(self, epoch: int, steps: int | None) -> None: ...

    def advance(self, steps: int, metrics: Metrics) -> None: ...

    def end(self, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing, in the second and further processes of a run."""

    def start(self, epoch: int, steps: int | None) -> None:
        pass

    def advance(self, steps: int, metrics: Metrics) -> None:
        pass

    def end(self, metrics: Metrics) -> None:
        pass

    def close(self) -> None:
        pass


class TrainingLines(Silent):
    """One line when an epoch is done."""

    def __init__(self) -> None:
        self.epoch = self.done = 0
        self.began = self.trained = time.perf_counter()

    def start(self, epoch: int, steps: int | None) -> None:
        self.epoch, self.done, self.began = epoch, 0, time.perf_counter()

    def advance(self, steps: int, metrics: Metrics) -> None:
        self.done += steps
        self.trained = time.perf_counter()

    def end(self, metrics: Metrics) -> None:
        seconds = time.perf_counter() - self.began
        rate = self.done / max(self.trained - self.began, 1e-9)
        spent = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
        shown = ", ".join([f"{rate:.2f}it/s", shown_metrics(metrics)])
        logger.info(
            "Epoch %d: 100%% %d/%d [%s, %s]", self.epoch, self.done, self.done, spent, shown
        )


class TrainingBar:
    """A bar that is drawn a few times a second."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        self._columns = (
            TextColumn("Epoch {task.fields[epoch]}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        self._make = RichProgress
        self._console = console or Console()
        self._bar: RichProgress | None = None
        self._began = self._drawn = 0.0
        self._taken = 0

    def start(self, epoch: int, steps: int | None) -> None:
        self._began = self._drawn = time.perf_counter()
        self._bar = self._make(*self._columns, console=self._console, auto_refresh=False)
        self._bar.add_task("", total=steps, epoch=epoch, facts="")
        # What stands before the facts: the epoch, the bar, the count, the time, and blanks.
        self._taken = len(f"Epoch {epoch}") + 12 + 2 * len(str(steps)) + 1 + len("0:00:00") + 4
        self._bar.start()

    def advance(self, steps: int, metrics: Metrics) -> None:
        self._show(steps, metrics, refresh=time.perf_counter() - self._drawn > REFRESH_SECONDS)

    def end(self, metrics: Metrics) -> None:
        self._show(0, metrics, refresh=True)
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, steps: int, metrics: Metrics, *, refresh: bool) -> None:
        assert self._bar is not None
        task = self._bar.tasks[0]
        rate = (task.completed + steps) / (time.perf_counter() - self._began)
        room = self._console.width - self._taken
        facts = fit_metrics(metrics, room)
        speed = f"{rate:.0f}it/s, {facts}" if facts else f"{rate:.0f}it/s"
        self._bar.update(task.id, advance=steps, facts=speed if len(speed) <= room else facts)
        if refresh:
            self._bar.refresh()
            self._drawn = time.perf_counter()


def shown_metrics(metrics: Metrics) -> str:
    """Metrics as the labs show them; small ones with three digits that mean something."""
    shown = {n: f"{v:.3f}" if abs(v) >= 0.01 or v == 0 else f"{v:.3g}" for n, v in metrics.items()}
    return ", ".join(f"{name}={text}" for name, text in shown.items())


SCORED = (CLASSES, NUMBERS)
"""Tasks whose columns have different names."""
IMPORTANT = (
    *(task.epoch_column() for task in SCORED), "val_loss_epoch", "ebops_estimate",
    *(task.step_column for task in SCORED),
)  # fmt: skip
"""What a narrow line shows first; the others follow as far as they fit."""


def fit_metrics(metrics: Metrics, room: int) -> str:
    """As many metrics as fit into so many characters, the important ones first."""
    kept: Metrics = {}
    for name in dict.fromkeys((*IMPORTANT, *metrics)):
        more = {**kept, name: metrics[name]} if name in metrics else kept
        kept = more if len(shown_metrics(more)) <= room else kept
    return shown_metrics(kept)


def make_training_progress(*, shown: bool) -> TrainingProgress:
    """The kind of progress that fits where the output goes."""
    if not shown:
        return Silent()
    return TrainingBar() if sys.stdout.isatty() else TrainingLines()


COLUMNS = (
    "epoch",
    "step",
    "learning_rate",
    "train_loss",
    *(task.train_column for task in SCORED),
    "train_loss_step",
    *(task.step_column for task in SCORED),
    "val_loss_epoch",
    *(task.epoch_column() for task in SCORED),
    "val_rmse_epoch",
    "val_r2_epoch",
    "val_auc_epoch",
    "val_perplexity_epoch",
    "ebops_estimate",
    "seconds",
)
EXTRA = ("ebops_estimate", "val_perplexity_epoch", "val_r2_epoch", "val_auc_epoch")
"""What lines and bars show of an epoch if it is there, beside the loss and what decides."""
SOMETIMES = frozenset((*EXTRA, "val_rmse_epoch"))
"""Columns that the table goes without if no epoch has them."""


def columns_of(history: "Sequence[Mapping[str, float]]") -> list[str]:
    """The columns of the table of epochs: those of other tasks are left out."""
    given = {name for row in history for name in row}
    task = task_of_history(history)
    foreign = {
        column
        for other in SCORED if other is not task
        for column in (other.train_column, other.step_column, other.epoch_column())
    }  # fmt: skip
    return [n for n in COLUMNS if n in given or (n not in SOMETIMES and n not in foreign)]


Outcome: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""What a step leaves behind: its loss, and what was `kept` of its last batch."""


class Report:
    """Collects the metrics of a run and passes them on.

    Args:
        record: what was run, stored in every checkpoint.
        table: the CSV file of the epochs; None writes none.
        history: the rows of the epochs that an earlier part of the run has done.

    Attributes:
        targets: how the network scales the numbers that it predicts, if it does.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        logger: "Logger | None" = None,
        record: dict[str, Any] | None = None,
        table: Path | None = None,
        history: "History | None" = None,
    ) -> None:
        self.progress = progress
        self.logger = logger
        self.record = record or {}
        self.table = table
        self.history: History = list(history or [])
        self.targets: Targets | None = None
        self._task: Task = CLASSES
        self._epoch = self._steps = 0
        self._loss_sum = self._score_sum = self._began = 0.0
        self._shown: Metrics = {}

    def start_epoch(self, epoch: int, steps: int | None) -> None:
        self._epoch, self._steps, self._loss_sum, self._score_sum = epoch, 0, 0.0, 0.0
        self._began = time.perf_counter()
        self.progress.start(epoch, steps)

    def log_step(self, step: int, outcome: Outcome, rates: Metrics) -> None:
        """Log the loss and the score of one step."""
        self._step_metrics(outcome)
        chosen = ("train_loss_step", self._task.step_column)
        self.log({name: self._shown[name] for name in chosen} | rates, step)

    def advance(self, steps: int, loss: float, score: float) -> None:
        """Count steps that are done, with their mean loss and the primary metric."""
        self._steps += steps
        self._loss_sum += loss * steps
        self._score_sum += score * steps
        self.progress.advance(steps, self._visible())

    def end_training(self, last: Outcome) -> None:
        """Keep the metrics of the last step of the epoch."""
        self._step_metrics(last)

    def add_evaluation(self, metrics: Metrics, step: int) -> None:
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
            self._task.train_column: self._score_sum / max(self._steps, 1),
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
        from chop.training.metrics import score  # with torch, which the page does without

        loss, logits, labels = outcome
        self._task = task_of(labels)
        found = float(score(logits, labels, self.targets))
        self._shown |= {"train_loss_step": float(loss), self._task.step_column: found}

    def _visible(self) -> Metrics:
        chosen = (self._task.step_column, self._task.epoch_column(), "val_loss_epoch", *EXTRA)
        return {name: self._shown[name] for name in chosen if name in self._shown}


def best_epoch(history: "Sequence[Mapping[str, float]]") -> Mapping[str, float]:
    """The epoch with the least validation loss."""
    return min(history, key=lambda row: row.get("val_loss_epoch", math.inf))


def write_table(path: Path, history: "History") -> None:
    """Write the epochs as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(history), lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_text(path, text.getvalue())


@dataclass(frozen=True)
class Curves:
    """Columns of a history that belong into one chart, by what they are called there."""

    title: str
    y: str
    columns: Mapping[str, str]
    from_zero: bool = False


def loss_curves(task: Task) -> Curves:
    """The loss of a task."""
    columns = {"training": "train_loss", "validation": "val_loss_epoch"}
    return Curves("Loss", task.loss_unit, columns)


def score_curves(task: Task) -> Curves:
    """Return the curves of the primary metric of a task."""
    columns = {"training": task.train_column, "validation": task.epoch_column()}
    return Curves(task.words[0].upper() + task.words[1:], task.unit, columns)


LOSS, ACCURACY = loss_curves(CLASSES), score_curves(CLASSES)
BITS = Curves("Cost", "EBOPs (estimate)", {"bits": "ebops_estimate"}, from_zero=True)
FURTHER = (
    Curves("R²", "share of the variance explained", {"validation": "val_r2_epoch"}),
    Curves("AUC", "share of pairs told apart", {"validation": "val_auc_epoch"}),
    Curves("Perplexity", "words", {"validation": "val_perplexity_epoch"}),
    BITS,
    Curves("Learning rate", "learning rate", {"learning rate": "learning_rate"}, from_zero=True),
    Curves("Time", "seconds per epoch", {"seconds": "seconds"}, from_zero=True),
)


def curves_of(history: Sequence[Mapping[str, float]]) -> list[Curves]:
    """All curves that a training of its task may have."""
    task = task_of_history(history)
    return [loss_curves(task), score_curves(task), *FURTHER]


def learning_chart(history: Sequence[Mapping[str, float]], curves: Curves) -> LineChart:
    """A chart of the epochs; a column that no epoch has is left out."""
    series = {
        name: [(row["epoch"], row[column]) for row in history if column in row]
        for name, column in curves.columns.items()
    }
    found = {name: points for name, points in series.items() if points}
    return LineChart(curves.title, "epoch", curves.y, found, from_zero=curves.from_zero)


def draw_curves(history: "History", path: Path, title: str) -> None:
    """Draw loss and what decides over the epochs, and the cost of bits where they are learned."""
    loss, score, *_ = curves_of(history)
    charts = [learning_chart(history, curves) for curves in (loss, score, BITS)]
    row = [*charts[:2], *(chart for chart in charts[2:] if chart.series)]
    write_png(path, [row], title, is_plain=True)
