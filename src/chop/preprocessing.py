"""The scaling of features before a network sees them: a value that stays with the network.

A network works only on rows that were scaled as those it was trained on. So the constants are
kept with rows, checkpoints and saved graphs, from which other rows can be scaled alike. Where
numbers are predicted, what they are scaled with is kept in the same place.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from chop.errors import CheckpointError, ChopError, DataError
from chop.validation import parse

if TYPE_CHECKING:
    from torch import Tensor, nn

ATTRIBUTE = "_chop_preprocessing"
"""Where a network has it."""
Kind = Literal["features", "channels"]
NAME_SHOWN = 40  # characters of a name that may come from a file


@dataclass(frozen=True)
class Targets:
    """Numbers to be predicted, of which a network gives ``(y - mean) / scale``.

    Labels are never scaled in a data set. Losses scale them; predictions are taken back to the
    units of the labels before they are shown or measured.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    names: tuple[str, ...] = ()
    own: bool = False
    """Whether each row is its own target, and labels end in a mark: 1 of an odd row, else 0."""

    def __post_init__(self) -> None:
        _keep_constants(self, "targets")

    def without_marks(self, labels: "Tensor") -> "Tensor":
        """Labels, one row each, without the marks of odd rows."""
        return labels[:, :-1] if self.own else labels

    def scale_labels(self, labels: "Tensor") -> "Tensor":
        """Labels, one row each, in the units of the network."""
        away = self.without_marks(labels) - labels.new_tensor(self.mean)
        return away / labels.new_tensor(self.scale)

    def restore(self, outputs: "Tensor") -> "Tensor":
        """Return the outputs of a network, one row each, in the units of the labels."""
        return outputs * outputs.new_tensor(self.scale) + outputs.new_tensor(self.mean)

    def __str__(self) -> str:
        """One line for people."""
        if self.own:
            return "each row itself"
        count = len(self.mean)
        name = self.names[0] if self.names else "target 0"
        return (
            f"{count} target{'s' if count > 1 else ''}, standardised for training ({name!r:.40}: "
            f"mean {self.mean[0]:.4g}, deviation {self.scale[0]:.4g}{', …' if count > 1 else ''})"
        )


