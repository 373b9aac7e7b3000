"""The training loop: every network that this package trains runs through it.

A `Loop` takes the steps of an epoch. All else is a `Part` that is given to it and called at fixed
moments: learning rates, the cost of bits, validation, reports, checkpoints, the end by patience.
A `TrainingEngine` computes a step; one with several devices or mixed precision is in
`distributed`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn, optim

from chop.errors import DataError
from chop.models.weights import OURS, load_weights
from chop.nn.quantizers import loss_terms
from chop.training.batches import Batch, groups
from chop.training.checkpoint import (
    LIGHTNING_VERSION,
    Resumed,
    random_state,
    restore_random_state,
    write_checkpoint,
)
from chop.training.optimisers import OWN_RATE, restore, step_function

CHUNK_STEPS = 64
"""Steps between two looks at the losses, which wait for the device."""

Loss = Callable[[Tensor, Tensor], Tensor]
Outcome = tuple[Tensor, ...]
"""The loss of a step, and what the loop is asked to keep of its last batch."""
Call = TypeVar("Call", bound=Callable[..., Any])


class BatchSource(Protocol):
    """Rows to train on."""

    def batches(self, epoch: int, model: nn.Module) -> Iterator[Batch]:
        """The batches of an epoch."""

    @property
    def steps(self) -> int | None:
        """The batches of an epoch, if their number is known."""


class TrainingEngine:
    """Computes steps in this process, on one device, in single or double precision."""

    rank, processes = 0, 1

    def __init__(self, device: torch.device, *, double: bool = False) -> None:
        self.device, self.double = device, double

    def place(self, model: nn.Module) -> None:
        """Move a model to where it is trained, in the precision that it is trained in."""
        model.to(self.device)
        if self.double:
            model.double()

    def start(self, model: nn.Module, optimiser: optim.Optimizer) -> None:
        """Make ready to take steps."""
        self.model, self.step = model, step_function(optimiser)

    def computing(self, function: Call) -> Call:
        """The function with what it computes in the right precision."""
        if not self.double:
            return function

        def in_double(*args: Any) -> Any:
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                return function(*args)
            finally:
                torch.set_default_dtype(before)

        return in_double  # type: ignore[return-value]  # it is called in the same way

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return value

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the buffers of the first."""

    def share_ranges(self, low: Sequence[Tensor], high: Sequence[Tensor]) -> None:
        """Give all processes the lowest and the highest values that any of them has."""

    def state_dict(self) -> dict[str, Any]:
        """Entries of a checkpoint."""
        return {}

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the entries of a checkpoint."""


class Part:
    """Something that is given to a loop. A subclass defines the moments that it needs."""

    key = ""
    """The name of its state in a checkpoint; without one it has no state."""
    section = "callbacks"
    """The table of the checkpoint that its state is in."""

    def begin_epoch(self, loop: "Loop") -> None:
        """Called before the first step of an epoch."""

    def begin_step(self, loop: "Loop") -> None:
        """Called before each step."""

    def see(self, features: Tensor) -> None:
        """Called with the features of each batch."""

    def loss_terms(self) -> list[Callable[[], Tensor]]:
        """Functions whose results are added to the loss of each batch."""
        return []

    def end_step(self, loop: "Loop", outcome: Outcome) -> None:
        """Called after each step."""

    def look(self, loop: "Loop", outcomes: Sequence[Outcome]) -> None:
        """Called now and then with the outcomes of all steps since the last call."""

    def end_epoch(self, loop: "Loop") -> None:
        """Called after the steps of an epoch; parts are called in their order."""

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an interrupted run."""


