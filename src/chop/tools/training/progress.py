"""How far a run is: a bar on a terminal, one line an epoch in a pipe."""

import sys
import time
from typing import TYPE_CHECKING, Protocol

from chop.tools.logger import get_logger

if TYPE_CHECKING:
    from rich.console import Console

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
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        self._columns = (
            TextColumn("Epoch {task.fields[epoch]}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[metrics]}", table_column=Column(no_wrap=False)),
        )
        self._make = RichProgress
        self._console = console or Console()
        self._bar: RichProgress | None = None
        self._began = self._drawn = 0.0

    def start(self, epoch: int, steps: int | None) -> None:
        self._began = self._drawn = time.perf_counter()
        self._bar = self._make(*self._columns, console=self._console, auto_refresh=False)
        self._bar.add_task("", total=steps, epoch=epoch, rate="", metrics="")
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
        self._bar.update(
            task.id, advance=steps, rate=f"{rate:.0f}it/s", metrics=shown_metrics(metrics)
        )
        if refresh:
            self._bar.refresh()
            self._drawn = time.perf_counter()


def shown_metrics(metrics: Metrics) -> str:
    """Metrics as the labs show them."""
    return ", ".join(f"{name}={value:.3f}" for name, value in metrics.items())


def make_progress(*, shown: bool) -> Progress:
    """The kind of progress that fits where the output goes."""
    if not shown:
        return Silent()
    return Bar() if sys.stdout.isatty() else Lines()
