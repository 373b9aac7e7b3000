"""How well a candidate does its work, and how fast here."""

import time
from typing import Literal

import torch
from pydantic import AliasChoices, Field
from torch import Tensor

from chop.search.context import Candidate
from chop.search.runners.base import RunnerArgs, software_runner
from chop.tools.training.metrics import summed_loss

LoaderName = Literal["train_dataloader", "val_dataloader", "test_dataloader"]


class EvaluationArgs(RunnerArgs):
    """Which rows: the first `num_samples` of a loader, or all of them.

    The original documents the key `data_loader` and reads `dataloader`; both are read here.
    """

    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(None, ge=1)


@software_runner("basic_evaluation", metrics=("loss", "accuracy"))
def basic_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Mean cross entropy and micro accuracy, as training defines them."""
    loss, right, rows = 0.0, 0, 0
    no_gradients = torch.inference_mode() if candidate.context.eval_mode else torch.no_grad()
    with no_gradients:
        for scores, labels in candidate.predictions(args.data_loader, args.num_samples):
            # The sums of `tools.training.metrics.Tally` without its table of classes, which takes
            # longer than a small network does; a test holds that the two agree to the last bit.
            loss += float(summed_loss(scores, labels))
            right += int((scores.argmax(dim=1) == labels).count_nonzero())
            rows += labels.shape[0]
    return {"loss": loss / rows, "accuracy": right / rows}


class LatencyArgs(RunnerArgs):
    """How the time of a forward pass is taken.

    Attributes:
        batch_size: rows of a pass.
        warm_up: passes that are not counted.
        repeats: passes that are.
    """

    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    batch_size: int = Field(1, ge=1)
    warm_up: int = Field(10, ge=0)
    repeats: int = Field(100, ge=1)


@software_runner(
    "latency", metrics=("latency", "latency_low", "latency_high", "latency_batch_size")
)
def latency(candidate: Candidate, args: LatencyArgs) -> dict[str, float]:
    """Milliseconds of a forward pass here: median, and the interval that holds 90 % of passes."""
    batches = candidate.context.batches(args.data_loader, args.batch_size)
    features = torch.cat([each for each, _ in batches])
    with torch.inference_mode():
        for _ in range(args.warm_up):
            candidate.model(features.clone())
        times = torch.tensor([_timed(candidate, features) for _ in range(args.repeats)])
    low, median, high = torch.quantile(times, torch.tensor([0.05, 0.5, 0.95])).tolist()
    return {
        "latency": median,
        "latency_low": low,
        "latency_high": high,
        "latency_batch_size": args.batch_size,
    }


def _timed(candidate: Candidate, features: Tensor) -> float:
    """Milliseconds of one pass; the copy that protects the rows is not timed."""
    own = features.clone()
    _wait(features.device)
    start = time.perf_counter()
    candidate.model(own)
    _wait(features.device)
    return (time.perf_counter() - start) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
