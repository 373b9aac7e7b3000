"""`chop.sensitivity`: what each layer of any module loses by itself at several widths."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from chop.errors import UnknownNameError
from chop.logger import quietly
from chop.results.sensitivity import Sensitivity
from chop.runs import SENSITIVITY, SOFTWARE
from chop.search.engines import EngineChoice
from chop.verbs.common.rows import (
    adapt,
    in_one_word,
    module_of,
    module_project,
    one_line,
    searchable,
    splits,
)
from chop.verbs.sensitivity.layers import WIDTHS, sensitivity

CONTEXT = ("seed", "accelerator", "load_name", "load_type", "cf_args")
"""Settings of the run that `sensitivity` takes beside its own."""
ENGINE = {"n_jobs": "slots", "engine": "name", "address": "address"}
"""Settings of what measures, and what `EngineChoice` calls them."""


def module_sensitivity(  # noqa: PLR0913  # all but the first by name
    model: nn.Module,
    *,
    train: Iterable[Any],
    val: Iterable[Any],
    widths: Sequence[int] = WIDTHS,
    format: str | None = None,  # noqa: A002  # the word of the command line
    task: str | None = None,
    project: str | Path | None = None,
    verbose: bool = False,
    **settings: Any,
) -> Sensitivity:
    """Measure each layer with products alone at each width, as ``ch sensitivity`` does.

    The result shows itself as a table; `enough(layer)` is the narrowest width that costs at most
    half a point (of a regression, 2 % of the error), and `search` the tables of a search that
    follows from it.

    Args:
        train, val: loaders of pairs (inputs, labels): the first choose scales, the others judge.
        format: the number format, fixed point if nothing is said; `number_format` is the same.
        project: a folder to write layers.csv, layers.json and search.toml to; by default
            ``mase_output/<class of the model>``.
        task, verbose: as for `chop.train`.
        settings: as for `chop.actions.search`: seed, accelerator, load, load_type; and n_jobs,
            engine and address, as ``ch sensitivity`` has them.
    """
    module = module_of(model, "sensitivity")
    folder = module_project(project, module) / SOFTWARE / SENSITIVITY
    given = in_one_word("sensitivity", {"format": format, **settings})
    known = (*ENGINE, *CONTEXT)
    if unknown := [name for name in given if name not in ("format", *known)]:
        raise UnknownNameError("setting", unknown[0], known, "sensitivity")
    engine = EngineChoice(**{ENGINE[name]: given.pop(name) for name in ENGINE if name in given})
    with quietly(not verbose), one_line("sensitivity"):
        what = adapt(searchable(module), splits(train=train, val=val), task, cast=True)
        return sensitivity(
            what.model, None, what.rows, widths=widths, save_dir=folder, task=what.task.name,
            number_format=given.pop("format", "integer"), pretrained=True, engine=engine, **given,
        )  # fmt: skip
