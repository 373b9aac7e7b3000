"""Any batches and any module as the actions take them: pairs of tensors in, one tensor out."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, DataError
from chop.ir.graph.recorder import preserve_model
from chop.logger import get_logger
from chop.tasks import IGNORED, Task, task_named
from chop.verbs.common.session import task_of_rows

logger = get_logger("chop")
LABELS = ("labels", "label", "targets", "target", "y")
"""What a dictionary calls its labels."""
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How classes of transformers end whose labels are the inputs themselves, to be shifted."""
HALF = (torch.float16, torch.bfloat16)
RAW = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)


@contextlib.contextmanager
def one_line(verb: str) -> Iterator[None]:
    """Turn an error of torch, of a model or of a loader into one line that names it."""
    try:
        yield
    except RAW as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(f"{verb}: model and rows do not fit together: {reason}") from error


PROJECTS = "mase_output"
OTHER_WORDS = {
    "epochs": "max_epochs",
    "layers": "rule",
    "load": "load_name",
    "nodes": "num_nodes",
    "num_devices": "devices",
    "number_format": "format",
    "trainer_precision": "precision",
    "training_optimizer": "optimizer",
}
"""Settings that have two names: those of the command line are all understood."""


def module_project(project: str | Path | None, model: nn.Module) -> Path:
    """The folder of a project: as it was given, else ``mase_output/<class of the model>``."""
    return Path(project) if project is not None else Path(PROJECTS) / type(model).__name__


def module_of(model: Any, caller: str) -> nn.Module:
    """A module itself, or that of what `chop.quantize` and `chop.search` give."""
    found = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(found, nn.Module):
        raise ConfigError(f"{caller} takes a torch.nn.Module, not {type(model).__name__}")
    return found


def in_one_word(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under one name each; None is not given, and twice is a mistake."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        word = OTHER_WORDS.get(name, name)
        if value is None:
            continue
        if word in found:
            other = next(each for each, known in OTHER_WORDS.items() if known == word)
            raise ConfigError(f"{verb}: {word} and {other} are the same: give one of them")
        found[word] = value
    return found


def splits(**given: Any) -> dict[str, Any]:
    """The loaders that were given, by the names of their splits."""
    return {name: loader for name, loader in given.items() if loader is not None}


def labels_in(batch: Mapping[str, Any]) -> str:
    """Return the name that a dictionary has for its labels."""
    named = [name for name in LABELS if name in batch]
    if not named:
        raise DataError(
            f"a batch has no labels: it has {', '.join(map(str, batch))}, and one of "
            f"{', '.join(LABELS)} is wanted"
        )
    return named[0]


def split_batch(batch: Any) -> tuple[dict[str, Tensor], Any]:
    """Return the inputs of a batch by name, a single one without, and its labels."""
    inputs: Mapping[str, Any]
    if isinstance(batch, Mapping):
        name = labels_in(batch)
        inputs, labels = {key: each for key, each in batch.items() if key != name}, batch[name]
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        first, labels = batch
        inputs = dict(first) if isinstance(first, Mapping) else {"": first}
    else:
        raise DataError(
            "a batch must be a pair (inputs, labels) or a dictionary with labels, not "
            f"{type(batch).__name__}"
        )
    kinds = [type(each).__name__ for each in (*inputs.values(), labels)]
    if not inputs or set(kinds) - {"Tensor", "Parameter"}:
        raise DataError(f"inputs and labels of a batch must be tensors, not {', '.join(kinds)}")
    return dict(inputs), labels


def pack_inputs(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the inputs as one tensor: a single one itself, several on top of each other."""
    if len(inputs) == 1:
        return next(iter(inputs.values()))
    shapes = {tuple(each.shape) for each in inputs.values()}
    whole = {not each.is_floating_point() for each in inputs.values()}
    if len(shapes) > 1 or len(whole) > 1:
        found = ", ".join(f"{name} {tuple(each.shape)}" for name, each in inputs.items())
        raise DataError(f"several inputs of a batch must have one shape and kind, not {found}")
    return torch.stack([each.long() if True in whole else each for each in inputs.values()], 1)


@dataclass(frozen=True)
class Pairs:
    """The batches of a loader as pairs of tensors, each time that it is iterated over.

    Args:
        names: of the inputs, in the order in which they are packed.
        shifted: labels are the inputs, and each token is to be told from those before it.
        dtype: of real numbers.
    """

    loader: Any
    names: tuple[str, ...]
    shifted: bool = False
    dtype: torch.dtype | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.pair(batch) for batch in self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def batch_size(self) -> int | None:
        """The rows in a full batch, if the loader says."""
        size = getattr(self.loader, "batch_size", None)
        return size if isinstance(size, int) else None

    def pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the inputs of a batch as one tensor, and its labels."""
        inputs, labels = split_batch(batch)
        if missing := [name for name in self.names if name not in inputs]:
            raise DataError(f"a batch lacks {missing[0]!r}, which the first batch had")
        features = pack_inputs({name: inputs[name] for name in self.names})
        if self.dtype is not None and features.is_floating_point():
            features = features.to(self.dtype)
        if self.shifted:
            labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], 1)
        return features, labels


