"""Several processes for one run."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from chop.errors import TrainingError
from chop.tools.training.settings import TrainingSettings

FIRST = "CHOP_FIRST_PROCESS"
"""The variable that tells a further process the number of the one that has started it."""
UNCONNECTED = ("gloo/", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""What the errors of torch say when another process of the run is gone."""


class QuietLauncher(_SubprocessScriptLauncher):
    """Starts the further processes with the same command, their output thrown away."""

    def _call_children_scripts(self) -> None:
        os.environ[FIRST] = str(os.getpid())
        try:
            with _no_stdout():
                super()._call_children_scripts()
        finally:
            del os.environ[FIRST]  # it is for these processes and for no others


class QuietDDP(DDPStrategy):
    """Lightning's DDP, whose further processes repeat nothing that the first one says."""

    def _configure_launcher(self) -> None:
        super()._configure_launcher()
        if isinstance(self._launcher, _SubprocessScriptLauncher):
            assert self.cluster_environment is not None
            self._launcher = QuietLauncher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )


def strategy_of(settings: TrainingSettings) -> Strategy | str:
    """How the processes of a run work together."""
    if settings.processes == 1:
        return "auto"
    if FIRST in os.environ:
        first = int(os.environ[FIRST])
        threading.Thread(target=_end_with, args=(first,), daemon=True).start()
    return QuietDDP(find_unused_parameters=settings.strategy.endswith("unused_parameters_true"))


def _end_with(first: int) -> None:
    """End this process once the first is gone, for which torch would wait for half an hour."""
    while os.getppid() == first:
        time.sleep(1.0)
    os._exit(1)


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Say in one line that another process of the run is gone."""
    try:
        yield
    except RuntimeError as error:
        if not any(part in str(error) for part in UNCONNECTED):
            raise
        raise TrainingError(
            "another process of this run has ended before its time; --resume goes on after the "
            "last epoch that was saved"
        ) from None


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """Send file descriptor 1, which new processes inherit, to nowhere."""
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)
