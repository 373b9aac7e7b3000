"""`chop.compare_formats`: number formats by methods on any module."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from chop.errors import UnknownNameError
from chop.logger import quietly
from chop.results.formats import FormatComparison
from chop.runs import FORMATS, SOFTWARE
from chop.search.engines import EngineChoice
from chop.tasks import task_of
from chop.verbs.common.rows import adapt, first_batch, module_of, one_line, searchable, splits
from chop.verbs.formats.cells import ALL, cells_of
from chop.verbs.formats.table import CALIBRATION_ROWS, MOST_ROWS, compare_on_rows

ENGINE_WORDS = {"n_jobs": "slots", "engine": "name", "address": "address"}
SETTINGS = ("seed", "accelerator")


def compare_formats(  # noqa: PLR0913  # all but the first two by name
    model: nn.Module,
    rows: Iterable[Any],
    *,
    calibrate: Iterable[Any] | None = None,
    formats: Sequence[str] | str = ALL,
    methods: Sequence[str] = ("rtn", "gptq"),
    widths: Sequence[int | str] = ("w4", 4),
    task: str | None = None,
    project: str | Path | None = None,
    calibration_rows: int = CALIBRATION_ROWS,
    num_samples: int = MOST_ROWS,
    verbose: bool = False,
    **settings: Any,
) -> FormatComparison:
    """Compare number formats and methods, as ``ch formats`` does; the result shows as a table.

    Args:
        rows: a loader of pairs (inputs, labels) to measure on.
        calibrate: the same for scales and methods; by default the first of `rows`, whose inputs
            alone are looked at.
        formats: names, or "all".
        methods: such as "rtn", "gptq", "smooth", "rotate+gptq".
        widths: 4 for all operands, "w4" for weights, "w4a8", "w4a8kv4s8" (attention's cache and
            scores); formats with bits of their own take the letters alone.
        task: told by the labels, if nothing is said.
        project: a folder to record in; measurements that are there already are kept. By default
            nothing is written.
        calibration_rows, num_samples: rows to calibrate and to measure on, at most.
        settings: seed, accelerator; n_jobs, engine and address, as ``ch formats`` has them.
    """
    module = module_of(model, "compare_formats")
    known = (*ENGINE_WORDS, *SETTINGS)
    if unknown := [name for name in settings if name not in known]:
        raise UnknownNameError("setting", unknown[0], known, "compare_formats")
    said = {ENGINE_WORDS[name]: settings.pop(name) for name in ENGINE_WORDS if name in settings}
    listed = formats if isinstance(formats, str) and formats == ALL else as_list(formats)
    cells = cells_of(listed, as_list(widths), as_list(methods))
    folder = None if project is None else Path(project) / SOFTWARE / FORMATS
    with quietly(not verbose), one_line("compare_formats"):
        loaders = splits(train=rows if calibrate is None else calibrate, val=rows)
        what = adapt(searchable(module), loaders, task, cast=True)
        chosen = what.task if task is not None else task_of(first_batch(what.rows["val"])[1])
        return compare_on_rows(
            what.model, None, what.rows, cells=cells, save_dir=folder, task=chosen.name,
            engine=EngineChoice(**said), calibration_rows=calibration_rows,
            most_rows=num_samples, **settings,
        )  # fmt: skip


def as_list(given: Any) -> list[Any]:
    """Return several as a list, and one as a list of it."""
    return [given] if isinstance(given, str | int) else list(given)
