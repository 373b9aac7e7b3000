"""`chop.sensitivity`: what each layer of any module loses by itself at several widths."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from chop.actions.searching.one_by_one import WIDTHS, Sensitivity
from chop.actions.searching.one_by_one import sensitivity as measure
from chop.actions.session import task_of_rows
from chop.api.running import module_of, project_of, splits
from chop.runs import SENSITIVITY, SOFTWARE


def sensitivity(  # noqa: PLR0913  # all but the first by name
    model: nn.Module,
    *,
    train: Iterable[Any],
    val: Iterable[Any],
    widths: Sequence[int] = WIDTHS,
    number_format: str = "integer",
    task: str | None = None,
    project: str | Path | None = None,
    **settings: Any,
) -> Sensitivity:
    """Measure each layer with products alone at each width, as ``ch sensitivity`` does.

    The result shows itself as a table; `enough(layer)` is the narrowest width that costs at most
    half a point (of a regression, 2 % of the error), and `search` the tables of a search that
    follows from it.

    Args:
        train, val: loaders of pairs (inputs, labels): the first choose scales, the others judge.
        project: a folder to write layers.csv, layers.json and search.toml to; by default
            ``mase_output/<class of the model>``.
        task: as for `chop.train`.
        settings: as for `chop.actions.search`: seed, accelerator.
    """
    module = module_of(model, "sensitivity")
    folder = project_of(project, module) / SOFTWARE / SENSITIVITY
    rows = splits(train=train, val=val)
    return measure(
        module, None, rows, widths=widths, number_format=number_format, save_dir=folder,
        task=task or task_of_rows(rows).name, pretrained=True, **settings,
    )  # fmt: skip
