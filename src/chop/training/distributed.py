"""The engine of Lightning: several devices, and mixed precision.

Lightning starts the further processes of a run, finds devices, nodes and clusters, adds up
gradients and scales losses. The loop over the batches is ours: a `TrainingEngine` is asked for
each step.
"""

import contextlib
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.launchers import _SubprocessScriptLauncher
from lightning.fabric.strategies.strategy import Strategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, distributed, nn, optim

from chop.errors import ConfigError, TrainingError
from chop.training.loop import Call, TrainingEngine
from chop.training.settings import TrainingSettings

FABRIC_PRECISION: dict[str, Any] = {"32": "32-true", "64": "64-true"}
"""Spellings of Lightning where they differ from ours."""
FIRST = "CHOP_FIRST_PROCESS"
"""The variable that tells a further process the number of the one that has started it."""
UNCONNECTED = ("gloo/", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""Parts of the errors that torch raises when another process of the run is gone."""


class FabricEngine(TrainingEngine):
    """Computes steps with Lightning Fabric."""

    def __init__(self, settings: TrainingSettings) -> None:
        precision = FABRIC_PRECISION.get(settings.precision, settings.precision)
        try:
            self.fabric = Fabric(
                accelerator=settings.accelerator,
                devices=settings.devices,
                num_nodes=settings.num_nodes,
                strategy=strategy_of(settings),
                precision=precision,
            )
        except (MisconfigurationException, RuntimeError) as error:
            raise ConfigError(" ".join(str(error).split())) from None
        self.fabric.launch()
        super().__init__(self.fabric.device, double=settings.precision == "64")
        self.rank, self.processes = self.fabric.global_rank, self.fabric.world_size
        self._started: optim.Optimizer | None = None

    def start(self, model: nn.Module, optimiser: optim.Optimizer) -> None:
        """Let gradients be shared by all processes, and losses be scaled."""
        if self._started is not optimiser:
            self._started = optimiser
            self.model = self.fabric.strategy.setup_module(model)
            self.step = lambda: self.fabric.strategy.optimizer_step(optimiser)

    def computing(self, function: Call) -> Call:
        """The function with what it computes in mixed or double precision."""
        inner: Callable[..., Any] = super().computing(function)

        def in_precision(*args: Any) -> Any:
            with self.fabric.autocast():
                return inner(*args)

        return in_precision  # type: ignore[return-value]  # it is called in the same way

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, scaled where that is needed, and share them."""
        self.fabric.backward(loss)

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        summed = self.fabric.all_reduce(value, reduce_op="sum")
        assert isinstance(summed, Tensor)
        return summed

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the buffers of the first."""
        if self.processes > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, 0)

    def share_ranges(self, low: Sequence[Tensor], high: Sequence[Tensor]) -> None:
        """Give all processes the lowest and the highest values that any of them has."""
        if self.processes == 1 or not low:
            return
        bounds = [*(-each for each in low), *high]
        flat = torch.cat([each.flatten() for each in bounds])
        distributed.all_reduce(flat, distributed.ReduceOp.MAX)
        found = torch.split(flat, [each.numel() for each in bounds])
        for place, each in enumerate((*low, *high)):
            each.copy_(found[place].view_as(each) * (-1 if place < len(low) else 1))

    def state_dict(self) -> dict[str, Any]:
        """The state of what scales losses."""
        plugin = self.fabric.strategy.precision
        state = plugin.state_dict()
        return {type(plugin).__qualname__: state} if state else {}

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the state of what scales losses."""
        plugin = self.fabric.strategy.precision
        if (state := checkpoint.get(type(plugin).__qualname__)) is not None:
            plugin.load_state_dict(state)


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
        assert self.cluster_environment is not None
        self._launcher = QuietLauncher(self.cluster_environment, self.num_processes, self.num_nodes)


def strategy_of(settings: TrainingSettings) -> Strategy | str:
    """The strategy by which the processes of a run work together."""
    if settings.processes == 1:
        return "auto"
    if FIRST in os.environ:
        first = int(os.environ[FIRST])
        threading.Thread(target=_end_with, args=(first,), daemon=True).start()
    return QuietDDP(
        find_unused_parameters=settings.strategy.endswith("unused_parameters_true"),
        broadcast_buffers=False,  # those of the first process are shared after each epoch
    )


def _end_with(first: int) -> None:
    """End this process once the first is gone, for which torch would wait for half an hour."""
    while os.getppid() == first:
        time.sleep(1.0)
    os._exit(1)


@contextlib.contextmanager
def report_lost_peers() -> Iterator[None]:
    """Say in one line that another process of the run is gone."""
    try:
        yield
    except RuntimeError as error:
        if not any(part in str(error) for part in UNCONNECTED):
            raise
        raise TrainingError(
            "another process of this run has ended before its time; --resume continues after the "
            "last epoch that was saved"
        ) from None


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """Send file descriptor 1, which new processes inherit, to nowhere."""
    before = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(before, 1)
        os.close(nowhere)
        os.close(before)


SILENCED = (
    # Lightning's own use of a part of torch that is about to change.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # The barrier at the end of a run with several processes.
    r"No device id is provided via `init_process_group` or `barrier",
    # Its successor would share buffers before the first step.
    r"`broadcast_buffers` is deprecated",
)


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide Lightning's information and the warnings named above."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for pattern in SILENCED:
                warnings.filterwarnings("ignore", message=pattern)
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
