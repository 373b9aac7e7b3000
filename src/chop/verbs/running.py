"""`chop.train`, `chop.evaluate` and `chop.report`: the actions, on any module and any loaders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.errors import ConfigError
from chop.logger import quietly
from chop.runs import SOFTWARE, TRAINING
from chop.verbs.report import report as write_page
from chop.verbs.rows import in_full, one_line, prepare
from chop.verbs.test import test
from chop.verbs.train import train as train_action

if TYPE_CHECKING:
    from chop.training.fit import TrainingResult
    from chop.training.results import Result

PROJECTS = "mase_output"
OTHER_WORDS = {
    "epochs": "max_epochs",
    "layers": "rule",
    "load": "load_name",
    "nodes": "num_nodes",
    "num_devices": "devices",
    "number_format": "format",
    "trainer_precision": "precision",
    "training_optimizer": "optimizer",
}
"""Settings that have two names: those of the command line are all understood."""


def project_of(project: str | Path | None, model: nn.Module) -> Path:
    """The folder of a project: as it was given, else ``mase_output/<class of the model>``."""
    return Path(project) if project is not None else Path(PROJECTS) / type(model).__name__


def module_of(model: Any, caller: str) -> nn.Module:
    """A module itself, or that of what `chop.quantize` and `chop.search` give."""
    found = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(found, nn.Module):
        raise ConfigError(f"{caller} takes a torch.nn.Module, not {type(model).__name__}")
    return found


def in_one_word(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under one name each; None is not given, and twice is a mistake."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        word = OTHER_WORDS.get(name, name)
        if value is None:
            continue
        if word in found:
            other = next(each for each, known in OTHER_WORDS.items() if known == word)
            raise ConfigError(f"{verb}: {word} and {other} are the same: give one of them")
        found[word] = value
    return found


def splits(**given: Any) -> dict[str, Any]:
    """The loaders that were given, by the names of their splits."""
    return {name: loader for name, loader in given.items() if loader is not None}


def train(  # noqa: PLR0913  # all but the first by name
    model: nn.Module,
    train: Iterable[Any],
    val: Iterable[Any] | None = None,
    *,
    task: str | None = None,
    max_epochs: int | None = None,
    learning_rate: float = 1e-3,
    project: str | Path | None = None,
    verbose: bool = False,
    **settings: Any,
) -> "TrainingResult":
    """Train a model, as ``ch train`` does; it has the weights of the last epoch afterwards.

    Args:
        train, val: loaders of pairs (inputs, labels), or of dictionaries with ``labels``.
        task: ``classification``, ``language_modeling`` or ``regression``. By default labels tell
            it: real numbers (a float dtype) are to be predicted, whole numbers are classes.
        max_epochs: 20 if nothing is said; `epochs` is the same.
        project: the folder of the run; by default ``mase_output/<class of the model>``.
        verbose: show what is done, as the command does.
        settings: as for `chop.actions.train`: optimizer, weight_decay, scheduler, seed, resume …
            The words of ``ch train`` are understood as well.
    """
    model = module_of(model, "train")
    in_full(model, "train")
    folder = project_of(project, model) / SOFTWARE / TRAINING
    given = in_one_word("train", {"max_epochs": max_epochs, **settings})
    with quietly(not verbose), one_line("train"):
        what = prepare(model, splits(train=train, val=val), task)
        return train_action(
            what.model, data_module=what.rows, task=what.task.name, save_path=folder,
            learning_rate=learning_rate, **given,
        )  # fmt: skip


def evaluate(
    model: nn.Module,
    data: Iterable[Any],
    *,
    task: str | None = None,
    verbose: bool = False,
    **settings: Any,
) -> "Result":
    """How good a model is on a loader of pairs (inputs, labels), as ``ch test`` measures it.

    Of a classifier the result has accuracy, loss and confusion; of a regression the mean absolute
    error (`mae`), `rmse`, `mse` and `r2`.

    Args:
        model: a module, or what `chop.quantize` gives.
        data: a loader of pairs (inputs, labels), or of dictionaries with ``labels``.
        task, verbose: as for `train`.
        settings: as for `chop.actions.test`; ``exact=True`` computes in integers.
    """
    model = module_of(model, "evaluate")
    given = in_one_word("evaluate", settings)
    with quietly(not verbose), one_line("evaluate"):
        what = prepare(model, splits(test=data), task)
        return test(what.model, data_module=what.rows, task=what.task.name, **given)


def report(project: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a project, as ``ch report`` does; its path."""
    return write_page(project, output)
