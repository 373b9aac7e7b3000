"""`chop.train`, `chop.evaluate` and `chop.report`: the actions, on any module and any loaders."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.actions.reporting import report as write_page
from chop.actions.session import task_of_rows
from chop.actions.testing import test
from chop.actions.training import train as train_action
from chop.errors import ConfigError
from chop.runs import SOFTWARE, TRAINING

if TYPE_CHECKING:
    from chop.training.fit import TrainingResult
    from chop.training.results import Result

PROJECTS = "mase_output"


def project_of(project: str | Path | None, model: nn.Module) -> Path:
    """The folder of a project: as it was given, else ``mase_output/<class of the model>``."""
    return Path(project) if project is not None else Path(PROJECTS) / type(model).__name__


def module_of(model: Any, caller: str) -> nn.Module:
    """A module itself, or that of what `chop.quantize` and `chop.search` give."""
    found = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(found, nn.Module):
        raise ConfigError(f"{caller} takes a torch.nn.Module, not {type(model).__name__}")
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
    epochs: int = 20,
    learning_rate: float = 1e-3,
    project: str | Path | None = None,
    **settings: Any,
) -> "TrainingResult":
    """Train a model, as ``ch train`` does; it has the weights of the last epoch afterwards.

    Args:
        train, val: loaders of pairs (inputs, labels).
        task: ``classification``, ``language_modeling`` or ``regression``. By default labels tell
            it: real numbers (a float dtype) are to be predicted, whole numbers are classes.
        project: the folder of the run; by default ``mase_output/<class of the model>``.
        settings: as for `chop.actions.train`: optimizer, weight_decay, scheduler, seed, resume …
    """
    model = module_of(model, "train")
    folder = project_of(project, model) / SOFTWARE / TRAINING
    settings |= {"max_epochs": epochs, "learning_rate": learning_rate}
    rows = splits(train=train, val=val)
    task = task or task_of_rows(rows).name
    return train_action(model, data_module=rows, task=task, save_path=folder, **settings)


def evaluate(
    model: nn.Module, data: Iterable[Any], *, task: str | None = None, **settings: Any
) -> "Result":
    """How good a model is on a loader of pairs (inputs, labels).

    Of a classifier the result has accuracy, loss and confusion; of a regression the mean absolute
    error (`mae`), `rmse`, `mse` and `r2`.

    Args:
        model: a module, or what `chop.quantize` gives.
        task: as for `train`.
        settings: as for `chop.actions.test`; ``exact=True`` computes in integers.
    """
    rows = splits(test=data)
    task = task or task_of_rows(rows).name
    return test(module_of(model, "evaluate"), data_module=rows, task=task, **settings)


def report(project: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a project, as ``ch report`` does; its path."""
    return write_page(project, output)
