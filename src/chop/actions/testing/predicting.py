"""Predict: what a trained network says of the rows of a file, written beside them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from chop.actions.session import data_module_of
from chop.actions.testing.sheets import Sheet, read_sheet
from chop.config.run import RunConfig
from chop.dataset import DATASETS, MaseDatasetInfo
from chop.dataset.rescale import rescaled_rows
from chop.errors import CheckpointError, ConfigError, DataError, suggestion
from chop.files import write_text
from chop.models import get_model
from chop.models.weights import preprocessing_in, read_checkpoint
from chop.preprocessing import Preprocessing, preprocessing_of
from chop.runs import versioned
from chop.search.results.accuracy import Measured
from chop.tasks import CLASS_NUMBER, NUMBERS, PREDICTION, Columns, Task, as_rows, task_named
from chop.tools.checkpoint_load import GRAPHS, load_model
from chop.tools.devices import device_of
from chop.tools.loadable import loadable
from chop.tools.logger import RESULT, get_logger
from chop.training.results import RegressionTally

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = get_logger("chop")

TERMINAL = "-"


@dataclass(frozen=True)
class Predicted:
    """What was predicted for the rows of a file."""

    sheet: Sheet
    task: Task
    columns: Columns
    """The columns that are written after those of the file."""
    text: str
    """The whole table as CSV."""
    output: Path | None
    """None where it goes to the terminal."""
    score: Measured | None = None
    """On the rows that have a label."""


def predict(
    config: RunConfig, file: str | Path, output: str | None = None, *, label: str | None = None
) -> Predicted:
    """Predict the rows of a file and write them with the predictions, as CSV.

    Args:
        config: the settings: what to load, the model, the column of the labels, the device.
        output: the file to write, ``-`` for the terminal; by default ``<file>_predictions.csv`` in
            the working directory, or a further version of it.
        label: the column of the labels, which must be there; without it that of the settings is
            looked for, or one with a usual name.
    """
    task = task_named(config.task)
    if task.predictions is None:
        raise ConfigError(f"predict is for classes and numbers, not for the task {task.name!r}")
    place = Path(file).expanduser()
    sheet, target = read_sheet(place), target_of(place, output)
    if label is not None and label not in sheet.names:
        raise DataError(f"{place}: no label column {label!r}: {suggestion(label, sheet.names)}")
    model = network_of(config)
    known = with_classes(preprocessing_of(model), config)
    label = label or sheet.label(config.label_column, known.names if known else ())
    rows = rows_of(sheet, known, label)
    outputs = outputs_of(model, rows, config, place)
    columns = task.predictions(outputs, known)
    text = sheet.with_columns(columns)
    if task is NUMBERS:
        score = error_of(sheet, label, outputs, known)
    else:
        score = accuracy_of(sheet, label, columns)
    found = Predicted(sheet, task, columns, text, target, score)
    if target is not None:
        write_text(target, text)
    return found


def target_of(file: Path, output: str | None) -> Path | None:
    """Where the predictions go."""
    if output == TERMINAL:
        return None
    if output is None:
        return versioned(Path(f"{file.stem}_predictions.csv"))
    target = Path(output).expanduser()
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name the CSV file to write")
    if target.exists() and target.samefile(file):
        raise ConfigError(f"{target}: holds the rows themselves; name another file to write")
    return target


def network_of(config: RunConfig) -> "nn.Module":
    """The network that ``--load`` names, ready to be evaluated."""
    if config.load_name is None:
        raise ConfigError("predict: --load PATH is missing: write ch predict --load PATH FILE")
    path, kind = loadable(Path(config.load_name), config.load_type)
    if kind in GRAPHS or kind == "hf":
        try:
            return load_model(path, kind).eval()
        except CheckpointError:  # custom layers, which the model has
            if config.model is None:
                raise
    if config.model is None:
        raise ConfigError(
            f"{config.load_name}: does not say which model it is of: write ch predict MODEL FILE "
            "--load PATH"
        )
    facts = facts_of_rows(config, path, kind)
    model = get_model(config.model, config.task, dataset_info=facts, fetch=False)
    return load_model(path, kind, model).eval()


def facts_of_rows(config: RunConfig, path: Path, kind: str) -> MaseDatasetInfo:
    """What a model must be told of its rows: by the data set, else by the checkpoint itself.

    A file that was trained on is read only if nothing else tells.
    """
    name = (config.dataset or "").lower()
    if name in DATASETS and DATASETS[name].info.complete:
        return DATASETS[name].info
    known = preprocessing_in(read_checkpoint(path), path) if kind == "pl" else None
    if known is not None and known.kind == "features" and (known.classes or known.targets):
        return facts_in(known, name or "rows")
    if config.dataset is None:
        raise ConfigError(
            f"{config.load_name}: does not say how many features and classes it has: name the "
            "project that it was trained in"
        )
    return data_module_of(config).dataset_info


def facts_in(known: Preprocessing, name: str) -> MaseDatasetInfo:
    """What a network that was trained on rows of features knows of them."""
    facts: dict[str, Any] = {"num_features": len(known.mean), "feature_names": known.names}
    if known.targets is not None:
        names = known.targets.names
        facts |= {"regression": True, "num_targets": len(known.targets.mean), "target_names": names}
    else:
        classes = known.classes
        facts |= {"physical_data_point_classification": True}
        facts |= {"num_classes": len(classes), "class_names": classes}
    return MaseDatasetInfo(name, "manual", ("train",), **facts)


def with_classes(known: Preprocessing | None, config: RunConfig) -> Preprocessing | None:
    """What a network knows, with the names of the classes that its data set is known to have."""
    name = (config.dataset or "").lower()
    if known is None or known.classes or name not in DATASETS:
        return known
    return replace(known, classes=DATASETS[name].info.class_names)


def rows_of(sheet: Sheet, known: Preprocessing | None, label: str | None) -> "Tensor":
    """The features of a table, scaled as those that the network was trained on.

    Columns are found by their names. Where the network knows none, all but the label are meant.
    """
    names = known.names if known is not None else ()
    labels = (label or "").split(",")
    others = tuple(name for name in sheet.names if name not in labels)
    numbers = sheet.numbers(names or others)
    if known is None:
        logger.warning("The model does not say how rows were scaled: they are taken as they are")
        return torch.from_numpy(numbers)
    if numbers.shape[1] != len(known.mean):
        raise DataError(
            f"{sheet.path}: has {numbers.shape[1]} columns of numbers, but the model was trained "
            f"on {len(known.mean)} {known.kind}"
        )
    return rescaled_rows(torch.from_numpy(numbers), known.identity, known.of_rows)


def outputs_of(model: "nn.Module", rows: "Tensor", config: RunConfig, file: Path) -> "Tensor":
    """What the network gives for each row."""
    device = device_of(config.accelerator)
    model = model.to(device)
    try:
        with torch.inference_mode():
            parts = [model(part.to(device)).cpu() for part in torch.split(rows, config.batch_size)]
    except (RuntimeError, TypeError, ValueError) as error:
        shape = " × ".join(map(str, rows.shape[1:]))
        reason = str(error).partition("\n")[0][:120]
        raise DataError(f"{file}: the model does not take rows of {shape} ({reason})") from None
    outputs = as_rows(torch.cat(parts))
    if outputs.ndim != 2 or len(outputs) != len(rows):
        raise DataError(f"{file}: the model does not give one row of outputs for each row")
    return outputs


def accuracy_of(sheet: Sheet, label: str | None, columns: Columns) -> Measured | None:
    """How often the labels are predicted, on the rows that have one."""
    if label is None:
        return None
    true = [_label(text) for text in sheet.column(label)]
    for name in (PREDICTION, CLASS_NUMBER):  # labels may be names of classes, or their numbers
        known = columns.get(name, [])
        told = [pair for pair in zip(true, known, strict=False) if pair[0]]
        if {label for label, _ in told} & set(known):
            return Measured.of(sum(label == each for label, each in told), len(told))
    if any(true):
        logger.warning("No label in column %r is a class that was predicted", label)
    return None


def error_of(
    sheet: Sheet, label: str | None, outputs: "Tensor", known: Preprocessing | None
) -> Measured | None:
    """How far numbers are from the labels, on the rows that have all of them."""
    names = [name for name in (label or "").split(",") if name in sheet.names]
    if len(names) != outputs.shape[1]:
        return None
    labels = torch.tensor([[_number(text) for text in sheet.column(name)] for name in names]).t()
    told = labels.isfinite().all(dim=1)
    if not told.any():
        logger.warning("No row has a number in column %s", label)
        return None
    tally = RegressionTally(known.targets if known is not None else None)
    tally.add(outputs[told], labels[told])
    return Measured.by(tally.result())


def _number(text: str) -> float:
    """The number that a cell holds, or none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _label(text: str) -> str:
    """A label as the names of classes have it: ``1.0`` is ``1``."""
    plain = text.strip(" '\"\r")
    try:
        return str(int(float(plain))) if float(plain).is_integer() else plain
    except (ValueError, OverflowError):
        return plain


def told(found: Predicted) -> None:
    """The last lines: how many rows, where they are, how many labels were met."""
    if found.score is not None:
        words, rows = found.task.words.capitalize(), f"{found.score.rows:,}"
        logger.info("%s on the %s rows that have a label: %s", words, rows, found.score)
    logger.info("%s rows predicted", f"{len(found.sheet.cells):,}")
    logger.info("Predictions: %s", found.output, extra=RESULT)
