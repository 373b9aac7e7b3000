"""Jobs of training and testing: their checks, the test itself, and loggers of its figures.

Nothing here imports Lightning, which takes seconds.
"""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from chop.dataset.inputs import rows_for, targets_for
from chop.devices import compile_calls, device_of, forward_operations, using_threads
from chop.errors import (
    FULL_DISK,
    ConfigError,
    DataError,
    GraphError,
    OutputError,
    TrainingError,
    UnknownNameError,
)
from chop.logger import get_logger
from chop.preprocessing import Targets
from chop.runs import TENSORBOARD
from chop.tasks import CLASSES, NUMBERS, Task, as_rows
from chop.training.batches import Batch, Epochs, move_batches, normalisable
from chop.training.metrics import evaluate_model, evaluating
from chop.training.results import Result
from chop.training.settings import TrainingSettings

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


logger = get_logger("chop")


@dataclass(frozen=True)
class Job:
    """A network to train or test, its data, and where the result goes."""

    model: nn.Module
    data: Any
    """A data module: prepare_data, setup and the loaders of its splits."""
    folder: Path
    name: str = "model"
    logger: "Logger | None" = None
    record: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    task: Task = CLASSES

    @cached_property
    def validation(self) -> Any | None:
        """The loader of the validation rows, if there are any."""
        available = self.data.dataset_info.validation_split_available
        return self.data.val_dataloader() if available else None


def on_this_machine(settings: TrainingSettings) -> TrainingSettings:
    """The settings with half precision off where there is only a CPU, which lacks it."""
    if settings.precision == "16-mixed" and device_of(settings.accelerator).type == "cpu":
        logger.warning("precision 16-mixed needs a GPU; 32 is used")
        return settings.model_copy(update={"precision": "32"})
    return settings


def first_look(job: Job, loader: Any) -> int:
    """Run one batch to see that the model fits the data; the operations that it takes."""
    first = next(Epochs(loader).batches(0), None)
    if first is None:
        raise DataError("there are no rows")
    check_labels(*first, job.task)
    ((features, labels),) = move_batches(iter([first]), job.model)
    try:
        axes = 0 if labels.is_floating_point() else labels.ndim
        with evaluating(job.model):
            operations, outputs = forward_operations(job.model, features, axes)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        shape = tuple(features.shape)
        raise DataError(f"{job.name} cannot take a batch of shape {shape}: {reason}") from None
    if labels.is_floating_point():
        targets = targets_for(job.model, job.data)
        wanted = as_rows(labels).shape[1] - (targets is not None and targets.own)
        if outputs != wanted:
            raise DataError(f"{job.name} predicts {outputs} numbers, but a row has {wanted}")
    elif int(labels.max()) >= outputs:
        raise DataError(f"{job.name} tells {outputs} classes apart; a label is {int(labels.max())}")
    elif labels.ndim == 1 and int(labels.min()) < 0:
        raise DataError(f"classes are numbered from 0; a label is {int(labels.min())}")
    return operations


def check_labels(features: Tensor, labels: Tensor, task: Task) -> None:
    """Refuse labels that are not of the task."""
    if labels.ndim and len(labels) != len(features):
        raise DataError(f"a batch has {len(features)} rows, but {len(labels)} labels")
    # Several inputs of tokens, such as a mask, lie on top of each other.
    of_tokens = labels.shape == features.shape[:1] + features.shape[-1:]
    of_tokens = of_tokens and features.ndim > 1 and not features.is_floating_point()
    is_real, shown = labels.is_floating_point(), f"{labels.dtype} of shape {tuple(labels.shape)}"
    if task is NUMBERS:
        if not is_real or labels.ndim > 2 or len(labels) != len(features):
            raise DataError(
                f"labels of a regression must be real numbers, one for each row or a row of them, "
                f"not {shown}"
            )
    elif is_real or not (labels.ndim == 1 or of_tokens):
        hint = "; to predict numbers give task='regression'" if is_real else ""
        raise DataError(f"labels must be class indices, one for each row, not {shown}{hint}")


