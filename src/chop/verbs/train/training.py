"""Train a network, and keep its best and its last epoch."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.figures import score_text
from chop.loading.paths import loadable
from chop.logger import RESULT, get_logger
from chop.runs import GRAPH, TRAINING, latest
from chop.tasks import task_of_history
from chop.verbs.common.next_commands import command_on, next_of_graph, show_next
from chop.verbs.common.session import (
    ActionResult,
    Session,
    chosen_settings,
    lightning_settings,
    make_job,
)
from chop.verbs.train import TrainRequest

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import nn

    from chop.training.checkpoint import History
    from chop.training.fit import TrainingResult
    from chop.training.job import Job

logger = get_logger("chop")


def train(  # noqa: PLR0913, PLR0917  (the labs' signature)
    model: "nn.Module",
    model_info: Any = None,
    data_module: Any = None,
    dataset_info: Any = None,
    task: str = "cls",
    optimizer: str = "adam",
    learning_rate: float = 1e-5,
    weight_decay: float = 0.0,
    plt_trainer_args: Mapping[str, Any] | None = None,
    auto_requeue: bool = False,
    save_path: str | os.PathLike[str] = TRAINING,
    visualizer: "Logger | None" = None,
    load_name: str | os.PathLike[str] | None = None,
    load_type: str = "mz",
    **settings: Any,
) -> "TrainingResult":
    """Train `model` and keep its best and last epoch under `save_path`.

    Args:
        model_info: its name is that of the model; without it, the class of `model` names it.
        data_module: ours, a Lightning data module, or loaders: ``(train, val)``, a dictionary.
        task: cls for classes, lm for text to be continued, regression for numbers.
        plt_trainer_args: what the labs hand to Lightning: max_epochs, devices, accelerator, …
        load_name: weights or a graph to start from.
        settings: further fields of `TrainingSettings`, such as `scheduler` or `seed`; `resume`
            to continue the last run in `save_path`; `record`, stored in the checkpoints.
    """
    from chop.training.fit import fit

    if load_name is not None:
        load_name, load_type = loadable(Path(load_name), load_type)
    job = make_job(
        "train", model, model_info, data_module, task=task, load=(load_name, load_type),
        record=settings.pop("record", None), resume=settings.pop("resume", False),
        folder=Path(save_path), logger=visualizer,
    )  # fmt: skip
    settings |= {"optimizer": optimizer, "learning_rate": learning_rate}
    settings |= {"weight_decay": weight_decay, "auto_requeue": auto_requeue}
    logger.info("Training model '%s'...", job.name)
    result = fit(job, chosen_settings("train", plt_trainer_args, settings))
    if is_of_graph(load_name, load_type):
        save_trained_graph(job)
    if best := best_in_words(result.history):
        logger.info("Best %s", best)
    logger.info("Checkpoints: %s, %s", result.best, result.last, extra=RESULT)
    logger.info("Training is completed")
    return result


def best_in_words(history: "History") -> str:
    """The best epoch; empty where there are no validation rows."""
    from chop.training.report import best_epoch

    best = best_epoch(history) if history else {}
    task = task_of_history(history)
    names = {task.epoch_column(): task.words, "val_loss_epoch": "loss"}
    found = [
        f"{words} {score_text(best[name], task.primary_metric)}"
        for name, words in names.items()
        if name in best
    ]
    return f"epoch {best['epoch']:.0f}: validation {', '.join(found)}" if found else ""


def is_of_graph(load_name: Any, load_type: str) -> bool:
    """Return whether what is loaded is a network with its formats, not weights of a model."""
    from chop.loading.networks import GRAPHS

    return load_name is not None and load_type in GRAPHS


def save_trained_graph(job: "Job") -> None:
    """Save a graph that was trained, to be loaded as a graph again."""
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.graph.interface import save_mase_graph_interface_pass
    from chop.training.fit import is_first_process

    if is_first_process():
        where = {"save_dir": job.folder / GRAPH, "replace": job.resume}
        save_mase_graph_interface_pass(MaseGraph(job.model), where)


def run_train(session: Session[TrainRequest]) -> ActionResult:
    """Train as the command line asks; what is to be in the record of the run."""
    from chop.training.fit import is_first_process
    from chop.training.job import make_logger

    config, folder = session.config, session.software_folder
    result = train(
        session.model,
        session.model_info,
        session.data_module,
        session.dataset_info,
        config.task,
        save_path=folder / TRAINING,
        visualizer=make_logger(config.report_to, folder, folder.parent.name),
        load_name=config.load_name,
        load_type=config.load_type,
        resume=config.resume,
        record=session.record,
        **lightning_settings(config),
    )
    if is_first_process():  # which has saved what is named
        show_next(next_of_training(session))
    known = result.preprocessing
    return ActionResult(folder, {"preprocessing": known and known.as_plain()})


def next_of_training(session: Session[TrainRequest]) -> list[str]:
    """Return what to do with what was trained: weights of a model, or a graph.

    A checkpoint has the weights of a graph without its formats, so that the graph is named.
    """
    config, folder = session.config, session.software_folder
    known: Any = {"model": config.model, "imports": config.imports}
    if is_of_graph(config.load_name, config.load_type):
        from chop.loading.networks import load_graph

        place = latest(folder / TRAINING / GRAPH)
        return next_of_graph(load_graph(place), place, **known)
    project = folder.parent
    return [
        command_on("test", project, **known),
        command_on("quantize", project, "--width", "8", **known),
    ]
