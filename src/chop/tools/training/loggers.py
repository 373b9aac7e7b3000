"""Where metrics are logged: TensorBoard, Weights & Biases or nowhere."""

from importlib.util import find_spec
from pathlib import Path

from lightning.pytorch.loggers import Logger

from chop.errors import ConfigError


def make_logger(report_to: str, folder: Path, project: str) -> Logger | None:
    """The logger that ``--report-to`` names, writing under `folder`."""
    if report_to == "none":
        return None
    if report_to == "wandb":
        return _wandb(folder, project)
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(folder / "tensorboard", default_hp_metric=False)


def _wandb(folder: Path, project: str) -> Logger:
    if find_spec("wandb") is None:
        raise ConfigError("--report-to wandb: wandb is missing; run pip install 'machop[wandb]'")
    from lightning.pytorch.loggers import WandbLogger

    return WandbLogger(project=project, save_dir=folder)
