"""Parts of a training: rates, validation, reports, checkpoints, patience, widths that learn."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, TrainingError
from chop.models.weights import OURS
from chop.nn.bit_cost import learns_widths
from chop.nn.learned import LearnedWidths
from chop.numerics.trained import Codes, TrainedQuantizer, codes_per_unit
from chop.runs import BEST_CHECKPOINT, LAST_CHECKPOINT, with_suffix
from chop.training.batches import Epochs, SharedRows, move_batches
from chop.training.loop import Loop, Outcome, Part
from chop.training.metrics import evaluating, score, tally
from chop.training.optimisers import decays_too_fast, learning_rate, set_learning_rates
from chop.training.report import Report
from chop.training.settings import TrainingSettings

LEAST_BITS = 4
"""Bits that the largest magnitude of a tensor has at the start, or more."""


VALIDATION_LOSS, TRAIN_LOSS = "val_loss_epoch", "train_loss_epoch"


class EpochRates(Part):
    """Learning rates that change from epoch to epoch, as the settings say."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings

    def begin_epoch(self, loop: Loop) -> None:
        set_learning_rates(loop.optimiser, self.settings, loop.epoch)


class Reporting(Part):
    """Checks losses, and shows and logs what happens."""

    def __init__(self, report: Report, settings: TrainingSettings) -> None:
        self.report, self.settings = report, settings

    def begin_epoch(self, loop: Loop) -> None:
        self.report.start_epoch(loop.epoch, loop.expected_steps)

    def end_step(self, loop: Loop, outcome: Outcome) -> None:
        if loop.step % self.settings.log_every_n_steps == 0:
            self.report.log_step(loop.step, _triple(outcome), _rates(loop))

    def look(self, loop: Loop, outcomes: Sequence[Outcome]) -> None:
        losses, logits, labels = zip(*outcomes, strict=True)
        together = torch.stack(losses).double()  # one tensor of all steps is quick to handle
        total = loop.engine.total(together.sum())
        if not bool(total.isfinite()):
            wrong = [*(~together.isfinite()).nonzero().flatten().tolist(), len(losses) - 1]
            step = loop.step - len(losses) + 1 + wrong[0]
            raise TrainingError(
                f"the loss is not a finite number at step {step} (epoch {loop.epoch}): "
                f"{likely_cause(loop, self.settings)}"
            )
        mean_score = score(torch.cat(logits), torch.cat(labels), self.report.targets)
        self.report.advance(len(losses), float(together.mean()), float(mean_score))
        self._last = outcomes[-1]

    def end_epoch(self, loop: Loop) -> None:
        self.report.end_training(_triple(self._last))
        self.report.add_evaluation(dict(loop.metrics), loop.step)
        self.report.end_epoch(loop.step, learning_rate(self.settings, loop.epoch))
        total = loop.engine.total(torch.tensor(self.report.mean_loss))
        loop.metrics[TRAIN_LOSS] = float(total) / loop.engine.processes


def _triple(outcome: Outcome) -> tuple[Tensor, Tensor, Tensor]:
    loss, logits, labels = outcome
    return loss, logits, labels


def _rates(loop: Loop) -> dict[str, float]:
    """The learning rates under the names that Lightning's monitor gives them."""
    name, groups = f"lr-{type(loop.optimiser).__name__}", loop.optimiser.param_groups
    if len(groups) == 1:
        return {name: groups[0]["lr"]}
    return {
        f"{name}/{group.get('name', f'pg{number}')}": group["lr"]
        for number, group in enumerate(groups, 1)
    }


class Validation(Part):
    """Evaluates the network on all validation rows after each epoch."""

    def __init__(self, rows: Epochs, report: Report, settings: TrainingSettings) -> None:
        self.rows, self.report, self.settings = rows, report, settings

    def end_epoch(self, loop: Loop) -> None:
        engine, model = loop.engine, loop.model
        batches = move_batches(self.rows.batches(0, engine.rank, engine.processes), model)
        with evaluating(model), torch.inference_mode():
            counted = engine.computing(tally)(model, batches, self.report.targets)
        counted.share(engine.total)
        result = counted.result()
        if not math.isfinite(result.loss):
            raise TrainingError(
                f"the validation loss is {result.loss} after epoch {loop.epoch} "
                f"(step {loop.step}): {likely_cause(loop, self.settings)}"
            )
        loop.metrics |= result.figures("val")