@dataclass(frozen=True)
class Preprocessing:
    """Rows as ``(x / divisor - mean) / scale``, each step in float32.

    Args:
        kind: whether `mean` and `scale` are of features, which a row is a list of, or of channels,
            which are axis 1 of images.
        names: of the features, where they have any.
        in_graph: the network does this itself, as its first step, and takes rows as they were
            measured.
        targets: how the numbers are scaled that the network predicts, if they are.
        classes: the names of the classes that the network tells apart, where they have any.
    """

    kind: Kind
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    divisor: float = 1.0
    names: tuple[str, ...] = ()
    in_graph: bool = False
    targets: Targets | None = None
    classes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "divisor", _single(self.divisor, "divisor"))
        _keep_constants(self, self.kind, self.divisor)

    @property
    def constants(self) -> tuple[object, ...]:
        """All that decides what becomes of a row."""
        return self.kind, self.mean, self.scale, self.divisor

    @property
    def is_identity(self) -> bool:
        """Return whether rows stay as they are, bit for bit."""
        return self.constants == self.identity.constants

    @property
    def identity(self) -> "Preprocessing":
        """The same features as they were measured."""
        count = len(self.mean)
        zeros, ones = (0.0,) * count, (1.0,) * count
        return Preprocessing(self.kind, zeros, ones, names=self.names, targets=self.targets)

    @property
    def of_rows(self) -> "Preprocessing":
        """Return the scaling of rows for the network: none, if it scales them itself."""
        return self.identity if self.in_graph else self

    @property
    def digest(self) -> str:
        """A short text that is the same for equal constants."""
        return hashlib.sha256(json.dumps(self.constants).encode()).hexdigest()[:16]

    def name_of(self, place: int) -> str:
        """Return the name of a feature, as it may be shown."""
        if self.names:
            return repr(self.names[place])[:NAME_SHOWN]
        return f"{self.kind.removesuffix('s')} {place}"

    def as_measured(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each feature before anything is done to it."""
        factor = self.divisor
        return tuple(factor * each for each in self.mean), tuple(factor * s for s in self.scale)

    def as_plain(self) -> dict[str, Any]:
        """Dictionaries, lists and numbers, which JSON holds exactly."""
        values = asdict(self)
        if self.targets is None:
            del values["targets"]
        else:
            found = {name: getattr(self.targets, name) for name in ("mean", "scale", "names")}
            values["targets"] = {name: list(each) for name, each in found.items()}
            values["targets"] |= {"own": True} if self.targets.own else {}
        if not self.classes:
            del values["classes"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def __str__(self) -> str:
        """One line for people."""
        count = len(self.mean)
        things = f"{count} {self.kind if count > 1 else self.kind.removesuffix('s')}"
        if self.is_identity:
            return f"{things}, as they were measured"
        divided = "" if self.divisor == 1 else f"divided by {self.divisor:g}, then "
        where = "; the graph does it itself, as its first step" if self.in_graph else ""
        return (
            f"{things}, {divided}standardised ({self.name_of(0)}: mean {self.mean[0]:.4g}, "
            f"deviation {self.scale[0]:.4g}{', …' if count > 1 else ''}){where}"
        )


def preprocessing_of(model: "nn.Module") -> Preprocessing | None:
    """Return the scaling of the rows that `model` was trained on; None if it is not known."""
    from torch import fx

    found = vars(model).get(ATTRIBUTE)
    if found is None and isinstance(model, fx.GraphModule):
        found = model.meta.get(ATTRIBUTE)
    return found if isinstance(found, Preprocessing) else None


def targets_of(model: "nn.Module") -> Targets | None:
    """Return the scaling of the numbers that `model` predicts; None without one, or for classes."""
    known = preprocessing_of(model)
    return None if known is None else known.targets


def set_preprocessing(model: "nn.Module", preprocessing: Preprocessing | None) -> None:
    """Note how the rows are scaled that `model` works on."""
    from torch import fx

    vars(model)[ATTRIBUTE] = preprocessing
    if isinstance(model, fx.GraphModule):
        model.meta[ATTRIBUTE] = preprocessing  # a copy of a GraphModule keeps no attributes


def from_plain(plain: object, where: object) -> Preprocessing | None:
    """Read what `as_plain` gave, or None; a file may hold anything, so everything is checked.

    Args:
        where: the file, for the error message.
    """
    if plain is None:
        return None
    try:
        if not isinstance(plain, Mapping):
            raise DataError("it is not a table")
        for key in plain:
            if key not in Preprocessing.__dataclass_fields__:
                raise DataError(f"unknown key {key!r:.40}")
        return parse(Preprocessing, plain, "its entries")
    except ChopError as error:
        raise CheckpointError(f"{where}: its preprocessing makes no sense: {error}") from None


def _keep_constants(owner: Preprocessing | Targets, kind: str, divisor: float = 1.0) -> None:
    """Check the means, scales and names of columns, and hold the numbers as float32 does."""
    for name in ("mean", "scale"):
        values = tuple(_single(value, name) for value in getattr(owner, name))
        object.__setattr__(owner, name, values)
    object.__setattr__(owner, "names", tuple(str(name) for name in owner.names))
    if not owner.mean or len(owner.mean) != len(owner.scale):
        raise DataError(
            f"preprocessing: {len(owner.mean)} means and {len(owner.scale)} scales of {kind}; give "
            "one of each for every column"
        )
    if owner.names and len(owner.names) != len(owner.mean):
        raise DataError(f"preprocessing: {len(owner.names)} names for {len(owner.mean)} means")
    if min(*owner.scale, divisor) <= 0:
        raise DataError("preprocessing: a scale or divisor is not above 0 in float32")


def _single(value: float, name: str) -> float:
    """A number as float32 holds it."""
    try:
        single: float = struct.unpack("f", struct.pack("f", float(value)))[0]
    except (OverflowError, TypeError, ValueError):
        single = math.nan
    if not math.isfinite(single):
        raise DataError(
            f"preprocessing: {name} has {value!r:.40}, which is not a number of float32"
        )
    return single