@dataclass(eq=False)
class Loop:
    """Trains a network, epoch by epoch.

    Args:
        loss: of outputs and targets.
        parts: called in this order.
        engine: by default one for the device that the model is on.
        keep: gives what is kept of the outputs and targets of a step.
        facts: gives further entries of a checkpoint.
        accumulate: batches of one optimiser step.
        step_limit: steps after which training ends.

    Attributes:
        epoch: the epoch that is trained, or the next one, counted from 0.
        step: the optimiser steps that were taken.
        expected_steps: the steps that are left of an epoch when it begins, if known.
        is_cut_short: whether the limit on steps has ended the epoch before its last batch.
        has_ended: whether a part or the limit on steps has ended the training.
        metrics: the figures of the epoch that parts share.
    """

    model: nn.Module
    optimiser: optim.Optimizer
    source: BatchSource
    loss: Loss
    parts: Sequence[Part]
    engine: TrainingEngine = None  # type: ignore[assignment]  # see __post_init__
    keep: Callable[[Tensor, Tensor], Outcome] | None = None
    facts: Callable[[], dict[str, Any]] = dict
    accumulate: int = 1
    step_limit: int | None = None
    epoch: int = field(default=0, init=False)
    step: int = field(default=0, init=False)
    steps_into_epoch: int = field(default=0, init=False)
    expected_steps: int | None = field(default=None, init=False)
    is_cut_short: bool = field(default=False, init=False)
    has_ended: bool = field(default=False, init=False)
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    _resumed: Resumed | None = field(default=None, init=False)
    _epoch_state: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.engine = self.engine or TrainingEngine(next(self.model.parameters()).device)

    def run(self, epochs: int) -> None:
        """Train until so many epochs are done, or until something ends it."""
        while self.epoch < epochs and not self.has_ended:
            self.run_epoch()

    def run_epoch(self) -> None:
        """Train for an epoch, then call the parts."""
        self.metrics = {}
        self.train_epoch()
        for part in self.parts:
            part.end_epoch(self)
        self.epoch += 1

    def train_epoch(self) -> None:
        """Take the steps of an epoch."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            with resumed.fitting("state of random numbers"):
                restore_random_state(resumed.ours["epoch_random_state"])
        self._epoch_state = random_state()
        steps = groups(self.source.batches(self.epoch, self.model), self.accumulate)
        self.steps_into_epoch = 0 if resumed is None else skip_done(resumed, steps)
        left = None if self.step_limit is None else self.step_limit - self.step
        self.expected_steps = self._expected_columns(left)
        self.model.train()
        for part in self.parts:
            part.begin_epoch(self)
        taken = self._take(islice(steps, left))
        self.has_ended = self.has_ended or left == taken
        self.is_cut_short = left == taken and next(steps, None) is not None
        if not self.is_cut_short:
            self.steps_into_epoch = 0

    def _expected_columns(self, left: int | None) -> int | None:
        batches = self.source.steps
        if batches is None:
            return left
        expected = -(-batches // self.accumulate) - self.steps_into_epoch
        return expected if left is None else min(expected, left)

    def _take(self, steps: Iterator[list[Batch]]) -> int:
        """Take all `steps`, and return how many; outcomes are looked at only now and then."""
        begin, end, look = map(self._methods, ("begin_step", "end_step", "look"))
        take_step = self._step_function()
        first = self.step
        unseen: list[Outcome] = []
        for group in steps:
            for call in begin:
                call(self)
            outcome = take_step(group)
            unseen.append(outcome)
            self.step += 1
            self.steps_into_epoch += 1
            for call in end:
                call(self, outcome)
            if len(unseen) == CHUNK_STEPS:
                for call in look:
                    call(self, unseen)
                unseen = []
        if self.step == first:
            raise DataError(
                "there are no batches to train on; batch normalisation needs two rows in each"
            )
        for call in look if unseen else ():
            call(self, unseen)
        return self.step - first

    def _methods(self, name: str) -> list[Callable[..., None]]:
        """The methods of this name that parts define."""
        defines = [p for p in self.parts if getattr(type(p), name) is not getattr(Part, name)]
        return [getattr(part, name) for part in defines]

    def _step_function(self) -> Callable[[list[Batch]], Outcome]:
        """A function that takes one optimiser step, with nothing looked up twice."""
        engine, optimiser, keep = self.engine, self.optimiser, self.keep
        engine.start(self.model, optimiser)
        backward, finish = engine.backward, engine.step
        parameters = [value for group in optimiser.param_groups for value in group["params"]]
        terms = loss_terms(self.model) + [t for part in self.parts for t in part.loss_terms()]
        compute = engine.computing(loss_function(engine.model, self.loss, terms))
        see = self._methods("see")

        def take_step(group: list[Batch]) -> Outcome:
            for value in parameters:
                value.grad = None
            losses = []
            for features, labels in group:
                for call in see:
                    call(features)
                loss, outputs = compute(features, labels)
                loss = loss if len(group) == 1 else loss / len(group)
                backward(loss)
                losses.append(loss.detach())
            finish()
            mean = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
            return (mean,) if keep is None else (mean, *keep(outputs.detach(), labels))

        return take_step

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on, in the layout of a Lightning checkpoint."""
        content: dict[str, Any] = {
            "epoch": self.epoch,
            "global_step": self.step,
            LIGHTNING_VERSION: version("lightning"),
            "state_dict": {f"model.{name}": v for name, v in self.model.state_dict().items()},
            "callbacks": {},
            "optimizer_states": [self.optimiser.state_dict()],
            "lr_schedulers": [],
            OURS: {
                **self.facts(),
                "random_state": (now := random_state()),
                "steps_into_epoch": self.steps_into_epoch,
                "epoch_random_state": self._epoch_state if self.steps_into_epoch else now,
            },
            **self.engine.state_dict(),
        }
        for part in self.parts:
            if part.key:
                content[part.section][part.key] = part.state_dict()
        return content

    def restore(self, resumed: Resumed) -> None:
        """Continue where a checkpoint was written."""
        load_trained(self.model, resumed)
        with resumed.fitting("optimiser"):
            restore(self.optimiser, resumed.checkpoint["optimizer_states"][0])
        restore_parts(self.parts, resumed)
        self.epoch, self.step, self._resumed = resumed.epoch, resumed.step, resumed
        self.engine.load_state_dict(resumed.checkpoint)

    def save(self, path: Path) -> None:
        """Write a checkpoint; of several processes only the first does."""
        if self.engine.rank == 0:
            write_checkpoint(path, self.state_dict())


