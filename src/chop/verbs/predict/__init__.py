"""Predict: a table of predictions for the rows of a file.

`rows` predicts them, `sheets` reads and writes the table, `scoring` compares labels.
"""

import shutil
import sys
import tempfile
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from chop.config.option import Option, Word
from chop.config.run import (
    MODEL,
    Accelerator,
    BatchSize,
    Debug,
    Imports,
    LabelColumn,
    LoadName,
    LoadType,
    Output,
    Quiet,
)
from chop.config.verb import Verb, add_verb
from chop.errors import ConfigError
from chop.files import OWN_BYTES

if TYPE_CHECKING:
    from chop.verbs.predict.rows import Predicted

OF_TABLE = ("file", "output", "raw_cells")
"""The fields that are not settings of a network."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """Write a table of predictions: ch predict --load PATH FILE."""

    model: Annotated[str | None, Option("", "", word=MODEL)] = None
    file: Annotated[
        str | Path | None,
        Word("FILE", "rows as CSV, NumPy archive or Parquet", names="file", needed=True),
    ] = None
    load_name: LoadName = None
    load_type: LoadType = "mz"
    output: Output = None
    raw_cells: Annotated[
        bool,
        Option(
            "write cells of predict as they are; by default a ' goes before text that begins with "
            "=, +, - or @, which a spreadsheet would take for a formula",
            "output",
        ),
    ] = False
    label_column: LabelColumn = None
    batch_size: BatchSize = 128
    accelerator: Accelerator = "auto"
    imports: Imports = field(default_factory=list)
    quiet: Quiet = False
    to_debug: Debug = False


def predict_rows(request: PredictRequest) -> "Predicted":
    """Predict the rows of a file and write them; an output of ``-`` goes to the terminal."""
    request = checked_request(request)
    from chop.logger import only_results
    from chop.verbs.predict.rows import report_predicted

    if request.output != "-":
        with only_results(request.quiet):
            found = _predict(request)
            report_predicted(found)
        return found
    with tempfile.TemporaryDirectory() as folder:
        with only_results():
            found = _predict(replace(request, output=f"{folder}/table.csv"))
        with found.output.open(encoding="utf-8", errors=OWN_BYTES, newline="") as table:
            shutil.copyfileobj(table, sys.stdout)  # once all is known: no half of it is shown
    return found


def checked_request(request: PredictRequest) -> PredictRequest:
    """Refuse a request that names no file or no network."""
    file = str(request.file or "")
    if ".py:" in file:  # a model, with nothing after it
        file = ""
    if not file or request.load_name is None:
        what = "--load PATH" if file else "FILE"
        raise ConfigError(f"predict: {what} is missing: write ch predict --load PATH FILE")
    if not Path(request.load_name).expanduser().exists():
        raise ConfigError(f"--load: there is no file or folder {request.load_name}")
    return request


def _predict(request: PredictRequest) -> "Predicted":
    from chop.config.layers import Layers, spelled_out
    from chop.loading.user_code import import_user_code
    from chop.verbs.common.project import with_project
    from chop.verbs.predict.rows import predict

    given: dict[str, Any] = {
        each.name: value
        for each in fields(request)
        if each.name not in OF_TABLE and (value := getattr(request, each.name))
    }
    config = with_project("predict", Layers({}, spelled_out(given)), graphs=True).config
    import_user_code(config.imports)
    return predict(
        config, str(request.file), request.output, label=request.label_column,
        raw_cells=request.raw_cells,
    )  # fmt: skip


add_verb(
    Verb(
        "predict",
        PredictRequest,
        place=11,
        quiet="the path of the predictions",
        function=predict_rows,
    )
)
