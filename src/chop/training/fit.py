"""One training run from beginning to end, on a Lightning `Trainer`."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
from lightning.pytorch.utilities import rank_zero_only
from tabulate import tabulate
from torch import nn

from chop.charts import embedded
from chop.dataset.inputs import remember_rows, rows_for
from chop.devices import compiled, require_compiler, using_threads
from chop.errors import ConfigError, TrainingError
from chop.files import writable_folder
from chop.logger import get_logger
from chop.models.weights import load_weights, preprocessing_in
from chop.nn.bit_cost import learns_widths
from chop.preprocessing import Preprocessing, preprocessing_of, set_preprocessing
from chop.runs import LEARNING_CURVES, TRAINING_LOG, own_suffix, with_suffix
from chop.training.batches import Epochs
from chop.training.job import (
    Job,
    check_batch_size,
    first_look,
    on_this_machine,
    one_line_if_full,
)
from chop.training.lightning_setup import (
    AtomicCheckpointIO,
    BestAndLast,
    connected,
    honest_interrupts,
    quiet_lightning,
    requeueing,
    strategy_of,
)
from chop.training.metrics import feature_summary, parameter_summary
from chop.training.module import TRAIN_LOSS, VALIDATION_LOSS, TrainingModule, count_steps
from chop.training.optimisers import parameter_groups
from chop.training.report import Report, Silent, draw_curves, make_progress
from chop.training.settings import TrainingSettings
from chop.training.state import History, Resumed, newest, read_resumed
from chop.training.widths import check_cost

logger = get_logger("chop")

LIGHTNING_PRECISION: dict[str, Any] = {
    "16-mixed": "16-mixed",
    "bf16-mixed": "bf16-mixed",
    "32": "32-true",
    "64": "64-true",
}


SHOWN = ("train_loss", "train_acc", VALIDATION_LOSS, "val_acc_epoch")


@dataclass(frozen=True)
class TrainingResult:
    """Where the checkpoints of a run are, the metrics of its epochs, how rows were scaled."""

    best: Path
    last: Path
    history: History
    preprocessing: Preprocessing | None = None
    curves: Path | None = None
    """The picture of loss and accuracy over the epochs."""

    def __repr__(self) -> str:
        shown = [", ".join(f"{name} {value}" for name, value in row.items()) for row in self.rows()]
        return f"TrainingResult({'; '.join([*shown, str(self.best)])})"

    def _repr_html_(self) -> str:
        """The best and the last epoch as a table, and the curves, for notebooks."""
        table = tabulate(self.rows(), "keys", "html", disable_numparse=True)
        return table + (embedded(self.curves, "Learning curves") if self.curves else "")

    def rows(self) -> list[dict[str, str]]:
        """The metrics of the best and of the last epoch, in words."""
        if not self.history:
            return []
        by = next(name for name in (VALIDATION_LOSS, "train_loss") if name in self.history[-1])
        epochs = {"best": min(self.history, key=lambda each: each[by]), "last": self.history[-1]}
        return [
            {"epoch": f"{epoch['epoch']:.0f} ({which})"}
            | {name.removesuffix("_epoch"): f"{epoch[name]:.4f}" for name in epoch if name in SHOWN}
            for which, epoch in epochs.items()
        ]


def fit(job: Job, settings: TrainingSettings) -> TrainingResult:
    """Train until the epochs, the steps or the patience are used up."""
    parameter_groups(job.model)  # asked before anything is written
    check_cost(job.model, settings)
    check_compiled(job.model, settings)
    writable_folder(job.folder)
    job.data.prepare_data()
    job.data.setup()
    settings = on_this_machine(settings)
    started_again = int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0
    resume = job.resume or (settings.auto_requeue and started_again)
    last = newest(job.folder) if resume else None
    writes = is_first_process()  # the others write nothing
    with own_suffix(job.folder, last, resume) if writes else contextlib.nullcontext("") as suffix:
        resumed = _resumed(job, settings, last) if resume else None
        return _fit(_with_rows(job, resumed), settings, resumed, suffix)


def check_compiled(model: nn.Module, settings: TrainingSettings) -> None:
    """Refuse to compile what cannot be compiled, before anything is written."""
    if not settings.compile:
        return
    require_compiler()
    if settings.processes > 1:
        raise ConfigError("compile: several processes are not compiled; train with one")
    if learns_widths(model):
        raise ConfigError(
            "compile: a network that learns its widths is not compiled; leave out --compile"
        )


def _with_rows(job: Job, resumed: Resumed | None) -> Job:
    """The job with its rows scaled as in the run that it resumes."""
    if resumed is not None:
        known = preprocessing_in(resumed.checkpoint, resumed.path)
        if known is not None:
            set_preprocessing(job.model, known)
    job = replace(job, data=rows_for(job.model, job.data))
    remember_rows(job.model, job.data)
    return job


def _fit(
    job: Job, settings: TrainingSettings, resumed: Resumed | None, suffix: str
) -> TrainingResult:
    report = Report(
        make_progress(shown=is_first_process()),
        job.logger,
        job.record,
        with_suffix(job.folder / TRAINING_LOG, suffix) if is_first_process() else None,
        resumed.history if resumed else None,
    )
    curves = with_suffix(job.folder / LEARNING_CURVES, suffix)
    monitor = TRAIN_LOSS if job.validation is None else VALIDATION_LOSS
    checkpoints = BestAndLast(job.folder, suffix, monitor)
    known = preprocessing_of(job.model)
    result = TrainingResult(checkpoints.best, checkpoints.last, report.history, known, curves)
    callbacks = [checkpoints, *_early_stopping(settings, monitor)]
    module = TrainingModule(job.model, settings, report, resumed)
    trainer = make_trainer(settings, callbacks, job)
    if resumed is not None:
        _restore(trainer, module, resumed)
        if _finished(trainer, settings, resumed):
            logger.info("Nothing is left to train: %d epochs are done", resumed.epoch)
            if is_first_process() and not curves.exists():  # killed after its last epoch
                draw_curves(report.history, curves, job.name)
            return result
    _run(trainer, module, job)
    if is_first_process():
        draw_curves(report.history, curves, job.name)
    return result


def fit_in_memory(job: Job, settings: TrainingSettings) -> History:
    """Train and write nothing: the metrics of the epochs, for a search that trains many times."""
    settings = on_this_machine(settings)
    remember_rows(job.model, job.data)
    report = Report(Silent(), record=job.record)
    monitor = TRAIN_LOSS if job.validation is None else VALIDATION_LOSS
    trainer = make_trainer(settings, _early_stopping(settings, monitor), job)
    _run(trainer, TrainingModule(job.model, settings, report), job)
    return report.history


def make_trainer(settings: TrainingSettings, callbacks: list[Callback], job: Job) -> Trainer:
    """Lightning's trainer with its own bar, summary and sampler switched off: ours are faster."""
    # Lightning would requeue and resume in its own way; see `requeueing`.
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    with quiet_lightning():
        try:
            return Trainer(
                accelerator=settings.accelerator,
                devices=settings.devices,
                num_nodes=settings.num_nodes,
                strategy=strategy_of(settings),
                precision=LIGHTNING_PRECISION[settings.precision],
                max_epochs=settings.max_epochs,
                max_steps=settings.step_limit or -1,
                num_sanity_val_steps=0,
                callbacks=callbacks,
                logger=job.logger or False,
                default_root_dir=job.folder,
                plugins=[AtomicCheckpointIO(), *slurm],
                use_distributed_sampler=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                enable_checkpointing=any(isinstance(each, Checkpoint) for each in callbacks),
            )
        except MisconfigurationException as error:
            raise ConfigError(" ".join(str(error).split())) from None


