"""Test a network on rows it has not seen.

`predicting` writes predictions for rows without labels.
"""

# ruff: noqa: PT028  (the lab's `test` is an action, not a test function)

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.logger import RESULT, get_logger
from chop.runs import TEST_RESULTS, TESTS, write_new
from chop.verbs.common.session import (
    UNTRAINED,
    Session,
    chosen_settings,
    features_of,
    known_preprocessing,
    lightning_settings,
    make_job,
)
from chop.verbs.test import TestRequest

if TYPE_CHECKING:
    from torch import nn

    from chop.training.job import MetricLogger
    from chop.training.results import Result

logger = get_logger("chop")


def test(  # noqa: PLR0913, PLR0917  (the labs' signature)
    model: "nn.Module",
    model_info: Any = None,
    data_module: Any = None,
    dataset_info: Any = None,
    task: str = "cls",
    plt_trainer_args: Mapping[str, Any] | None = None,
    save_path: str | os.PathLike[str] | None = None,
    visualizer: "MetricLogger | None" = None,
    load_name: str | os.PathLike[str] | None = None,
    load_type: str = "mz",
    **settings: Any,
) -> "Result":
    """Evaluate `model` on the test rows; print the result and store it under `save_path`.

    Args:
        data_module: as for `train`; a single loader holds the test rows.
        save_path: the folder of ``test_results.json``; None stores nothing.
        load_name: weights or a graph to test; by default the model as it is.
        settings: as for `train`; and `split`, one of test, val and all; and `exact`, to test a
            quantised network in integers and compare its simulation with them.
    """
    from chop.training.job import evaluate_job, one_line_if_full
    from chop.training.metrics import summary_of_test

    job = make_job(
        "test", model, model_info, data_module, task=task, load=(load_name, load_type),
        record=settings.pop("record", None), folder=Path(save_path or "."),
    )  # fmt: skip
    rows = job.data
    split, exact = settings.pop("split", "test"), settings.pop("exact", False)
    logger.info("Testing model '%s'...", job.name)
    chosen = chosen_settings("test", plt_trainer_args, settings)
    result = evaluate_job(job, chosen, split, exact)
    names = (dataset_info or rows.dataset_info).class_names
    shown = summary_of_test(result, names, getattr(rows, "source", ""), split)
    known = known_preprocessing(job.model, rows) or "taken as they are"
    logger.info("Result\n%s\n\nFeatures: %s", shown, known, extra=RESULT)
    if visualizer is not None:
        with one_line_if_full(job.folder):
            visualizer.log_metrics(result.figures(split), 0)
            visualizer.finalize("success")
    if save_path is not None:
        run = {"split": split, "load_name": load_name, "run": job.record}
        run |= features_of(job.model, rows)
        _store(job.folder, {**result.as_dict(names, split), **run})
    logger.info("Testing is completed")
    return result


def run_test(session: Session[TestRequest]) -> None:
    """Test as the command line asks."""
    from chop.training.job import make_test_logger

    config, folder = session.config, session.software_folder
    if config.load_name is None and not config.is_pretrained:
        logger.warning(UNTRAINED)
    test(
        session.model,
        session.model_info,
        session.data_module,
        session.dataset_info,
        config.task,
        save_path=folder / TESTS,
        visualizer=make_test_logger(config.report_to, folder, folder.parent.name),
        load_name=config.load_name,
        load_type=config.load_type,
        record=session.record,
        split=config.split,
        exact=config.exact,
        **lightning_settings(config),
    )


def _store(folder: Path, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=2, default=str) + "\n"
    path = write_new(folder / TEST_RESULTS, text)
    logger.info("Test results are in %s", path, extra=RESULT)
