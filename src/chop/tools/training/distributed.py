"""Several processes for one run."""

import contextlib
import os
from collections.abc import Iterator

from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from chop.tools.training.settings import TrainingSettings


class QuietLauncher(_SubprocessScriptLauncher):
    """Starts the further processes with the same command, their output thrown away."""

    def _call_children_scripts(self) -> None:
        with _no_stdout():
            super()._call_children_scripts()


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
    return QuietDDP(find_unused_parameters=settings.strategy.endswith("unused_parameters_true"))


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
