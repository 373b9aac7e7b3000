"""`chop.evaluate`: measure any module on any loader."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.logger import quietly
from chop.verbs.common.rows import adapt, in_one_word, module_of, one_line, splits
from chop.verbs.test.testing import test

if TYPE_CHECKING:
    from chop.training.results import Result


def evaluate(
    model: nn.Module,
    data: Iterable[Any],
    *,
    task: str | None = None,
    verbose: bool = False,
    **settings: Any,
) -> "Result":
    """Evaluate a model on a loader of pairs (inputs, labels), as ``ch test`` does.

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
        what = adapt(model, splits(test=data), task)
        return test(what.model, data_module=what.rows, task=what.task.name, **given)
