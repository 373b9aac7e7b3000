"""The search that follows from what layers lose by themselves."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chop.ops.op import Op
from chop.passes.graph.transforms.quantize.one_line import FormatSpec
from chop.tasks import Task

SPACE = "graph/quantize/mixed_precision_ptq"
TRIALS = 100
STEP = 2
"""Bits from one choice to the next above the widest that was tried."""


class Need(NamedTuple):
    """A layer, and the narrowest width that is enough for it, if one is."""

    layer: str
    op: Op
    enough: int | None


def suggest_search(
    number_format: str, needs: Iterable[Need], widths: Sequence[int], task: Task, *, fold: bool
) -> dict[str, Any]:
    """The tables of ``[search]``: three widths for each layer.

    | what the layer was found to need | its choices |
    |---|---|
    | the narrowest width that was tried is enough | that, and the next two |
    | some other width is enough | the one below it, the width itself, the one above it |
    | none is enough | the widest that was tried, and two and four bits more |

    With `fold` the layers are those of a network whose batch normalisation has been folded.
    One narrower, as two layers may make up for each other; one wider, as losses of layers add up.
    """
    seeds = {}
    for layer, op, enough in needs:
        formats = [FormatSpec(number_format, width) for width in choices(enough, widths)]
        seeds[layer] = seed_of(formats, op)
    seeds = {"default": seed_of([FormatSpec(None)]), **seeds}
    return search_tables(seeds, "name", task, fold=fold)


def choices(enough: int | None, widths: Sequence[int]) -> list[int]:
    """The widths that a layer is to choose from; the table of `suggest_search`."""
    tried = sorted(widths)
    longer = [*tried, tried[-1] + STEP, tried[-1] + 2 * STEP]
    start = len(tried) - 1 if enough is None else max(tried.index(enough) - 1, 0)
    return longer[start : start + 3]


def seed_of(formats: Sequence[FormatSpec], op: Op | None = None) -> dict[str, Any]:
    """The seed that offers some widths of one format; inputs and weights choose by themselves.

    Args:
        op: leave out what is said of operands that this operation has not.
    """
    offered: dict[str, list[Any]] = {}
    for each in formats:
        for key, value in each.config(calibrated=True).items():
            known = offered.setdefault(key, [])
            if value not in known:
                known.append(value)
    kept = {key: options for key, options in offered.items() if op is None or _is_of(key, op)}
    return {"config": kept}


def _is_of(key: str, op: Op) -> bool:
    """Return whether a key is about an operand of an operation, or about none."""
    return key == "name" or any(key.startswith(f"{role}_") for role in (*op.roles, *op.inner))


def search_tables(seed: Mapping[str, Any], by: str, task: Task, *, fold: bool) -> dict[str, Any]:
    """A search of formats by accuracy, or error, on validation rows and by bit operations."""
    setup = {"by": by, "fold": True} if fold else {"by": by}
    objectives = {task.primary_metric: task.direction, "bitops": "minimize"}
    return {
        "search_space": {"name": SPACE, "setup": setup, "seed": dict(seed)},
        "strategy": {
            "name": "optuna",
            "setup": {"sampler": "tpe", "n_trials": TRIALS},
            "sw_runner": {task.runner: {"data_loader": "val_dataloader"}},
            "hw_runner": {"bitops": {}, "average_bitwidth": {}},
            "metrics": {name: {"direction": way} for name, way in objectives.items()},
        },
    }
