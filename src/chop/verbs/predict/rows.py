"""Predict: what a trained network says of the rows of a file, written beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chop.config.run import RunConfig
from chop.dataset import DATASETS, MaseDatasetInfo
from chop.dataset.preprocess import rescaled_rows
from chop.dataset.rows import Floats
from chop.dataset.tables.pieces import Piece, TableFile
from chop.devices import device_of
from chop.errors import CheckpointError, ConfigError, DataError, suggestion
from chop.figures import Measured
from chop.files import write_pieces
from chop.loading.networks import GRAPHS, load_model
from chop.loading.paths import loadable
from chop.logger import RESULT, get_logger
from chop.models import get_model
from chop.models.weights import preprocessing_in, read_checkpoint
from chop.preprocessing import Preprocessing, preprocessing_of
from chop.runs import free_version
from chop.tasks import ERROR, NUMBERS, PROBLEM, Columns, Task, as_rows, restore_units, task_named
from chop.verbs.common.session import data_module_of
from chop.verbs.predict.scoring import Score
from chop.verbs.predict.sheets import (
    Faults,
    check_new_columns,
    feature_places,
    find_label,
    finite_features,
    open_sheet,
    table_lines,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = get_logger("chop")

MOST_NAMES = 200
"""Columns that a message lists."""


@dataclass(frozen=True)
class Predicted:
    """The predictions for the rows of a file."""

    task: Task
    output: Path
    rows: int
    faulty: int
    """Rows that could not be predicted."""
    score: Measured | None = None
    """On the rows that have a label."""


def predict(
    config: RunConfig,
    file: str | Path,
    output: str | Path | None = None,
    *,
    label: str | None = None,
    raw_cells: bool = False,
) -> Predicted:
    """Predict the rows of a file, piece by piece, and write them with the predictions, as CSV.

    Args:
        config: the settings: what to load, the model, the column of the labels, the device.
        output: the file to write; by default ``<file>_predictions.csv`` in the working directory,
            or a further version of it.
        label: the column of the labels, which must be there; without it that of the settings is
            looked for, or one with a usual name.
        raw_cells: write cells that a spreadsheet may take for formulas as they are.
    """
    task = task_named(config.task)
    if task.predictions is None:
        raise ConfigError(f"predict is for classes and numbers, not for the task {task.name!r}")
    place = Path(file).expanduser()
    table, target = open_sheet(place), target_of(place, output)
    if label is not None and label not in table.names:
        near = suggestion(label, table.names[:MOST_NAMES])
        raise DataError(f"{place}: no label column {label!r}: {near}")
    model = network_of(config)
    known = with_classes(preprocessing_of(model), config)
    label = label or find_label(table, config.label_column, known.names if known else ())
    places = feature_places(table, known, label)
    if known is None:
        logger.warning("The model does not say how rows were scaled: they are taken as they are")
    rows = PredictedRows(model, config, table, places, known, Score.of(task, table, label, known))
    lines = table_lines(table, rows.pieces(), raw_cells)
    write_pieces(target, lines)
    return Predicted(task, target, rows.count, rows.faulty, rows.score.result())


class PredictedRows:
    """The predictions of a network for the rows of a table.

    Args:
        places: of the columns that are features.
    """

    def __init__(
        self,
        model: "nn.Module",
        config: RunConfig,
        table: TableFile,
        places: Sequence[int],
        known: Preprocessing | None,
        score: Score,
    ) -> None:
        self.device = device_of(config.accelerator)
        self.model = model.to(self.device)
        self.batch_size = config.batch_size
        self.task = task_named(config.task)
        self.table = table
        self.places = places
        self.known = known
        self.score = score
        self.count = self.faulty = 0

    def pieces(self) -> Iterator[tuple[Piece, Columns]]:
        """Yield each piece of the table with the columns that are written after its own."""
        first = ""
        for piece in self.table.pieces():
            columns, faults = self._predict(piece)
            if not self.count:
                check_new_columns(self.table, columns)
            for row, line in list(faults.lines.items())[: 0 if first else 1]:
                first = f"row {piece.start + row + 1}: {line}"
            self.count += piece.rows
            self.faulty += len(faults.lines)
            yield piece, columns
        if not self.count:
            raise DataError(f"{self.table.path}: has no rows")
        if self.faulty == self.count:
            raise DataError(f"{self.table.path}: no row can be predicted ({first})")

    def _predict(self, piece: Piece) -> tuple[Columns, Faults]:
        values, faults = finite_features(piece, self.table, self.places)
        rows = self._scale(values, faults)
        outputs = self._outputs(rows)
        faults.note(
            _not_finite(outputs, self.task, self.known), "the network gives no finite numbers"
        )
        columns = self._columns(rows, outputs)
        good = torch.ones(piece.rows, dtype=torch.bool)
        good[list(faults.lines)] = False
        self.score.add(piece, good, outputs, columns)
        for row in faults.lines:
            for column in columns.values():
                column[row] = ""
        problems = [faults.lines.get(row, "") for row in range(piece.rows)]
        return {**columns, PROBLEM: problems}, faults

    def _columns(self, rows: "Tensor", outputs: "Tensor") -> Columns:
        """Return what is written: predictions, or how badly each row is reproduced."""
        assert self.task.predictions is not None
        targets = self.known.targets if self.known is not None else None
        if targets is None or not targets.own:
            return self.task.predictions(outputs, self.known)
        errors = (outputs - rows.flatten(1)).square().mean(dim=1)
        return {ERROR: [f"{each:.7g}" for each in errors.tolist()]}

    def _scale(self, values: Floats, faults: Faults) -> "Tensor":
        """Return rows scaled as those that the network was trained on."""
        rows = torch.from_numpy(values)
        if self.known is None:
            return rows
        with np.errstate(over="ignore", invalid="ignore"):
            rows = rescaled_rows(rows, self.known.identity, self.known.of_rows)
        bad = ~rows.isfinite().flatten(1)
        for row in bad.any(dim=1).nonzero()[:, 0].tolist():
            name = self.known.name_of(int(bad[row].nonzero()[0, 0]) if rows.ndim == 2 else 0)
            faults.note([row], f"column {name} is too large to be scaled")
            rows[row] = 0
        return rows

    def _outputs(self, rows: "Tensor") -> "Tensor":
        """Return what the network gives for each row."""
        where = self.table.path
        try:
            with torch.inference_mode():
                batches = torch.split(rows, min(self.batch_size, len(rows)))
                parts = [self.model(part.to(self.device)).cpu() for part in batches]
        except (RuntimeError, TypeError, ValueError) as error:
            shape = " × ".join(map(str, rows.shape[1:]))
            reason = str(error).partition("\n")[0][:120]
            raise DataError(
                f"{where}: the model does not take rows of {shape} ({reason})"
            ) from None
        outputs = as_rows(torch.cat(parts))
        if outputs.ndim != 2 or len(outputs) != len(rows):
            raise DataError(f"{where}: the model does not give one row of outputs for each row")
        return outputs


def _not_finite(outputs: "Tensor", task: Task, known: Preprocessing | None) -> list[int]:
    """Return the rows whose outputs say nothing."""
    if task is NUMBERS:
        values = restore_units(outputs.double(), known.targets if known is not None else None)
    else:
        values = outputs.float().softmax(dim=1)
    rows: list[int] = (~values.isfinite().all(dim=1)).nonzero()[:, 0].tolist()
    return rows


def target_of(file: Path, output: str | Path | None) -> Path:
    """Return the file for the predictions."""
    if output is None:
        return free_version(Path(f"{file.stem}_predictions.csv"))
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
    """Return the facts of its rows that a model needs: by the data set, else by the checkpoint.

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
    """Return the facts of its rows that a network holds, if it was trained on features."""
    facts: dict[str, Any] = {"num_features": len(known.mean), "feature_names": known.names}
    if known.targets is not None:
        names = known.targets.names
        count = len((known if known.targets.own else known.targets).mean)
        facts |= {"regression": True, "num_targets": count, "target_names": names}
    else:
        classes = known.classes
        facts |= {"physical_data_point_classification": True}
        facts |= {"num_classes": len(classes), "class_names": classes}
    return MaseDatasetInfo(name, "manual", ("train",), **facts)


def with_classes(known: Preprocessing | None, config: RunConfig) -> Preprocessing | None:
    """Return the facts with the names of the classes that the data set is known to have."""
    name = (config.dataset or "").lower()
    if known is None or known.classes or name not in DATASETS:
        return known
    return replace(known, classes=DATASETS[name].info.class_names)


def report_predicted(found: Predicted) -> None:
    """Log the last lines: how many labels were met, how many rows, where they are."""
    if found.score is not None:
        words, rows = found.task.words.capitalize(), f"{found.score.rows:,}"
        logger.info("%s on the %s rows that have a label: %s", words, rows, found.score)
    if found.faulty:
        logger.warning(
            "%s of %s rows could not be predicted: column %r says why",
            f"{found.faulty:,}", f"{found.rows:,}", PROBLEM,
        )  # fmt: skip
    logger.info("%s rows predicted", f"{found.rows - found.faulty:,}")
    logger.info("Predictions: %s", found.output, extra=RESULT)
