"""Loss, accuracy, confusion and perplexity of a model, and how a run sums them up in words."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

from chop.errors import DataError
from chop.figures import wilson_interval
from chop.masking import printable
from chop.preprocessing import Preprocessing, Targets, targets_of
from chop.tasks import CLASSES, IGNORED, NUMBERS, TOKENS, Task, distances, task_of
from chop.training.results import AnyTally, RegressionTally, Result

if TYPE_CHECKING:
    from chop.lowering import Agreement


def labelled_predictions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """One row of scores and one label for each prediction that is asked for.

    Those of a classifier are that already; of a language model, each token that has a label.
    """
    if logits.ndim < 3:
        return logits, labels
    wanted = labels != IGNORED
    return logits[wanted], labels[wanted]


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The fraction of predictions that are right (micro accuracy).

    Args:
        logits: scores, the largest of which is predicted, or predictions as of `reduce_scores`.
    """
    logits, labels = labelled_predictions(logits, labels)
    predicted = logits if logits.ndim == 1 else logits.argmax(dim=1)
    return (predicted == labels).float().mean()


def score(outputs: Tensor, labels: Tensor, targets: Targets | None = None) -> Tensor:
    """Return the primary metric of some rows: the accuracy, or the mean absolute error."""
    if not labels.is_floating_point():
        return accuracy(outputs, labels)
    return distances(outputs.to(labels.dtype), labels, targets).mean()


