"""The comparison of formats: all combinations measured, recorded as they come, and shown."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chop.devices import device_of
from chop.errors import ConfigError
from chop.files import seen_from_here, write_text
from chop.logger import RESULT, get_logger
from chop.passes.graph.transforms.methods.table import RTN
from chop.results.formats import (
    ACCURACY,
    ERROR,
    FORMAT_FILE,
    FORMAT_JOURNAL,
    FORMAT_TABLE,
    PERPLEXITY,
    FormatComparison,
    FormatPoint,
)
from chop.runs import FORMATS, free_version
from chop.search.engines import EngineChoice, make_engine
from chop.search.engines.engine import evaluate_all
from chop.search.spaces.space import SearchContext
from chop.tasks import CLASSES, NUMBERS, TOKENS, Task, task_named
from chop.verbs.common.session import ActionResult, Session, action_rows, facts_of, features_of
from chop.verbs.formats import FormatsRequest
from chop.verbs.formats.cells import Cell, cells_of
from chop.verbs.formats.measuring import CALIBRATION, FLOAT, FormatLaboratory

if TYPE_CHECKING:
    from torch import nn

    from chop.models import MaseModelInfo

logger = get_logger("chop")
CALIBRATION_ROWS, MOST_ROWS = 128, 2000
METRICS = {CLASSES.name: ACCURACY, TOKENS.name: PERPLEXITY, NUMBERS.name: ERROR}


def check_formats(config: FormatsRequest) -> None:
    """Refuse formats, methods and widths that are none, and engines that make no sense."""
    cells_of(words(config.formats), words(config.widths), words(config.methods or RTN))
    EngineChoice(config.engine, config.n_jobs, config.address)


def words(text: str) -> list[str]:
    """Return what stands between commas."""
    return [word.strip() for word in text.split(",")]


def run_formats(session: Session[FormatsRequest]) -> ActionResult:
    """Compare what the command line asks for; return what is to be in the record of the run."""
    config = session.config
    result = compare_on_rows(
        session.model, session.model_info, session.data_module,
        cells=cells_of(
            words(config.formats), words(config.widths), words(config.methods or RTN)
        ),
        save_dir=session.software_folder / FORMATS, most_rows=config.num_samples,
        engine=EngineChoice(config.engine, config.n_jobs, config.address),
        imports=config.imports, task=config.task, seed=config.seed,
        accelerator=config.accelerator, load_name=config.load_name, load_type=config.load_type,
        cf_args=config.cf_args,
    )  # fmt: skip
    assert result.folder is not None
    logger.info("%s\n%s", result.caption(), result.rows().text(), extra=RESULT)
    folder = seen_from_here(result.folder)
    logger.info("All numbers: %s and %s in %s", FORMAT_TABLE, FORMAT_FILE, folder, extra=RESULT)
    features = features_of(session.model, session.data_module)
    return ActionResult(session.software_folder, {"formats": str(result.folder), **features})


def compare_on_rows(  # noqa: PLR0913  # what a run consists of, by the names of the labs
    model: "nn.Module",
    model_info: "MaseModelInfo | None",
    data_module: Any,
    *,
    cells: Sequence[Cell],
    save_dir: Path | None = None,
    calibration_rows: int = CALIBRATION_ROWS,
    most_rows: int = MOST_ROWS,
    engine: EngineChoice | None = None,
    imports: Sequence[str] = (),
    **settings: Any,
) -> FormatComparison:
    """Measure all combinations; those that a folder has of the same network and rows are kept.

    Args:
        data_module: training rows are calibrated on, validation rows are measured on.
        settings: task, seed, accelerator, load_name, load_type, cf_args.
    """
    context = context_of(model, model_info, data_module, **settings)
    task = task_named(context.task)
    laboratory = FormatLaboratory(context, calibration_rows, most_rows)
    seconds = laboratory.calibrate()
    start = laboratory.point(FLOAT)
    facts = {
        "metric": METRICS[task.name],
        "rows_measured": len(start.losses),
        "calibration_rows": sum(
            len(labels) for _, labels in context.first_batches(CALIBRATION, calibration_rows)
        ),
    }
    folder: Path | None = None
    known: dict[tuple[str, ...], FormatPoint] = {}
    if save_dir is not None:
        folder, known = open_journal(save_dir, signature(start, facts, task))
    missing = [cell for cell in cells if tuple(cell) not in known]

    def record(point: FormatPoint) -> None:
        known[point.key] = point
        if folder is not None:
            with (folder / FORMAT_JOURNAL).open("a", encoding="utf-8") as journal:
                journal.write(point.model_dump_json() + "\n")
        logger.info("%s %s %s: %s", *point.key, point.problem or f"{point.seconds:.1f} s")

    evaluate_all(make_engine(engine or EngineChoice(), 1, imports), laboratory, missing, record)
    found = FormatComparison(
        **facts, start=start, points=tuple(known[tuple(cell)] for cell in cells),
        calibration_seconds=seconds,
    )  # fmt: skip
    return found if folder is None else found.save(folder)


def context_of(  # noqa: PLR0913, PLR0917  # the same
    model: "nn.Module",
    model_info: "MaseModelInfo | None",
    data_module: Any,
    task: str = CLASSES.name,
    seed: int = 0,
    accelerator: str = "cpu",
    load_name: str | Path | None = None,
    load_type: str = "mz",
    cf_args: Mapping[str, Any] | None = None,
) -> SearchContext:
    """Return the network with its weights, and its rows."""
    from chop.models.info import MaseModelInfo

    if load_name is not None:
        from chop.loading.networks import load_model

        model = load_model(load_name, load_type, model)
    info, rows = facts_of(model, model_info), action_rows(data_module, "val", "formats")
    if model_info is None and task_named(task) is TOKENS:
        info = MaseModelInfo(type(model).__name__, "manual", "nlp", causal_LM=True)
    return SearchContext(
        model.eval(), info, rows, task_named(task).names[0], cf_args or None,
        device_of(accelerator), True, seed, is_trained=True,
    )  # fmt: skip


def signature(start: FormatPoint, facts: Mapping[str, Any], task: Task) -> str:
    """Return a text that is the same for the same network, rows and task."""
    stated = json.dumps([facts, task.name, start.losses], sort_keys=True)
    return hashlib.sha256(stated.encode()).hexdigest()[:24]


def open_journal(save_dir: Path, known_as: str) -> tuple[Path, dict[tuple[str, ...], FormatPoint]]:
    """Return a folder to record in, and what was measured there of the same network and rows."""
    folder, line = save_dir, json.dumps({"signature": known_as})
    while (folder / FORMAT_JOURNAL).is_file():
        first, *lines = (folder / FORMAT_JOURNAL).read_text(encoding="utf-8").splitlines() or [""]
        if first == line:
            return folder, {point.key: point for point in whole_points(lines, folder)}
        folder = free_version(save_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FORMAT_JOURNAL, line + "\n")
    return folder, {}


def whole_points(lines: Sequence[str], folder: Path) -> list[FormatPoint]:
    """Return the recorded points; the last line may have been cut off by the end of a process."""
    found = []
    for place, line in enumerate(lines):
        try:
            found.append(FormatPoint.model_validate_json(line))
        except ValidationError:
            if place < len(lines) - 1:
                where = f"{folder.name}/{FORMAT_JOURNAL}"
                raise ConfigError(f"{where}: line {place + 2} is not a measurement") from None
            rest = "".join(f"{each}\n" for each in lines[:place])
            text = (folder / FORMAT_JOURNAL).read_text(encoding="utf-8").partition("\n")[0]
            write_text(folder / FORMAT_JOURNAL, f"{text}\n{rest}")
    return found
