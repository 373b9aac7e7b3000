"""Software metrics: how good candidates are."""

import time
from pathlib import Path
from typing import Literal

import torch
from pydantic import AliasChoices, Field
from torch import Tensor

from chop.errors import ConfigError
from chop.logger import silently
from chop.search.runners.runner import RunnerArgs, software_runner
from chop.search.spaces.space import Candidate
from chop.tasks import NUMBERS, task_named
from chop.training.metrics import evaluate_model, labelled_predictions, perplexity, summed_loss
from chop.training.results import RegressionEvaluation, RegressionTally, Result
from chop.training.settings import TrainingSettings

LoaderName = Literal["train_dataloader", "val_dataloader", "test_dataloader"]


class EvaluationArgs(RunnerArgs):
    """The choice of rows: the first `num_samples` of a loader, or all of them.

    The original documents the key `data_loader` and reads `dataloader`; both are read here.
    """

    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(None, ge=1)


@software_runner("basic_evaluation", metrics=("loss", "accuracy"), regression=False)
def basic_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Mean cross entropy and micro accuracy, as training defines them."""
    loss, accuracy = loss_and_accuracy(candidate, args)
    return {"loss": loss, "accuracy": accuracy}


@software_runner("lm_evaluation", ("loss", "accuracy", "perplexity"), regression=False)
def lm_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Mean cross entropy, accuracy and perplexity of the tokens of a language model."""
    loss, accuracy = loss_and_accuracy(candidate, args)
    return {"loss": loss, "accuracy": accuracy, "perplexity": perplexity(loss)}


@software_runner("regression_evaluation", NUMBERS.metrics, regression=True)
def regression_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Errors of predicted numbers in their own units, and the share of variance explained."""
    return count_errors(candidate, args).metrics()


@software_runner("odd_row_evaluation", ("auc",), regression=True)
def odd_row_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """The share of pairs of an odd and a usual row where the odd one has the larger error."""
    auc = count_errors(candidate, args).auc
    if auc is None:
        raise ConfigError("odd_row_evaluation: there are no odd rows to tell; name --odd-class")
    return {"auc": auc.value}


def count_errors(candidate: Candidate, args: EvaluationArgs) -> RegressionEvaluation:
    """The errors of a candidate."""
    counted = RegressionTally(candidate.context.targets)
    no_gradients = torch.inference_mode() if candidate.context.eval_mode else torch.no_grad()
    with no_gradients:
        for outputs, labels in candidate.predictions(args.data_loader, args.num_samples):
            counted.add(outputs, labels)
    return counted.result()


def loss_and_accuracy(candidate: Candidate, args: EvaluationArgs) -> tuple[float, float]:
    """The mean cross entropy and the accuracy of a candidate."""
    loss, right, rows = 0.0, 0, 0
    no_gradients = torch.inference_mode() if candidate.context.eval_mode else torch.no_grad()
    with no_gradients:
        for scores, labels in candidate.predictions(args.data_loader, args.num_samples):
            scores, labels = labelled_predictions(scores, labels)
            # The sums of `chop.training.metrics.Tally` without its table of classes, which takes
            # longer than a small network does; a test holds that the two agree to the last bit.
            loss += float(summed_loss(scores, labels))
            right += int((scores.argmax(dim=1) == labels).count_nonzero())
            rows += labels.shape[0]
    return loss / rows, right / rows


class LatencyArgs(RunnerArgs):
    """The way to take the time of a forward pass.

    Attributes:
        batch_size: rows per pass.
        warm_up: passes before the timed ones.
        repeats: timed passes.
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
        times = torch.tensor([_time_pass(candidate, features) for _ in range(args.repeats)])
    low, median, high = torch.quantile(times, torch.tensor([0.05, 0.5, 0.95])).tolist()
    return {
        "latency": median,
        "latency_low": low,
        "latency_high": high,
        "latency_batch_size": args.batch_size,
    }


def _time_pass(candidate: Candidate, features: Tensor) -> float:
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


class TrainArgs(RunnerArgs):
    """The settings of training, and the rows to evaluate on."""

    max_epochs: int = Field(1, ge=1)
    max_steps: int = Field(-1, ge=-1)
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    scheduler: Literal["cosine", "linear", "constant"] = Field(
        "cosine", validation_alias=AliasChoices("scheduler", "lr_scheduler")
    )
    accumulate_grad_batches: int = Field(
        1, ge=1, validation_alias=AliasChoices("accumulate_grad_batches",
                                               "gradient_accumulation_steps")
    )  # fmt: skip
    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(None, ge=1)


@software_runner("basic_train", metrics=("loss", "accuracy"), regression=False)
def basic_train(candidate: Candidate, args: TrainArgs) -> dict[str, float]:
    """Loss and accuracy after some epochs of (quantisation-aware) training of a private copy."""
    found = train_candidate(candidate, args).metrics()
    return {name: found[name] for name in ("loss", "accuracy")}


@software_runner("regression_train", NUMBERS.metrics, regression=True)
def regression_train(candidate: Candidate, args: TrainArgs) -> dict[str, float]:
    """The same of a network that predicts numbers: its errors after some epochs of training."""
    return train_candidate(candidate, args).metrics()


def train_candidate(candidate: Candidate, args: TrainArgs) -> Result:
    """The result of a candidate after its training."""
    from chop.training.fit import fit_in_memory
    from chop.training.job import Job

    context = candidate.context
    settings = TrainingSettings(
        seed=context.seed,
        accelerator="cpu" if context.device.type == "cpu" else "auto",
        **args.model_dump(exclude={"data_loader", "num_samples"}),
    )
    torch.manual_seed(context.seed)
    # The progress of a training would drown that of the search.
    with silently():
        task = task_named(context.task)
        fit_in_memory(Job(candidate.model, context.data_module, Path(), task=task), settings)
    batches = context.batches(args.data_loader, args.num_samples)
    device = context.device
    return evaluate_model(candidate.model.to(device), batches, device, context.targets)
