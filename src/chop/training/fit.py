"""One training run from beginning to end."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from tabulate import tabulate
from torch import Tensor, nn

from chop.charts import embed_picture
from chop.dataset.inputs import remember_rows, rows_for
from chop.devices import compile_calls, device_of, require_compiler, using_threads
from chop.errors import ConfigError, TrainingError
from chop.files import writable_folder
from chop.logger import get_logger
from chop.models.weights import PREPROCESSING, preprocessing_in
from chop.nn.bit_cost import learns_widths
from chop.nn.learned import LearnedWidths
from chop.preprocessing import Preprocessing, preprocessing_of, set_preprocessing, targets_of
from chop.runs import LEARNING_CURVES, TRAINING_LOG, own_suffix, with_suffix
from chop.tasks import task_of
from chop.training.batches import Epochs, SharedRows
from chop.training.checkpoint import History, Resumed, newest, plain, read_resumed, versions
from chop.training.job import (
    Job,
    check_batch_size,
    first_look,
    on_this_machine,
    one_line_if_full,
)
from chop.training.loop import Loop, Part, TrainingEngine, load_trained, restore_parts
from chop.training.metrics import feature_summary, misfit, parameter_summary, reduce_scores
from chop.training.optimisers import make_optimiser, parameter_groups
from chop.training.parts import (
    TRAIN_LOSS,
    VALIDATION_LOSS,
    BestAndLast,
    EarlyStopping,
    EpochRates,
    Reporting,
    SharedBuffers,
    Validation,
    WidthTraining,
    check_cost,
)
from chop.training.report import Report, Silent, draw_curves, make_training_progress
from chop.training.settings import CostSettings, TrainingSettings

logger = get_logger("chop")

SHOWN = ("train_loss", "train_acc", VALIDATION_LOSS, "val_acc_epoch")
RANKS = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Variables that number the processes of a run, one of them or several."""


@dataclass(frozen=True)
class TrainingResult:
    """The checkpoints of a run, the metrics of its epochs, the scaling of its rows."""

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
        return table + (embed_picture(self.curves, "Learning curves") if self.curves else "")

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
        resumed = _resume(job, settings, last) if resume else None
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
        make_training_progress(shown=is_first_process()),
        job.logger,
        job.record,
        with_suffix(job.folder / TRAINING_LOG, suffix) if is_first_process() else None,
        resumed.history if resumed else None,
    )
    curves = with_suffix(job.folder / LEARNING_CURVES, suffix)
    monitor = _monitor(job)
    checkpoints = BestAndLast(job.folder, suffix, monitor)
    known = preprocessing_of(job.model)
    result = TrainingResult(checkpoints.best, checkpoints.last, report.history, known, curves)
    keepers = [*_early_stopping(settings, monitor), checkpoints]
    if resumed is not None and _is_finished(job.model, keepers, settings, resumed):
        logger.info("Nothing is left to train: %d epochs are done", resumed.epoch)
        if is_first_process() and not curves.exists():  # killed after its last epoch
            draw_curves(report.history, curves, job.name)
        return result
    _run(job, settings, report, keepers, resumed)
    if is_first_process():
        draw_curves(report.history, curves, job.name)
    return result


def fit_in_memory(job: Job, settings: TrainingSettings) -> History:
    """Train and write nothing: the metrics of the epochs, for a search that trains many times."""
    settings = on_this_machine(settings)
    remember_rows(job.model, job.data)
    report = Report(Silent(), record=job.record)
    _run(job, settings, report, _early_stopping(settings, _monitor(job)))
    return report.history


def _monitor(job: Job) -> str:
    """The loss that tells the best epoch."""
    return TRAIN_LOSS if job.validation is None else VALIDATION_LOSS


def _run(
    job: Job,
    settings: TrainingSettings,
    report: Report,
    keepers: Sequence[Part],
    resumed: Resumed | None = None,
) -> None:
    loader = job.data.train_dataloader()
    check_batch_size(job, loader)
    known = preprocessing_of(job.model)
    features = f"\n\n{feature_summary(known)}" if known else ""
    logger.info("Seed %d\n%s", settings.seed, parameter_summary(job.model) + features)
    try:
        with (
            _environment(job, settings, loader),
            _engine(settings) as engine,
            _logging(job, settings),
        ):
            loop = _make_loop(job, settings, report, keepers, loader, engine)
            if resumed is not None:
                loop.restore(resumed)
            with compile_calls(job.model, settings.compile):
                loop.run(settings.max_epochs)
    except TrainingError:
        if is_first_process():
            raise
        raise SystemExit(2) from None  # the first process says why
    finally:
        report.progress.close()
        if (widths := LearnedWidths.of(job.model)) is not None:
            widths.remove()
        job.model.cpu()