def check_batch_size(job: Job, loader: Any) -> None:
    """Refuse batches of one row if batch normalisation can learn nothing from them."""
    if getattr(loader, "batch_size", None) == 1:
        for one in islice(move_batches(Epochs(loader).batches(0), job.model), 1):
            check_single_row(one, job.model)


def check_single_row(one: Batch, model: nn.Module) -> None:
    """Refuse a batch of one row if the model can learn nothing from it."""
    if not list(normalisable(iter([one]), model)):
        raise ConfigError(
            "batch_size = 1: batch normalisation needs two rows in each batch; give 2 or more"
        )


@contextlib.contextmanager
def one_line_if_full(folder: Path) -> Iterator[None]:
    """One line when something that is not ours, such as TensorBoard, finds the disk full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from None


SPLITS = ("test", "val", "all")
HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def evaluate_job(
    job: Job, settings: TrainingSettings, split: str = "test", exact: bool = False
) -> Result:
    """Evaluate the model of a job on the test rows, the validation rows or all, on one device.

    Args:
        exact: evaluate a quantised model in integers, and compare its simulation with them.
    """
    job.data.prepare_data()
    job.data.setup()
    job = replace(job, data=rows_for(job.model, job.data))
    loader = _loader(job, split)
    if loader is None:
        raise ConfigError(f"{job.data.name} has no validation rows to measure")
    settings = on_this_machine(settings)
    targets = targets_for(job.model, job.data)
    with (
        using_threads(settings.num_threads, first_look(job, loader)),
        ready(job.model, settings) as model,
    ):
        batches = move_batches(Epochs(loader).batches(0), model)
        if exact:
            result = evaluate_in_integers(model, batches, settings, targets)
        else:
            with compile_calls(model, settings.compile):
                result = evaluate_model(model, batches, device_of(settings.accelerator), targets)
    if not math.isfinite(result.loss):
        raise TrainingError(
            f"the {split} loss is {result.loss}: some "
            f"{'targets or outputs' if job.task is NUMBERS else 'scores'} of the model are not "
            "finite numbers"
        )
    return result


def evaluate_in_integers(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    settings: TrainingSettings,
    targets: Targets | None = None,
) -> Result:
    """The result of the integers that a quantised model simulates, and how the two agree."""
    from chop.lowering import InIntegers

    if settings.compile:
        raise ConfigError("exact: integers are not compiled; leave out --compile")
    if settings.precision in HALF:
        raise ConfigError(f"exact: the precision must be 32 or 64, not {settings.precision}")
    first = next(batches)
    try:
        integers = InIntegers(model, first[0], classes=not first[1].is_floating_point())
    except GraphError as error:
        raise ConfigError(f"exact: the network cannot be tested in integers: {error}") from None
    everything, device = chain([first], batches), device_of(settings.accelerator)
    result: Any = evaluate_model(integers, everything, device, targets)
    found: Result = replace(result, agreement=integers.agreement)
    return found


def _loader(job: Job, split: str) -> Any:
    """The loader of the rows to measure, if there are any."""
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if split == "val":
        return job.validation
    if split == "test":
        return job.data.test_dataloader()
    if not hasattr(job.data, "all_dataloader"):
        raise ConfigError(f"split {split!r}: a {type(job.data).__name__} has only test and val")
    return job.data.all_dataloader()


@contextlib.contextmanager
def ready(model: nn.Module, settings: TrainingSettings) -> Iterator[nn.Module]:
    """The model on its device and in the precision asked for; the given one stays as it is."""
    device = device_of(settings.accelerator)
    if settings.precision == "64" or device.type != "cpu":
        model = copy.deepcopy(model).to(device)
    if settings.precision == "64":
        model = model.double()
    half = HALF.get(settings.precision)
    with torch.autocast(device.type, half) if half else contextlib.nullcontext():
        yield model


class MetricLogger(Protocol):
    """The methods of a logger that testing calls; all of Lightning's have them."""

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
        raise ConfigError("--report-to wandb: wandb is missing: pip install wandb")
    from lightning.pytorch.loggers import WandbLogger

    return WandbLogger(project=project, save_dir=folder)