def likely_cause(loop: Loop, settings: TrainingSettings) -> str:
    """The most likely reason why a loss is not a finite number."""
    assert isinstance(loop.source, SharedRows)
    for features, labels in loop.source.epochs.batches(loop.epoch):
        if not bool(features.isfinite().all()):
            return "the inputs hold NaN or infinite values; clean the data"
        if not bool(labels.isfinite().all()):
            return "the targets hold NaN or infinite values; clean the data"
    if settings.precision == "16-mixed":
        return "numbers overflow in half precision; try precision 32"
    rate = max(group["lr"] for group in loop.optimiser.param_groups)
    if decays_too_fast(settings, rate):
        return f"the weight decay {settings.weight_decay:g} is most likely too high"
    return f"the learning rate {rate:g} is most likely too high; try {rate / 10:g}"


class EpochLoss(Part):
    """Checks the mean loss of each epoch, and all weights after it.

    Args:
        reason: the message if one of them is not a finite number in an epoch.
    """

    def __init__(self, reason: Callable[[int], str]) -> None:
        self.reason = reason
        self._losses: list[Tensor] = []

    def look(self, loop: Loop, outcomes: Sequence[Outcome]) -> None:
        self._losses += [outcome[0] for outcome in outcomes]

    def mean(self) -> float:
        """The mean loss of the epoch."""
        return float(torch.stack(self._losses).mean())

    def end_epoch(self, loop: Loop) -> None:
        loss, self._losses = self.mean(), []
        weights = loop.model.parameters()
        if not math.isfinite(loss) or not all(bool(each.isfinite().all()) for each in weights):
            raise TrainingError(self.reason(loop.epoch))
        loop.metrics["loss"] = loss


class SharedBuffers(Part):
    """Gives all processes the buffers of the first, which are saved: each has seen other rows."""

    def end_epoch(self, loop: Loop) -> None:
        loop.engine.share_buffers(loop.model)


def monitored_loss(loop: Loop, name: str) -> float:
    """A loss of this epoch in the precision of the training: smaller differences do not count."""
    dtype = torch.float64 if loop.engine.double else torch.float32
    return float(torch.tensor(loop.metrics[name], dtype=dtype))


