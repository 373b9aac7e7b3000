"""What a training run shows and writes: progress, a table of epochs, curves, metrics."""

import csv
import io
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from chop.charts import LineChart, write_png
from chop.errors import ConfigError
from chop.files import write_text
from chop.runs import TENSORBOARD
from chop.tools.logger import get_logger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from rich.console import Console
    from torch import Tensor

    from chop.training.state import History


logger = get_logger("chop")

REFRESH_SECONDS = 0.25
Metrics = dict[str, float]


class Progress(Protocol):
    """What a training loop tells of its progress."""

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


class Lines(Silent):
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


class Bar:
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
        facts = fitting(metrics, room)
        speed = f"{rate:.0f}it/s, {facts}" if facts else f"{rate:.0f}it/s"
        self._bar.update(task.id, advance=steps, facts=speed if len(speed) <= room else facts)
        if refresh:
            self._bar.refresh()
            self._drawn = time.perf_counter()


def shown_metrics(metrics: Metrics) -> str:
    """Metrics as the labs show them."""
    return ", ".join(f"{name}={value:.3f}" for name, value in metrics.items())


IMPORTANT = ("val_acc_epoch", "val_loss_epoch", "ebops_estimate", "train_acc_step")
"""What a narrow line shows first; the others follow as far as they fit."""


def fitting(metrics: Metrics, room: int) -> str:
    """As many metrics as fit into so many characters, the important ones first."""
    kept: Metrics = {}
    for name in dict.fromkeys((*IMPORTANT, *metrics)):
        more = {**kept, name: metrics[name]} if name in metrics else kept
        kept = more if len(shown_metrics(more)) <= room else kept
    return shown_metrics(kept)


def make_progress(*, shown: bool) -> Progress:
    """The kind of progress that fits where the output goes."""
    if not shown:
        return Silent()
    return Bar() if sys.stdout.isatty() else Lines()


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
    "val_perplexity_epoch",
    "ebops_estimate",
    "seconds",
)
SOMETIMES = frozenset(("val_perplexity_epoch", "ebops_estimate"))
"""Columns that the table goes without if no epoch has them."""


Outcome: TypeAlias = "tuple[Tensor, Tensor, Tensor]"
"""What a step leaves behind: its loss, and what was `kept` of its last batch."""


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
        history: "History | None" = None,
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
        from chop.training.metrics import accuracy  # with torch, which the page does without

        loss, logits, labels = outcome
        right = float(accuracy(logits, labels))
        self._shown |= {"train_loss_step": float(loss), "train_acc_step": right}

    def _visible(self) -> Metrics:
        chosen = ("train_acc_step", "val_acc_epoch", "val_loss_epoch", *sorted(SOMETIMES))
        return {name: self._shown[name] for name in chosen if name in self._shown}


def best_epoch(history: "Sequence[Mapping[str, float]]") -> Mapping[str, float]:
    """The epoch with the least validation loss."""
    return min(history, key=lambda row: row.get("val_loss_epoch", math.inf))


def write_table(path: Path, history: "History") -> None:
    """Write the epochs as CSV."""
    text = io.StringIO()
    given = {name for row in history for name in row}
    columns = [name for name in COLUMNS if name in given or name not in SOMETIMES]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
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


LOSS = Curves(
    "Loss", "cross entropy (nats)", {"training": "train_loss", "validation": "val_loss_epoch"}
)
ACCURACY = Curves(
    "Accuracy", "fraction of rows", {"training": "train_acc", "validation": "val_acc_epoch"}
)
BITS = Curves("Cost", "EBOPs (estimate)", {"bits": "ebops_estimate"}, from_zero=True)
ALL_CURVES = (
    LOSS,
    ACCURACY,
    Curves("Perplexity", "words", {"validation": "val_perplexity_epoch"}),
    BITS,
    Curves("Learning rate", "learning rate", {"learning rate": "learning_rate"}, from_zero=True),
    Curves("Time", "seconds per epoch", {"seconds": "seconds"}, from_zero=True),
)


def learning_chart(history: Sequence[Mapping[str, float]], curves: Curves) -> LineChart:
    """A chart of the epochs; a column that no epoch has is left out."""
    series = {
        name: [(row["epoch"], row[column]) for row in history if column in row]
        for name, column in curves.columns.items()
    }
    found = {name: points for name, points in series.items() if points}
    return LineChart(curves.title, "epoch", curves.y, found, from_zero=curves.from_zero)


def draw_curves(history: "History", path: Path, title: str) -> None:
    """Draw loss and accuracy over the epochs, and the cost of bits where they are learned."""
    loss, accuracy, bits = (learning_chart(history, curves) for curves in (LOSS, ACCURACY, BITS))
    row = [loss, accuracy, *([bits] if bits.series else [])]
    write_png(path, [row], title, is_plain=True)


class MetricLogger(Protocol):
    """What testing needs of a logger; every one of Lightning's has it."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Note numbers."""

    def finalize(self, status: str) -> None:
        """Write what is not written yet."""


class Scalars:
    """Numbers in a file for TensorBoard, where Lightning's logger would put it.

    Importing Lightning takes longer than testing a small network does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "lightning_logs"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write numbers to a new version."""
        from torch.utils.tensorboard import SummaryWriter

        taken = [each.name.removeprefix("version_") for each in self.folder.glob("version_*")]
        version = max([int(name) for name in taken if name.isdecimal()], default=-1) + 1
        with SummaryWriter(self.folder / f"version_{version}") as writer:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

    def finalize(self, status: str) -> None:
        """Nothing is left to write."""


def make_logger(report_to: str, folder: Path, project: str) -> "Logger | None":
    """The logger that ``--report-to`` names, writing under `folder`."""
    if report_to == "none":
        return None
    if report_to == "wandb":
        return _wandb(folder, project)
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(folder / TENSORBOARD, default_hp_metric=False)


def make_test_logger(report_to: str, folder: Path, project: str) -> MetricLogger | None:
    """The same for the two numbers of a test."""
    if report_to == "tensorboard":
        return Scalars(folder / TENSORBOARD)
    return make_logger(report_to, folder, project)


def _wandb(folder: Path, project: str) -> "Logger":
    if find_spec("wandb") is None:
        raise ConfigError("--report-to wandb: wandb is missing; run pip install 'machop[wandb]'")
    from lightning.pytorch.loggers import WandbLogger

    return WandbLogger(project=project, save_dir=folder)
