"""Settings of training as a search space, each setting trained several times."""

import copy
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from chop.dataset.data_module import MaseDataModule
from chop.errors import ConfigError, SearchError, UnknownNameError
from chop.search.choices import Choice
from chop.search.context import Candidate
from chop.search.runners.base import RunnerArgs, software_runner
from chop.search.runners.quiet import quietly
from chop.search.runners.software import LoaderName
from chop.search.space import SPACES, SearchSpace, SpaceSetup, options
from chop.tools.training.metrics import evaluate
from chop.tools.training.settings import TrainingSettings
from chop.validation import parse

BATCH_SIZE = "batch_size"
NOT_CHOSEN = frozenset(("seed", "accelerator", "devices", "num_nodes", "strategy", "auto_requeue"))
CHOICES = {BATCH_SIZE, *TrainingSettings.model_fields} - NOT_CHOSEN


class HyperparametersSetup(SpaceSetup):
    """What all trainings have in common: settings by their names, beside those that are chosen."""

    fixed: dict[str, Any] = Field(default_factory=dict)


@SPACES.register("train/hyperparameters")
class Hyperparameters(SearchSpace):
    """Batch size, epochs, learning rate and other settings of training."""

    Setup: ClassVar[type[SpaceSetup]] = HyperparametersSetup

    @classmethod
    def check(cls, setup: Any, seed: Mapping[str, Any]) -> None:
        """Refuse settings that training does not have, and values it would not take."""
        for name in (*seed, *setup.fixed):
            if name not in CHOICES:
                raise UnknownNameError("setting", name, CHOICES, "search.search_space")
        if not seed:
            raise ConfigError("search.search_space.seed: there is no setting to choose")
        for name in seed:
            for value in options(seed[name], f"search.search_space.seed.{name}"):
                training_settings({**setup.fixed, name: value}, 0)

    def choices(self) -> tuple[Choice, ...]:
        """One choice for each setting."""
        return tuple(Choice(name, options(value, name)) for name, value in self.seed.items())

    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """The chosen and the fixed settings together."""
        return {**self.setup.fixed, **chosen}

    def candidate(self, config: dict[str, Any]) -> Candidate:
        """The model before training."""
        return Candidate(self.context, config, self.context.pristine)


def training_settings(config: Mapping[str, Any], seed: int) -> TrainingSettings:
    """The settings of a training; the batch size belongs to the data."""
    given = {name: value for name, value in config.items() if name != BATCH_SIZE}
    return parse(TrainingSettings, {**given, "seed": seed, "accelerator": "cpu"}, "search space")


class TrainingArgs(RunnerArgs):
    """How often to train, and which rows to evaluate on."""

    repeats: int = Field(1, ge=1)
    """Trainings with seeds of their own, from initial weights of their own."""
    data_loader: LoaderName = "val_dataloader"
    num_samples: int | None = Field(None, ge=1)


@software_runner(
    "hyperparameter_training",
    metrics=("accuracy", "accuracy_spread", "loss", "loss_spread"),
)
def hyperparameter_training(candidate: Candidate, args: TrainingArgs) -> dict[str, float]:
    """Mean and standard deviation of accuracy and loss over several trainings from scratch."""
    results = [_trained(candidate, args, repeat) for repeat in range(args.repeats)]
    accuracies, losses = zip(*results, strict=True)
    return {
        "accuracy": statistics.fmean(accuracies),
        "accuracy_spread": statistics.stdev(accuracies) if len(results) > 1 else 0.0,
        "loss": statistics.fmean(losses),
        "loss_spread": statistics.stdev(losses) if len(results) > 1 else 0.0,
    }


def _trained(candidate: Candidate, args: TrainingArgs, repeat: int) -> tuple[float, float]:
    from chop.tools.training.fit import Job, fit

    context = candidate.context
    seed = context.seed + repeat
    model = fresh_weights(copy.deepcopy(candidate.model), seed)
    data = with_batch_size(context.data_module, candidate.config.get(BATCH_SIZE), seed)
    with tempfile.TemporaryDirectory() as folder, quietly():
        fit(Job(model, data, Path(folder)), training_settings(candidate.config, seed))
    batches = context.batches(args.data_loader, args.num_samples)
    result = evaluate(model.to(context.device), batches, context.device)
    return result.accuracy, result.loss


def fresh_weights(model: nn.Module, seed: int) -> nn.Module:
    """The model with new initial weights, which depend on the seed alone."""
    torch.manual_seed(seed)
    for module in model.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is None and next(module.parameters(recurse=False), None) is not None:
            raise SearchError(f"{type(module).__name__} cannot be given new initial weights")
        if reset is not None:
            reset()
    return model


def with_batch_size(data: MaseDataModule, size: int | None, seed: int) -> MaseDataModule:
    """The same rows in batches of another size and in another order; nothing is read again."""
    twin = copy.copy(data)
    twin.batch_size = size or data.batch_size
    twin.seed = seed
    return twin
