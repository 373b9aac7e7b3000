"""Where metrics are logged: TensorBoard, Weights & Biases or nowhere."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chop.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


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

    return TensorBoardLogger(folder / "tensorboard", default_hp_metric=False)


def make_test_logger(report_to: str, folder: Path, project: str) -> MetricLogger | None:
    """The same for the two numbers of a test."""
    if report_to == "tensorboard":
        return Scalars(folder / "tensorboard")
    return make_logger(report_to, folder, project)


def _wandb(folder: Path, project: str) -> "Logger":
    if find_spec("wandb") is None:
        raise ConfigError("--report-to wandb: wandb is missing; run pip install 'machop[wandb]'")
    from lightning.pytorch.loggers import WandbLogger

    return WandbLogger(project=project, save_dir=folder)
