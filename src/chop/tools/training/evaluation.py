"""A classifier on rows it has not seen, without Lightning, which takes seconds to import."""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from chop.errors import ConfigError, TrainingError
from chop.tools.devices import device_of
from chop.tools.row_scaling import rows_for
from chop.tools.training.batches import Epochs, moved
from chop.tools.training.job import Job, first_look, on_this_machine
from chop.tools.training.metrics import Evaluation, evaluate
from chop.tools.training.settings import TrainingSettings
from chop.tools.training.threads import using_threads

HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def evaluate_job(job: Job, settings: TrainingSettings, split: str = "test") -> Evaluation:
    """Evaluate the model of a job on the test or the validation rows, on one device."""
    job.data.prepare_data()
    job.data.setup()
    job = replace(job, data=rows_for(job.model, job.data))
    loader = job.validation if split == "val" else job.data.test_dataloader()
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
