"""A network as Lightning trains it, with the loop over the batches written out."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, distributed, nn, optim

from chop.errors import DataError, TrainingError
from chop.models.weights import OURS, PREPROCESSING
from chop.nn.quantizers import loss_terms
from chop.preprocessing import preprocessing_of, targets_of
from chop.tasks import task_of
from chop.training.batches import Batch, Epochs, groups, moved, normalisable
from chop.training.metrics import kept, misfit, score, tally
from chop.training.optimisers import (
    decays_too_fast,
    learning_rate,
    make_optimiser,
    restore,
    set_learning_rates,
    step_function,
)
from chop.training.report import Outcome, Report
from chop.training.results import Result
from chop.training.settings import TrainingSettings
from chop.training.state import (
    WIDTHS,
    Resumed,
    plain,
    random_state,
    restore_random_state,
    versions,
)
from chop.training.widths import widths_of_run

VALIDATION_LOSS, TRAIN_LOSS = "val_loss_epoch", "train_loss_epoch"
CHUNK_STEPS = 64  # steps between two looks at the losses, the clock and the signals


class TrainingModule(LightningModule):
    """Trains and validates a network; `state_dict` names its weights ``model.…``."""

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        report: Report,
        resumed: Resumed | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.settings = settings
        self.report = report
        self._resumed = resumed
        self._widths = widths_of_run(model, settings)
        self._targets = report.targets = targets_of(model)
        self._steps_into_epoch = 0
        self._epoch_state: dict[str, Any] = {}

    def configure_optimizers(self) -> optim.Optimizer:
        optimiser = make_optimiser(self.model, self.settings)
        if self._resumed is not None:
            with self._resumed.put_back("optimiser"):
                restore(optimiser, self._resumed.checkpoint["optimizer_states"][0])
            if self._widths is not None:
                with self._resumed.put_back("state of learned widths"):
                    self._widths.load_state_dict(self._resumed.checkpoint[OURS][WIDTHS])
        return optimiser

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        known = preprocessing_of(self.model)
        checkpoint[OURS] = {
            "seed": self.settings.seed,
            "settings": self.settings.model_dump(),
            "record": plain(self.report.record),
            PREPROCESSING: known and known.as_plain(),
            "versions": versions(),
            "history": self.report.history,
            "random_state": (now := random_state()),
            "steps_into_epoch": self._steps_into_epoch,
            WIDTHS: None if self._widths is None else self._widths.state_dict(),
            "epoch_random_state": self._epoch_state if self._steps_into_epoch else now,
        }

    def training_step(self, epochs: Epochs, batch_idx: int) -> None:
        """Train for one epoch."""
        epoch = self.current_epoch
        set_learning_rates(self._optimiser, self.settings, epoch)
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            with resumed.put_back("state of random numbers"):
                restore_random_state(resumed.checkpoint[OURS]["epoch_random_state"])
        self._epoch_state = random_state()
        world = self.trainer.world_size
        # Shares are equal, so that all processes leave out the same batch if any does.
        batches = moved(epochs.batches(epoch, self.global_rank, world), self.model)
        batches = normalisable(batches, self.model)
        steps = groups(batches, self.settings.accumulate_grad_batches)
        done = 0 if resumed is None else skip_done(resumed, steps)
        left = self._steps_left()
        self.report.start_epoch(epoch, self._expected_steps(epochs, done, left))
        taken = self._train(islice(steps, left))
        cut_short = left == taken and next(steps, None) is not None
        if self._widths is not None:
            self._widths.end_epoch(cut_short=cut_short)
            self.report.evaluated({"ebops_estimate": self._widths.ebops}, self.global_step)
        share_buffers(self.model, world)
        self._steps_into_epoch = done + taken if cut_short else 0

    def _expected_steps(self, epochs: Epochs, done: int, left: int | None) -> int | None:
        batches = epochs.steps(self.trainer.world_size)
        if batches is None:
            return left
        expected = -(-batches // self.settings.accumulate_grad_batches) - done
        return expected if left is None else min(expected, left)

    def validation_step(self, epochs: Epochs, batch_idx: int) -> None:
        """Evaluate on all validation rows."""
        result = self._evaluate(epochs)
        if not math.isfinite(result.loss):
            raise TrainingError(
                f"the validation loss is {result.loss} after epoch {self.current_epoch} "
                f"(step {self.global_step}): {self._likely_cause()}"
            )
        self._record(result.figures("val"))

    def on_train_epoch_end(self) -> None:
        self.report.end_epoch(self.global_step, learning_rate(self.settings, self.current_epoch))
        self.log(TRAIN_LOSS, self.report.mean_loss, logger=False, batch_size=1, sync_dist=True)

    @property
    def _optimiser(self) -> optim.Optimizer:
        found = self.optimizers(use_pl_optimizer=False)
        assert isinstance(found, optim.Optimizer)
        return found

    def _rates(self) -> dict[str, float]:
        """The learning rates under the names that Lightning's monitor gives them."""
        name, groups = f"lr-{type(self._optimiser).__name__}", self._optimiser.param_groups
        if len(groups) == 1:
            return {name: groups[0]["lr"]}
        return {
            f"{name}/{group.get('name', f'pg{number}')}": group["lr"]
            for number, group in enumerate(groups, 1)
        }

    def _steps_left(self) -> int | None:
        limit = self.settings.step_limit
        return None if limit is None else limit - self.global_step

    def _train(self, steps: Iterator[list[Batch]]) -> int:
        """Take all `steps`, and say how many; look at the losses only now and then, for speed."""
        first = step = self.global_step
        every = self.settings.log_every_n_steps
        take_step = self._step_function()
        unseen: list[Outcome] = []
        for group in steps:
            outcome = take_step(group)
            unseen.append(outcome)
            step += 1
            if step % every == 0:
                self.report.log_step(step, outcome, self._rates())
            if len(unseen) == CHUNK_STEPS:
                self._look(step, unseen)
                unseen = []
        if step == first:
            raise DataError(
                "there are no batches to train on; batch normalisation needs two rows in each"
            )
        self._look(step, unseen)
        self.report.end_training(outcome)
        return step - first

    def _step_function(self) -> Callable[[list[Batch]], Outcome]:
        """A function that takes one optimiser step, with nothing looked up twice."""
        model = self.model
        optimiser: Any = self.optimizers(use_pl_optimizer=self._needs_lightning)
        backward = self.manual_backward if self._needs_lightning else Tensor.backward
        finish = optimiser.step if self._needs_lightning else step_function(optimiser)
        parameters = [value for group in optimiser.param_groups for value in group["params"]]
        terms = loss_terms(model)
        widths = self._widths
        if widths is not None and widths.weight:
            terms.append(widths.loss_term)
        recent = [] if widths is None else [widths.recent]
        targets = self._targets

        def take_step(group: list[Batch]) -> Outcome:
            for value in parameters:
                value.grad = None
            losses = []
            for features, labels in group:
                for batches in recent:
                    batches.append(features)
                logits = model(features)
                try:
                    loss = task_of(labels).loss(logits, labels, targets)
                except (IndexError, RuntimeError) as error:
                    raise misfit(logits, labels, error) from None
                for term in terms:
                    loss = loss + term()
                loss = loss if len(group) == 1 else loss / len(group)
                backward(loss)
                losses.append(loss.detach())
            finish()
            mean = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
            return (mean, *kept(logits.detach(), labels))

        return take_step

    @property
    def _needs_lightning(self) -> bool:
        """Whether gradients are scaled or shared, which Lightning does, or a plain step will do."""
        return self.trainer.world_size > 1 or self.settings.precision == "16-mixed"

    def _look(self, step: int, unseen: list[Outcome]) -> None:
        """Check and show what happened since the last look."""
        if not unseen:
            return
        losses, logits, labels = zip(*unseen, strict=True)
        if not self._needs_lightning:  # else Lightning counted the steps itself
            count_steps(self.trainer, step)
        together = torch.stack(losses).double()  # one tensor of all steps is quick to handle
        total = self._summed(together.sum())
        if not bool(total.isfinite()):
            wrong = [*(~together.isfinite()).nonzero().flatten().tolist(), len(losses) - 1]
            self._stop(step - len(losses) + 1 + wrong[0])
        mean_score = score(torch.cat(logits), torch.cat(labels), self._targets)
        self.report.advance(len(losses), float(together.mean()), float(mean_score))
        if self.trainer.received_sigterm:
            raise SIGTERMException

    def _stop(self, step: int) -> NoReturn:
        raise TrainingError(
            f"the loss is not a finite number at step {step} (epoch {self.current_epoch}): "
            f"{self._likely_cause()}"
        )

    def release(self) -> None:
        """Leave the model as it was given, but for what it has learned."""
        if self._widths is not None:
            self._widths.widths.remove()

    def _likely_cause(self) -> str:
        epochs = self.trainer.train_dataloader
        assert isinstance(epochs, Epochs)
        for features, labels in epochs.batches(self.current_epoch):
            if not bool(features.isfinite().all()):
                return "the inputs hold NaN or infinite values; clean the data"
            if not bool(labels.isfinite().all()):
                return "the targets hold NaN or infinite values; clean the data"
        if self.settings.precision == "16-mixed":
            return "numbers overflow in half precision; try precision 32"
        rate = max(group["lr"] for group in self._optimiser.param_groups)
        if decays_too_fast(self.settings, rate):
            return f"the weight decay {self.settings.weight_decay:g} is most likely too high"
        return f"the learning rate {rate:g} is most likely too high; try {rate / 10:g}"

    def _evaluate(self, epochs: Epochs) -> Result:
        batches = epochs.batches(0, self.global_rank, self.trainer.world_size)
        counted = tally(self.model, moved(batches, self.model), self._targets)
        counted.share(self._summed)
        return counted.result()

    def _record(self, metrics: dict[str, float]) -> None:
        """Hand metrics to the callbacks, which Lightning does, and to the report."""
        self.log_dict(metrics, logger=False, batch_size=1, sync_dist=True)
        self.report.evaluated(metrics, self.global_step)

    def _summed(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        summed = self.trainer.strategy.reduce(value, reduce_op="sum")
        assert isinstance(summed, Tensor)
        return summed


def share_buffers(model: nn.Module, processes: int) -> None:
    """Give all processes the buffers of the first, which are saved: each has seen other rows."""
    if processes > 1:
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)


def skip_done(resumed: Resumed, steps: Iterator[list[Batch]]) -> int:
    """Go to where an interrupted run was in its epoch; the steps that are done already."""
    done = resumed.steps_into_epoch
    if done:
        next(islice(steps, done - 1, done))
        with resumed.put_back("state of random numbers"):
            restore_random_state(resumed.checkpoint[OURS]["random_state"])
    return done


def count_steps(trainer: Trainer, step: int) -> None:
    """Tell Lightning how many optimiser steps were taken, as it did not see them."""
    trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed = step