class StepRates(Part):
    """Learning rates that change with every step.

    Args:
        factor: what the rates are multiplied by; of the epoch, the step in it, and its steps.
    """

    def __init__(self, factor: Callable[[int, int, int], float]) -> None:
        self.factor = factor

    def begin_step(self, loop: Loop) -> None:
        share = self.factor(loop.epoch, loop.steps_into_epoch, loop.source.steps or 1)
        for group in loop.optimiser.param_groups:
            group["lr"] = group[OWN_RATE] * share


def loss_function(
    model: nn.Module, loss_of: Loss, terms: Sequence[Callable[[], Tensor]]
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A function that returns the loss of a batch, with all terms, and the outputs."""

    def compute(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = model(features)
        loss = loss_of(outputs, targets)
        for term in terms:
            loss = loss + term()
        return loss, outputs

    return compute


def skip_done(resumed: Resumed, steps: Iterator[list[Batch]]) -> int:
    """Go to where an interrupted run was in its epoch; return the steps that are done already."""
    done = resumed.steps_into_epoch
    if done:
        next(islice(steps, done - 1, done))
        with resumed.fitting("state of random numbers"):
            restore_random_state(resumed.ours["random_state"])
    return done


def load_trained(model: nn.Module, resumed: Resumed) -> None:
    """Load the weights of an interrupted run."""
    weights = resumed.checkpoint["state_dict"]
    load_weights(nn.ModuleDict({"model": model}), weights, str(resumed.path))


def restore_parts(parts: Sequence[Part], resumed: Resumed) -> None:
    """Restore the state of every part that has one."""
    for part in parts:
        table = resumed.checkpoint[part.section]
        if part.key and (part.key in table or part.section == OURS):
            name = part.key.partition("{")[0].replace("_", " ")
            with resumed.fitting(f"state of {name}"):
                part.load_state_dict(table[part.key])
