"""Tasks of networks: their losses, their metrics, and the way predictions are written.

Labels tell the task wherever batches are: whole numbers are classes, real numbers are targets of a
regression. So nothing below the actions is told the task by name. Nothing here imports torch at
once, as the page of a run does without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from chop.errors import UnknownNameError
from chop.preprocessing import Preprocessing, Targets

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a token that nothing is asked about, as torch and transformers have it."""
PREDICTION, CLASS_NUMBER, PROBABILITY = "prediction", "class_number", "probability"
"""The columns of what is predicted; with several targets the name of the target follows."""
ERROR = "error"
"""The column of the mean squared error of a row that a network reproduces."""
PROBLEM = "problem"
"""The last column of a table of predictions: why a row could not be predicted, or nothing."""

Loss = Callable[["Tensor", "Tensor", Targets | None], "Tensor"]
Columns = dict[str, list[str]]


@dataclass(frozen=True)
class Task:
    """One row of the table of tasks.

    Args:
        names: what users call it; the first is short, the last is shown.
        loss: the mean over outputs and labels; targets say how labels are scaled for it.
        loss_unit: what the loss is counted in.
        metrics: what networks are measured by, beside the loss.
        primary_metric: the one that is shown first, with an interval, and that points are chosen
            by; checkpoints are chosen by the validation loss.
        direction: which of its values are better.
        stem: what it is called in columns: ``train_<stem>``, ``val_<stem>_epoch``.
        words: what it is called in sentences.
        unit: what it is counted in.
        runner: the software runner of searches that measures it.
        predictions: the columns of a table of predictions, from the outputs of a network and what
            it knows of classes and targets; None if predictions are no rows of a table.
    """

    names: tuple[str, ...]
    loss: Loss
    loss_unit: str
    metrics: tuple[str, ...]
    primary_metric: str
    direction: Literal["maximize", "minimize"]
    stem: str
    words: str
    unit: str
    runner: str
    predictions: Callable[["Tensor", Preprocessing | None], Columns] | None

    @property
    def name(self) -> str:
        return self.names[-1]

    @property
    def step_column(self) -> str:
        return f"train_{self.stem}_step"

    @property
    def train_column(self) -> str:
        return f"train_{self.stem}"

    def epoch_column(self, split: str = "val") -> str:
        return f"{split}_{self.stem}_epoch"


def cross_entropy(outputs: "Tensor", labels: "Tensor", targets: Targets | None = None) -> "Tensor":
    """The mean cross entropy of the predictions."""
    from torch.nn import functional as F

    outputs = outputs if outputs.itemsize > 2 else outputs.float()  # sums overflow in half
    if outputs.ndim > 2:
        outputs, labels = outputs.flatten(0, -2), labels.flatten()
    return F.cross_entropy(outputs, labels, ignore_index=IGNORED)


def squared_error(outputs: "Tensor", labels: "Tensor", targets: Targets | None = None) -> "Tensor":
    """The mean squared error of the predictions, of standardised targets where they are scaled."""
    outputs, labels = as_rows(outputs), as_rows(labels)
    wanted = labels if targets is None else targets.scale_labels(labels)
    return (outputs.to(wanted.dtype) - wanted).square().mean()  # outputs may have half precision


def as_rows(values: "Tensor") -> "Tensor":
    """A row of numbers for each row; a network of one target may give one number without a row."""
    return values[:, None] if values.ndim == 1 else values


def distances(outputs: "Tensor", labels: "Tensor", targets: Targets | None) -> "Tensor":
    """Return how far each number is from its label, in the units of the labels.

    Odd rows of a network that reproduces rows are left out.
    """
    labels = as_rows(labels)
    if targets is not None and targets.own:
        usual = labels[:, -1] == 0
        outputs, labels = outputs[usual], targets.without_marks(labels)[usual]
    return (restore_units(outputs, targets) - labels).abs()


def restore_units(outputs: "Tensor", targets: Targets | None) -> "Tensor":
    """Return the outputs of a network, one row for each row, in the units of the labels."""
    rows = as_rows(outputs)
    return rows if targets is None else targets.restore(rows)


def classes_predicted(outputs: "Tensor", known: Preprocessing | None) -> Columns:
    """The class of the largest score as labels have it, its number, and how probable it is.

    The number is left out where it is what labels have.
    """
    names = known.classes if known is not None else ()
    probability, places = outputs.float().softmax(dim=1).max(dim=1)
    numbers = [str(place) for place in range(outputs.shape[1])]
    named = list(names) if len(names) == len(numbers) else numbers
    found: list[int] = places.tolist()
    number: Columns = {} if named == numbers else {CLASS_NUMBER: [numbers[at] for at in found]}
    shares = [f"{share:.6f}" for share in probability.tolist()]
    return {PREDICTION: [named[place] for place in found], **number, PROBABILITY: shares}


def numbers_predicted(outputs: "Tensor", known: Preprocessing | None) -> Columns:
    """Each target in the units of the labels: a column, or one for each where there are several."""
    targets = None if known is None else known.targets
    columns = [
        [f"{value:.7g}" for value in each]
        for each in restore_units(outputs.double(), targets).t().tolist()
    ]
    if len(columns) == 1:
        return {PREDICTION: columns[0]}
    names = targets.names if targets is not None and targets.names else range(len(columns))
    return {f"{PREDICTION}_{name}": each for name, each in zip(names, columns, strict=True)}


CLASSES = Task(
    ("cls", "classification"),
    cross_entropy, "cross entropy (nats)",
    ("accuracy",), "accuracy", "maximize", "acc", "accuracy", "fraction of rows",
    "basic_evaluation", classes_predicted,
)  # fmt: skip
TOKENS = Task(
    ("lm", "language_modeling"),
    cross_entropy, "cross entropy (nats)",
    ("accuracy", "perplexity"), "accuracy", "maximize", "acc", "accuracy", "fraction of tokens",
    "basic_evaluation", None,
)  # fmt: skip
NUMBERS = Task(
    ("reg", "regression"),
    squared_error, "mean squared error",
    ("mae", "rmse", "mse", "r2"), "mae", "minimize",
    "mae", "mean absolute error", "units of the target",
    "regression_evaluation", numbers_predicted,
)  # fmt: skip

TASKS = {name: task for task in (CLASSES, TOKENS, NUMBERS) for name in task.names}


def task_named(name: str) -> Task:
    """The task that users call `name`."""
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    return TASKS[name]


def task_of(labels: "Tensor") -> Task:
    """The task that labels are of: real numbers are to be predicted, whole ones are classes."""
    if labels.is_floating_point():
        return NUMBERS
    return CLASSES if labels.ndim == 1 else TOKENS


def task_of_history(history: Sequence[Mapping[str, float]]) -> Task:
    """The task of a training, which the columns of its epochs tell."""
    return NUMBERS if any(NUMBERS.train_column in row for row in history) else CLASSES
