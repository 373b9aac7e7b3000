"""What a network consists of, and what a test of it found, as text."""

import math
from collections.abc import Sequence

from tabulate import tabulate
from torch import nn

from chop.preprocessing import Preprocessing
from chop.tools.training.metrics import Evaluation, names_of


def parameter_summary(model: nn.Module) -> str:
    """The layers that hold parameters, how many, and the total."""
    rows = [
        [name or type(module).__name__, type(module).__name__, f"{count:,}"]
        for name, module in model.named_modules()
        if (count := sum(value.numel() for value in module.parameters(recurse=False)))
    ]
    total = sum(value.numel() for value in model.parameters())
    trainable = sum(value.numel() for value in model.parameters() if value.requires_grad)
    table = tabulate(
        rows, ["Layer", "Type", "Parameters"], "simple", colalign=("left", "left", "right")
    )
    return f"{table}\n{total:,} parameters, {trainable:,} of them trainable"


def feature_summary(known: Preprocessing) -> str:
    """The mean and deviation that each feature is scaled with."""
    rows = [
        [known.name_of(place), f"{mean:.6g}", f"{scale:.6g}"]
        for place, (mean, scale) in enumerate(zip(known.mean, known.scale, strict=True))
    ]
    shown, more = rows[:MOST_FEATURES], len(rows) - MOST_FEATURES
    table = tabulate(shown, ["Feature", "Mean", "Deviation"], "simple", disable_numparse=True)
    return f"{table}\n… and {more} more" if more > 0 else table


MOST_FEATURES = 32
ROWS = {"test": "Test rows", "val": "Validation rows", "all": "All rows"}


def summary_of_test(
    result: Evaluation, class_names: Sequence[str], source: str, split: str = "test"
) -> str:
    """Accuracy with its confidence interval, loss, accuracy of each class, confusion matrix."""
    names = names_of(len(result.per_class), class_names)
    low, high = result.interval
    accuracy, loss = result.figures(split)
    width = len(loss)
    lines = [
        f"{ROWS[split]}: {result.rows:,}" + (f" ({source})" if source else ""),
        f"{accuracy:{width}}  {result.accuracy:.6f}   (95 % confidence: {low:.4f} to {high:.4f})",
        f"{loss:{width}}  {result.loss:.6f}",
        "",
        "Confusion matrix: rows are the true classes, columns the predicted ones",
        tabulate(
            [
                [name, *counts, "-" if math.isnan(share) else f"{share:.4f}"]
                for name, counts, share in zip(
                    names, result.confusion.tolist(), result.per_class, strict=True
                )
            ],
            ["class", *names, "accuracy"],
            "simple",
            disable_numparse=True,
            colalign=["left", *["right"] * (len(names) + 1)],
        ),
    ]
    return "\n".join(lines)