def reduce_scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce the scores of a step to what tells its score later: of many tokens not all scores."""
    if logits.ndim == 2 or labels.is_floating_point():
        return logits, labels
    wanted = labels != IGNORED
    return logits.argmax(dim=-1)[wanted], labels[wanted]


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The result of running a classifier over labelled rows.

    Args:
        loss: the mean cross entropy over the rows.
        confusion: rows counted by true class (first axis) and predicted class.
        agreement: that of the simulation with integers, if those were evaluated.
    """

    loss: float
    confusion: Tensor
    agreement: "Agreement | None" = None

    task: ClassVar[Task] = CLASSES

    @property
    def rows(self) -> int:  # type: ignore[override]  # counted, not stored
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        return int(self.confusion.diagonal().sum())

    @property
    def accuracy(self) -> float:
        return self.right / self.rows if self.rows else math.nan

    @property
    def value(self) -> float:
        return self.accuracy

    @property
    def interval(self) -> tuple[float, float]:  # type: ignore[override]  # the same
        """The 95 % confidence interval of the accuracy."""
        return wilson_interval(self.right, self.rows)

    @property
    def per_class(self) -> list[float]:
        """The accuracy among the rows of each class; not a number for a class without rows."""
        counts = self.confusion.sum(dim=1).tolist()
        found = self.confusion.diagonal().tolist()
        return [
            hit / count if count else math.nan for hit, count in zip(found, counts, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        return {"loss": self.loss, "accuracy": self.accuracy}

    def figures(self, split: str) -> dict[str, float]:
        """Accuracy and loss by the names they have on the rows of a split: test, val."""
        return {f"{split}_acc_epoch": self.accuracy, f"{split}_loss_epoch": self.loss}

    def details(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return the facts of each class."""
        names = names_of(len(self.per_class), class_names)
        shares = [None if math.isnan(share) else share for share in self.per_class]
        return {
            "right": self.right,
            "per_class_accuracy": dict(zip(names, shares, strict=True)),
            "class_names": names,
            "confusion_matrix": self.confusion.tolist(),
        }

    def table(self, class_names: Sequence[str]) -> list[str]:
        """The confusion matrix as lines of text."""
        names = names_of(len(self.per_class), class_names)
        rows = zip(names, self.confusion.tolist(), self.per_class, strict=True)
        return [
            "",
            "Confusion matrix: rows are the true classes, columns the predicted ones",
            tabulate(
                [
                    [name, *counts, "-" if math.isnan(share) else f"{share:.4f}"]
                    for name, counts, share in rows
                ],
                ["class", *names, "accuracy"],
                "simple",
                disable_numparse=True,
                colalign=["left", *["right"] * (len(names) + 1)],
            ),
        ]


class TokenEvaluation(Evaluation):
    """The result of a language model; its confusion is only how many tokens are wrong and right."""

    unit, task = "tokens", TOKENS

    @property
    def right(self) -> int:
        return int(self.confusion[1])

    @property
    def perplexity(self) -> float:
        """The exponential of the loss: between how many words the model wavers."""
        return perplexity(self.loss)

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "perplexity": self.perplexity}

    def figures(self, split: str) -> dict[str, float]:
        return {**super().figures(split), f"{split}_perplexity_epoch": self.perplexity}

    def details(self, class_names: Sequence[str]) -> dict[str, Any]:
        return {"right": self.right, "unit": self.unit}

    def table(self, class_names: Sequence[str]) -> list[str]:
        return []


def perplexity(loss: float) -> float:
    """The perplexity of a mean cross entropy in nats."""
    return math.exp(loss) if loss < MOST_NATS else math.inf


MOST_NATS = 700.0  # e to this is still a double


def names_of(classes: int, class_names: Sequence[str] = ()) -> list[str]:
    """The names of the classes, or their numbers where they have none."""
    return list(class_names) if len(class_names) == classes else [str(i) for i in range(classes)]


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the cross entropies of the rows.

    torch works along the classes of a row, in vectors of eight: of many rows with fewer classes it
    is faster at the transposed matrix, with five classes two to four times.
    """
    logits = logits if logits.itemsize > 2 else logits.float()  # sums overflow in half precision
    if logits.ndim == 2 and logits.is_cpu:
        rows, classes = logits.shape
        if classes < 8 and rows >= 256:
            return -torch.log_softmax(logits.t(), 0).gather(0, labels[None]).sum()
    return F.cross_entropy(logits, labels, reduction="sum")


class Tally:
    """Losses and predictions summed on the device, read once at the end."""

    def __init__(self) -> None:
        self.loss = torch.zeros((), dtype=torch.float64)
        self.pairs = torch.zeros(0, dtype=torch.int64)
        self.classes = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count one batch."""
        by_class = logits.ndim == 2  # a table of all words would not fit
        if not self.classes:
            self.classes = logits.shape[1] if by_class else -1
            exact = torch.float32 if logits.is_mps else torch.float64  # mps has no doubles
            self.loss = torch.zeros((), dtype=exact, device=logits.device)
            size = self.classes**2 if by_class else 2
            self.pairs = torch.zeros(size, dtype=torch.int64, device=logits.device)
        logits, labels = labelled_predictions(logits, labels)
        self.loss += summed_loss(logits, labels)
        found = logits.argmax(dim=1)
        places = labels * self.classes + found if by_class else (found == labels).long()
        self.pairs += torch.bincount(places, minlength=len(self.pairs))

    def share(self, summed: Callable[[Tensor], Tensor]) -> None:
        """Add what other processes have counted."""
        self.loss, self.pairs = summed(self.loss), summed(self.pairs)

    def result(self) -> Evaluation:
        """Return the result of the rows counted so far."""
        rows = int(self.pairs.sum())
        loss = float(self.loss) / rows if rows else math.nan
        if self.classes < 0:
            return TokenEvaluation(loss, self.pairs.cpu())
        return Evaluation(loss, self.pairs.reshape(self.classes, self.classes).cpu())


def tally_of(labels: Tensor, targets: Targets | None) -> AnyTally:
    """Return the tally that counts rows with such labels."""
    return RegressionTally(targets) if task_of(labels) is NUMBERS else Tally()


def tally(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    targets: Targets | None = None,
) -> AnyTally:
    """Run `model` as it is over `batches`, and count; its labels tell what is counted."""
    counted: AnyTally | None = None
    for features, labels in batches:
        counted = counted or tally_of(labels, targets)
        outputs = model(features)
        try:
            counted.add(outputs, labels)
        except (IndexError, RuntimeError) as error:
            raise misfit(outputs, labels, error) from None
    return counted or Tally()


def misfit(outputs: Tensor, labels: Tensor, error: Exception) -> DataError:
    """Return the error that outputs and labels of a batch make together, with its cause."""
    if len(outputs) != len(labels):
        return DataError(f"the model gives {len(outputs)} rows for {len(labels)} labels")
    if not labels.is_floating_point() and outputs.ndim > 1:
        outside = labels[((labels < 0) & (labels != IGNORED)) | (labels >= outputs.shape[-1])]
        if outside.numel():
            return DataError(
                f"a label is {int(outside[0])}, but the model tells {outputs.shape[-1]} classes "
                "apart, which are numbered from 0"
            )
    shapes = f"outputs {tuple(outputs.shape)}, labels {tuple(labels.shape)}"
    reason = str(error).partition("\n")[0]
    return DataError(f"outputs and labels do not fit together ({shapes}): {reason}")


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a while; parts of it may be in that mode on purpose."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate_model(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device | str = "cpu",
    targets: Targets | None = None,
) -> Result:
    """Evaluate `model` in evaluation mode, without gradients, and leave its mode as it was.

    Args:
        targets: how it scales the numbers that it predicts; by default as it says itself.

    Returns:
        a `Result`: an `Evaluation` of classes, or a `RegressionEvaluation`.
    """
    with evaluating(model), torch.inference_mode():
        moved = ((x.to(device), y.to(device)) for x, y in batches)
        result = tally(model, moved, targets or targets_of(model)).result()
    if result.rows == 0:
        raise DataError("there are no rows to evaluate on")
    return result


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
        [printable(known.name_of(place)), f"{mean:.6g}", f"{scale:.6g}"]
        for place, (mean, scale) in enumerate(zip(known.mean, known.scale, strict=True))
    ]
    first, more = rows[:MOST_FEATURES], len(rows) - MOST_FEATURES
    table = tabulate(first, ["Feature", "Mean", "Deviation"], "simple", disable_numparse=True)
    return f"{table}\n… and {more} more" if more > 0 else table


MOST_FEATURES = 32
ROWS = {"test": "Test rows", "val": "Validation rows", "all": "All rows"}


def summary_of_test(
    result: Result, class_names: Sequence[str], source: str, split: str = "test"
) -> str:
    """Return the primary metric with its interval, the loss, and a table of classes or targets."""
    digits = result.digits
    (decides, value), *others = result.figures(split).items()
    width = max(len(name) for name in result.figures(split))
    lines = [
        f"{ROWS[split].replace('rows', result.unit)}: {result.rows:,}"
        + (f" ({printable(source)})" if source else ""),
        f"{decides:{width}}  {value:{digits}}   (95 % confidence: {result.primary.interval})",
        *(f"{name:{width}}  {value:{digits}}" for name, value in others),
        *([] if result.agreement is None else [f"In integers: {result.agreement}"]),
        *result.table([printable(name) for name in class_names]),
    ]
    return "\n".join(lines)