class EarlyStopping(Part):
    """Ends the training when a loss has not fallen for some epochs."""

    def __init__(self, monitor: str, patience: int) -> None:
        self.monitor, self.patience = monitor, patience
        self.key = f"EarlyStopping{{'monitor': {monitor!r}, 'mode': 'min'}}"
        self.best, self.waited, self.stopped = math.inf, 0, 0

    @property
    def is_over(self) -> bool:
        """Return whether the patience is used up."""
        return self.waited >= self.patience

    def end_epoch(self, loop: Loop) -> None:
        loss = monitored_loss(loop, self.monitor)
        self.best, self.waited = (loss, 0) if loss < self.best else (self.best, self.waited + 1)
        if self.is_over:
            self.stopped, loop.has_ended = loop.epoch, True

    def state_dict(self) -> dict[str, Any]:
        return {
            "wait_count": self.waited,
            "stopped_epoch": self.stopped,
            "best_score": torch.tensor(self.best),
            "patience": self.patience,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.waited, self.stopped = int(state["wait_count"]), int(state["stopped_epoch"])
        self.best = float(state["best_score"])


class SaveLast(Part):
    """Saves every epoch in the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def end_epoch(self, loop: Loop) -> None:
        loop.save(self.path)


class BestAndLast(Part):
    """Saves every epoch as `last`, and as `best` when the monitored loss is the lowest so far."""

    key = "BestAndLast"

    def __init__(self, folder: Path, suffix: str, monitor: str) -> None:
        self.best = with_suffix(folder / BEST_CHECKPOINT, suffix)
        self.last = with_suffix(folder / LAST_CHECKPOINT, suffix)
        self.monitor = monitor
        self.best_loss = math.inf

    def end_epoch(self, loop: Loop) -> None:
        loss = monitored_loss(loop, self.monitor)
        if loss < self.best_loss:
            self.best_loss = loss
            loop.save(self.best)
        loop.save(self.last)

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best_loss = float(state.get("best_loss", math.inf))


def check_cost(model: nn.Module, settings: TrainingSettings) -> None:
    """Refuse a cost for a network that has no bits to save."""
    if settings.cost is not None and not learns_widths(model):
        raise ConfigError(
            "[train.cost]: nothing in this network learns its widths, so no cost can change them: "
            "quantise it to the format 'integer_trained' first"
        )


class WidthTraining(Part):
    """Trains the widths of a network with its weights.

    In training nothing saturates and ranges only follow the values, so they are calibrated before
    the network is evaluated.

    Args:
        weight: what one EBOP adds to the loss in an epoch.
        calibration_batches: if not 0, ranges are calibrated on so many of the last batches at the
            end of each epoch.
    """

    key, section = "learned_widths", OURS

    def __init__(
        self,
        model: nn.Module,
        refresh: int,
        magnitude: float,
        weight: Callable[[int], float],
        calibration_batches: int = 0,
    ) -> None:
        self.widths = LearnedWidths(model, refresh, magnitude)
        self.weight = weight
        self.start_ebops = 0.0
        """The cost before anything is learned, if it was estimated."""
        self._now = 0.0
        self._recent: deque[Tensor] = deque(maxlen=calibration_batches)
        """Features of the last batches."""
        self._followed: list[Tensor] | None = None
        """The ranges of an epoch that was cut short, which it resumes with."""

    @property
    def ebops(self) -> float:
        """The last estimate of the effective bit operations."""
        return float(self.widths.value)

    def begin_epoch(self, loop: Loop) -> None:
        self._now = self.weight(loop.epoch)

    def see(self, features: Tensor) -> None:
        self._recent.append(features)

    def loss_terms(self) -> list[Callable[[], Tensor]]:
        widths, weight = self.widths, self._now
        return [lambda: widths.cost * weight] if weight else []

    def end_step(self, loop: Loop, outcome: Outcome) -> None:
        if self.widths.due:
            self._share_ranges(loop)

    @torch.no_grad()
    def _share_ranges(self, loop: Loop) -> None:
        """Let ranges be those of the rows of all processes, so that bits cost the same in each."""
        data = self.widths.parts.data
        loop.engine.share_ranges([each.lo for each in data], [each.hi for each in data])

    def end_epoch(self, loop: Loop) -> None:
        cut_short = loop.is_cut_short
        self._followed = [bound.clone() for bound in self._ranges()] if cut_short else None
        if not cut_short:
            self.widths.clamp()
        if self._recent:
            self.widths.calibrate(self._recent)
            self._share_ranges(loop)
            self._recent.clear()
        loop.metrics["ebops_estimate"] = self.ebops

    def state_dict(self) -> dict[str, Any]:
        state = {"widths": self.widths.state_dict(), "followed": self._followed}
        return {**state, "start_ebops": self.start_ebops}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.widths.load_state_dict(state["widths"])
        self.start_ebops = float(state.get("start_ebops", 0.0))
        if state["followed"] is not None:
            with torch.no_grad():
                for bound, value in zip(self._ranges(), state["followed"], strict=True):
                    bound.copy_(value)

    def _ranges(self) -> list[Tensor]:
        return [bound for each in self.widths.parts.data for bound in (each.lo, each.hi)]

    @torch.no_grad()
    def widen(self, sample: Iterable[Tensor]) -> None:
        """Give small numbers enough bits to begin with, and calibrate ranges.

        The same number of bits after the point may be right for one network and round all weights
        of a wider one, or its data, to zero. What a layer gives is known once those before it give
        something, so this goes through the network until nothing changes.
        """
        for weight in self.widths.parts.weights:
            _raise_bits(weight.quantizer, weight.value)
        data = self.widths.parts.data
        for _ in range(len(data) + 1):
            self.widths.calibrate(sample)
            risen = [_raise_bits(each, torch.stack([each.lo, each.hi])) for each in data]
            if not any(risen):
                break
        self.start_ebops = self.estimate()

    def estimate(self) -> float:
        """The EBOPs as the widths and the ranges stand; never less than the exact count."""
        weights = self.widths.parts.weights
        scales = [codes_per_unit(weight.quantizer.frac_width) for weight in weights]
        codes = [Codes()(w.value.detach(), scale) for w, scale in zip(weights, scales, strict=True)]
        self.widths.count([c / s for c, s in zip(codes, scales, strict=True)], scales)
        return self.ebops

    def check(self, loss: Tensor) -> None:
        """Refuse a network of which some width cannot learn from a loss; only gradients change."""
        loss.backward()  # type: ignore[no-untyped-call]
        bits = self.widths.parameters_of_bits()
        if not bool(loss.isfinite()) or any(each.grad is None for each in bits):
            raise TrainingError("the loss is not a finite number, or some width gets no gradient")
        if not self.start_ebops > 0:
            raise TrainingError("its multiplications cost nothing from the start: give more bits")


def _raise_bits(quantizer: TrainedQuantizer, values: Tensor) -> bool:
    """Raise the bits after the point until the largest of `values` has enough; true if any rose."""
    largest = float(values.abs().max())
    if largest == 0:
        return False
    wanted = float(LEAST_BITS - math.frexp(largest)[1])
    has_risen = bool((quantizer.frac_width < wanted).any())
    quantizer.frac_width.clamp_(min=wanted)
    quantizer.highest = max(quantizer.highest, wanted)
    return has_risen