def _make_loop(  # what a run consists of
    job: Job,
    settings: TrainingSettings,
    report: Report,
    keepers: Sequence[Part],
    loader: Any,
    engine: TrainingEngine,
) -> Loop:
    model, known = job.model, preprocessing_of(job.model)
    report.targets = targets = targets_of(model)
    engine.place(model)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        try:
            return task_of(labels).loss(outputs, labels, targets)
        except (IndexError, RuntimeError) as error:
            raise misfit(outputs, labels, error) from None

    def facts() -> dict[str, Any]:
        return {
            "seed": settings.seed,
            "settings": settings.model_dump(),
            "record": plain(report.record),
            PREPROCESSING: known and known.as_plain(),
            "versions": versions(),
            "history": report.history,
            WidthTraining.key: None,
        }

    parts = [
        EpochRates(settings),
        *_widths(model, settings),
        SharedBuffers(),
        *([] if job.validation is None else [Validation(Epochs(job.validation), report, settings)]),
        Reporting(report, settings),
        *keepers,
    ]
    rows = SharedRows(Epochs(loader, settings.seed, even=True), engine.rank, engine.processes)
    return Loop(
        model, make_optimiser(model, settings), rows, loss, parts,
        engine=engine, keep=reduce_scores, facts=facts,
        accumulate=settings.accumulate_grad_batches, step_limit=settings.step_limit,
    )  # fmt: skip


def _widths(model: nn.Module, settings: TrainingSettings) -> list[WidthTraining]:
    """The part that trains the widths of a network, if it has any to train."""
    check_cost(model, settings)
    if not learns_widths(model):
        return []
    cost = settings.cost or CostSettings(weight=0.0)
    return [
        WidthTraining(
            model, cost.refresh, cost.magnitude, lambda epoch: cost.weight, cost.calibration_batches
        )
    ]


@contextlib.contextmanager
def _engine(settings: TrainingSettings) -> Iterator[TrainingEngine]:
    """The engine that the devices and the precision of a run need; Lightning only if it must."""
    if settings.processes == 1 and not settings.precision.endswith("mixed"):
        device = device_of(settings.accelerator)
        if settings.accelerator not in ("auto", "cpu") and device.type == "cpu":
            raise ConfigError(f"accelerator {settings.accelerator!r}: this machine has none")
        yield TrainingEngine(device, double=settings.precision == "64")
        return
    from chop.training.distributed import FabricEngine, quiet_lightning, report_lost_peers

    with quiet_lightning(), report_lost_peers():
        yield FabricEngine(settings)


@contextlib.contextmanager
def _environment(job: Job, settings: TrainingSettings, loader: Any) -> Iterator[None]:
    """The right number of threads, one-line errors, and signals that end the run in order."""
    with using_threads(settings.num_threads, first_look(job, loader)) as threads:
        logger.debug("%d threads", threads)
        with ended_by_sigterm(), requeueing(settings.auto_requeue), one_line_if_full(job.folder):
            yield


@contextlib.contextmanager
def _logging(job: Job, settings: TrainingSettings) -> Iterator[None]:
    """Tell the logger of a job what is trained, and when that is over."""
    if job.logger is None or not is_first_process():
        yield
        return
    shown = {"model": job.name, "batch_size": job.data.batch_size}
    job.logger.log_hyperparams(shown | settings.model_dump())
    job.logger.save()
    status = "failed"
    try:
        yield
        status = "success"
    finally:
        job.logger.finalize(status)


def _resume(job: Job, settings: TrainingSettings, last: Path | None) -> Resumed | None:
    if last is None:
        logger.warning(
            "No run in %s has finished an epoch; starting from the beginning", job.folder
        )
        return None
    resumed = read_resumed(last, settings, job.record)
    logger.info("Resuming %s after epoch %d", resumed.path, resumed.epoch - 1)
    return resumed


def _is_finished(
    model: nn.Module, keepers: Sequence[Part], settings: TrainingSettings, resumed: Resumed
) -> bool:
    """Return whether a run has nothing left to train; if so, the model has its weights."""
    restore_parts(keepers, resumed)
    out_of_steps = settings.step_limit is not None and resumed.step >= settings.step_limit
    out_of_patience = any(isinstance(p, EarlyStopping) and p.is_over for p in keepers)
    if not (out_of_steps or out_of_patience or resumed.epoch >= settings.max_epochs):
        return False
    load_trained(model, resumed)
    return True


def _early_stopping(settings: TrainingSettings, monitor: str) -> list[Part]:
    patience = settings.early_stopping
    return [] if patience is None else [EarlyStopping(monitor, patience)]


def is_first_process() -> bool:
    """Return whether this is the process of the run that writes and shows."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End with exit code 143 when SIGTERM comes, unless it is dealt with elsewhere."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    code = 128 + signal.SIGTERM

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(code)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except SystemExit as exit_request:
        if exit_request.code == code:
            logger.warning("Terminated; what was finished is kept")
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def requeueing(wanted: bool) -> Iterator[None]:
    """Ask SLURM to start the job again when it announces the end of its time with SIGUSR1."""
    job = os.environ.get("SLURM_JOB_ID")
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    if job is None:
        logger.warning("--auto-requeue has no effect: this is not a SLURM job")
        yield
        return

    def requeue(number: int, frame: FrameType | None) -> None:
        logger.info("Asking SLURM to requeue job %s", job)
        subprocess.run(["scontrol", "requeue", job], check=False)

    before = signal.signal(signal.SIGUSR1, requeue)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
