"""Test a classifier on rows it has not seen."""

# ruff: noqa: PT028  (the lab's `test` is an action, not a test function)

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions import train_common as common
from chop.files import versioned, write_text
from chop.tools.logger import get_logger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import nn

    from chop.actions.session import Session
    from chop.tools.training.metrics import Evaluation

logger = get_logger("chop")


def test(  # noqa: PLR0913, PLR0917  (the labs' signature)
    model: "nn.Module",
    model_info: Any,
    data_module: Any,
    dataset_info: Any,
    task: str = "cls",
    plt_trainer_args: Mapping[str, Any] | None = None,
    save_path: str | os.PathLike[str] | None = None,
    visualizer: "Logger | None" = None,
    load_name: str | os.PathLike[str] | None = None,
    load_type: str = "mz",
    **settings: Any,
) -> "Evaluation":
    """Evaluate `model` on the test rows; print the result and store it under `save_path`.

    Args:
        save_path: the folder of ``test_results.json``; None stores nothing.
        load_name: weights or a graph to test; without it the model is tested as it is.
        settings: fields of `TrainingSettings`, as the labs hand the same to every action;
            `record`, stored with the result.
    """
    from chop.tools.training.fit import Job, evaluate_job
    from chop.tools.training.summary import test_summary

    common.check_task(task)
    job = Job(
        model=common.loaded(model, load_name, load_type),
        data=data_module,
        folder=Path(save_path or "."),
        name=model_info.name,
        logger=visualizer,
        record=common.full_record(settings.pop("record", None), data_module),
    )
    logger.info("Testing model '%s'...", job.name)
    result = evaluate_job(job, common.chosen_settings("test", plt_trainer_args, settings))
    names = dataset_info.class_names
    logger.info("Result\n%s", test_summary(result, names, getattr(data_module, "source", "")))
    if save_path is not None:
        _store(job.folder, {**result.as_dict(names), "load_name": load_name, "run": job.record})
    logger.info("Testing is completed")
    return result


def run(session: "Session") -> None:
    """Test as the command line asks."""
    from chop.tools.training.loggers import make_logger

    config, folder = session.config, session.software_folder
    if config.load_name is None and not config.is_pretrained:
        logger.warning(common.UNTRAINED)
    test(
        session.model,
        session.model_info,
        session.data_module,
        session.dataset_info,
        config.task,
        save_path=folder / "checkpoints",
        visualizer=make_logger(config.report_to, folder, folder.parent.name),
        load_name=config.load_name,
        load_type=config.load_type,
        record=session.record,
        **common.settings_of(config),
    )


def _store(folder: Path, result: dict[str, Any]) -> None:
    path = versioned(folder / "test_results.json")
    write_text(path, json.dumps(result, indent=2, default=str) + "\n")
    logger.info("Test results are in %s", path)
