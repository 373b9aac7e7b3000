"""A classifier on rows it has not seen, without Lightning, which takes seconds to import."""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from chop.errors import ConfigError, TrainingError, UnknownNameError
from chop.tools.devices import device_of
from chop.tools.row_scaling import rows_for
from chop.tools.training.batches import Epochs, moved
from chop.tools.training.job import Job, first_look, on_this_machine
from chop.tools.training.metrics import Evaluation, evaluate
from chop.tools.training.settings import TrainingSettings
from chop.tools.training.threads import using_threads

SPLITS = ("test", "val", "all")
HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def evaluate_job(job: Job, settings: TrainingSettings, split: str = "test") -> Evaluation:
    """Evaluate the model of a job on the test rows, the validation rows or all, on one device."""
    job.data.prepare_data()
    job.data.setup()
    job = replace(job, data=rows_for(job.model, job.data))
    loader = _loader(job, split)
    if loader is None:
        raise ConfigError(f"{job.data.name} has no validation rows to measure")
    settings = on_this_machine(settings)
    with (
        using_threads(settings.num_threads, first_look(job, loader)),
        ready(job.model, settings) as model,
    ):
        batches = moved(Epochs(loader).batches(0), model)
        result = evaluate(model, batches, device_of(settings.accelerator))
    if not math.isfinite(result.loss):
        raise TrainingError(
            f"the {split} loss is {result.loss}: some scores of the model are not finite numbers"
        )
    return result


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