def _run(trainer: Trainer, module: TrainingModule, job: Job) -> None:
    settings = module.settings
    loader = job.data.train_dataloader()
    check_batch_size(job, loader)
    known = preprocessing_of(job.model)
    features = f"\n\n{feature_summary(known)}" if known else ""
    logger.info("Seed %d\n%s", settings.seed, parameter_summary(job.model) + features)
    if job.logger is not None:
        shown = {"model": job.name, "batch_size": job.data.batch_size}
        job.logger.log_hyperparams(shown | settings.model_dump())
    validation = None if job.validation is None else Epochs(job.validation)
    try:
        with _environment(job, settings, loader), requeueing(settings.auto_requeue), connected():
            module.train()
            with compiled(job.model, settings.compile):
                trainer.fit(module, Epochs(loader, settings.seed, even=True), validation)
    except TrainingError:
        if is_first_process():
            raise
        raise SystemExit(2) from None  # the first process says why
    finally:
        module.report.progress.close()
        module.release()


@contextlib.contextmanager
def _environment(job: Job, settings: TrainingSettings, loader: Any) -> Iterator[None]:
    """Calm output, the right number of threads, and one-line errors."""
    with using_threads(settings.num_threads, first_look(job, loader)) as threads:
        logger.debug("%d threads", threads)
        with quiet_lightning(), honest_interrupts(), one_line_if_full(job.folder):
            yield


def _resumed(job: Job, settings: TrainingSettings, last: Path | None) -> Resumed | None:
    if last is None:
        logger.warning(
            "No run in %s has finished an epoch; starting from the beginning", job.folder
        )
        return None
    resumed = read_resumed(last, settings, job.record)
    logger.info("Resuming %s after epoch %d", resumed.path, resumed.epoch - 1)
    return resumed


def _restore(trainer: Trainer, module: TrainingModule, resumed: Resumed) -> None:
    """Put everything back where it was but what the module itself restores."""
    load_weights(module, resumed.checkpoint["state_dict"], str(resumed.path))
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # made in its constructor
        with resumed.put_back("state of " + type(callback).__name__):
            callback.load_state_dict(resumed.callback(callback.state_key))
    epochs: Any = trainer.fit_loop.epoch_progress.current
    epochs.ready = epochs.started = epochs.processed = epochs.completed = resumed.epoch
    count_steps(trainer, resumed.step)
    scaler = resumed.checkpoint.get(type(trainer.precision_plugin).__qualname__)
    if scaler is not None:
        trainer.precision_plugin.load_state_dict(scaler)


def _finished(trainer: Trainer, settings: TrainingSettings, resumed: Resumed) -> bool:
    stopper = trainer.early_stopping_callback
    out_of_steps = settings.step_limit is not None and resumed.step >= settings.step_limit
    out_of_patience = stopper is not None and stopper.wait_count >= stopper.patience
    return out_of_steps or out_of_patience or resumed.epoch >= settings.max_epochs


def _early_stopping(settings: TrainingSettings, monitor: str) -> list[Callback]:
    if settings.early_stopping is None:
        return []
    return [EarlyStopping(monitor, patience=settings.early_stopping, check_on_train_epoch_end=True)]


def is_first_process() -> bool:
    """Whether this is the process of the run that writes and shows."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)