class OneInput(nn.Module):
    """A module with one tensor in and one out; files have the names of the module itself.

    Args:
        names: of the inputs that the tensor is made of; none gives it as it is.
        taken: what is taken of what the module gives, as `part_with_scores` says it.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], taken: str) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.taken = taken
        self.register_load_state_dict_pre_hook(rename_weights)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores alone; nothing is asked of a tensor, so that this can be traced."""
        if not self.names:
            outputs = self.model(x)
        elif len(self.names) == 1:
            outputs = self.model(**{self.names[0]: x})
        else:
            outputs = self.model(**{name: x[:, at] for at, name in enumerate(self.names)})
        found: Tensor = TAKES[self.taken](outputs)
        return found

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.state_dict(*args, **kwargs)


def rename_weights(module: nn.Module, stored: dict[str, Any], prefix: str, *more: Any) -> None:
    """Give stored weights of a module the names that they have inside `OneInput`."""
    for name in [name for name in stored if name.startswith(prefix)]:
        stored[f"{prefix}model.{name.removeprefix(prefix)}"] = stored.pop(name)


WHOLE = "all of it"
TAKES: dict[str, Callable[[Any], Any]] = {
    WHOLE: lambda outputs: outputs,
    "the key logits": lambda outputs: outputs["logits"],
    "the attribute logits": lambda outputs: outputs.logits,
    "the first": lambda outputs: outputs[0],
}
"""The parts of what modules give that can be their scores, in the order in which they are tried."""


def part_with_scores(outputs: Any) -> str:
    """Return which part of what a module gives is a tensor of scores."""
    for name, take in TAKES.items():
        with contextlib.suppress(AttributeError, KeyError, *RAW):
            if isinstance(take(outputs), Tensor):
                return name
    raise DataError(f"the model gives a {type(outputs).__name__}, neither a tensor nor logits")


@dataclass(frozen=True)
class Prepared:
    """A module and loaders as the actions take them, and the task that labels tell."""

    model: nn.Module
    rows: Any
    task: Task


def adapt(model: nn.Module, rows: Any, task: str | None, *, cast: bool = False) -> Prepared:
    """Return module and loaders as they are where actions can take them, else with an adapter.

    Args:
        rows: loaders by split, or a data module.
        cast: give real numbers the precision of the model here, as the action will not.
    """
    found = task_of_rows(rows)  # which refuses what is not a loader
    chosen = found if task is None else task_named(task)
    if not isinstance(rows, Mapping):
        return Prepared(model, rows, chosen)
    first = first_batch(next(iter(rows.values())))
    inputs, _ = split_batch(first)
    features = pack_inputs(inputs)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    names = () if "" in inputs else tuple(inputs)
    taken = part_with_scores(try_outputs(model, inputs, dtype))
    adapted = OneInput(model, names, taken) if names or taken != WHOLE else model
    is_other = cast and features.is_floating_point() and features.dtype != dtype
    if not (names or is_other):
        return Prepared(adapted, rows, chosen)
    shifted = isinstance(first, Mapping) and type(model).__name__.endswith(CAUSAL)
    kind = dtype if cast else None
    pairs = {s: Pairs(each, names or ("",), shifted, kind) for s, each in rows.items()}
    return Prepared(adapted, pairs, chosen if task is not None else task_of_rows(pairs))


def first_batch(loader: Any) -> Any:
    """Return the first batch of a loader; random numbers stay as they were."""
    with torch.random.fork_rng(devices=[]):
        first = next(iter(loader), None)
    if first is None:
        raise DataError("there are no rows: a loader gave no batch")
    return first


def try_outputs(model: nn.Module, inputs: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    """Return what a module gives for the first rows of a batch, which stays as it is.

    What it cannot take is left to the action, which says what is wrong; it gets a tensor here.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    few = {
        name: each[:2].detach().clone().to(device, dtype if each.is_floating_point() else None)
        for name, each in inputs.items()
    }
    with contextlib.suppress(*RAW), preserve_model(model):
        return model(few[""]) if "" in few else model(**few)
    return torch.zeros(())


def searchable(model: nn.Module) -> nn.Module:
    """Return a module in whose precision formats can be simulated: half precision is too short."""
    if any(each.dtype in HALF for each in model.parameters()):
        logger.info("The network has half precision; it is searched in 32 bits")
        return copy.deepcopy(model).float()
    return model


def in_full(model: nn.Module, verb: str) -> None:
    """Refuse a module in half precision, which has too few digits to be trained alone."""
    if any(each.dtype is torch.float16 for each in model.parameters()):
        raise ConfigError(
            f"{verb}: weights in float16 have too few digits to learn: give model.float() and "
            "precision='bf16-mixed', or model.bfloat16()"
        )
