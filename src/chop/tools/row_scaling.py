"""Rows for a network, scaled as those that it was trained on."""

from typing import Any

import numpy as np
from torch import nn

from chop.dataset.data_module import MaseDataModule
from chop.dataset.rescale import Look, check_same_features, looked_at, stage_of, worst_column
from chop.ir.graph.preprocessing import preprocessing_of, set_preprocessing
from chop.preprocessing import Preprocessing
from chop.tools.logger import get_logger

logger = get_logger("chop")


def rows_for(model: nn.Module, data: Any) -> Any:
    """`data` with its rows scaled as those that `model` was trained on; what is done is said.

    A model that does not say how those were scaled takes the rows as they are.

    Args:
        data: a data module; one of another kind than ours is left as it is.
    """
    trained = preprocessing_of(model)
    done = getattr(data, "preprocessing", None)
    if trained is None:
        if done is not None:
            logger.info("Features: %s", done)
        return data
    logger.info("Features of the model: %s", trained)
    if not isinstance(data, MaseDataModule):
        logger.warning(
            "The rows come from a %s of your own and are taken as they are; they must be scaled as "
            "in training", type(data).__name__,
        )  # fmt: skip
        return data
    other_name = check_same_features(data.splits, data.dataset_info.feature_names, trained)
    if other_name:
        logger.warning(
            "The rows have other features than the model was trained on: %s; they are taken by "
            "their order", other_name,
        )  # fmt: skip
    return _unknown_rows(data, trained) if done is None else _known_rows(data, trained, done)


def remember_rows(model: nn.Module, data: Any) -> None:
    """Note on a model that is to be trained how its rows are scaled, unless it knows."""
    if preprocessing_of(model) is None:
        set_preprocessing(model, getattr(data, "preprocessing", None))


def _known_rows(
    data: MaseDataModule, trained: Preprocessing, done: Preprocessing
) -> MaseDataModule:
    """Rows that say what was done to them."""
    wanted = trained.of_rows
    if done.constants == wanted.constants:
        return data
    if done.constants != trained.constants and not done.is_identity:
        theirs = Look(*(np.array(each) for each in done.as_measured()))
        logger.warning(
            "The rows have other means and deviations than those the model was trained on (%s); "
            "they are scaled with the constants of the model", worst_column(trained, theirs),
        )  # fmt: skip
    if trained.in_graph:
        logger.info("The rows are taken as they were measured, as the graph scales them itself")
    return data.scaled_as(wanted)


def _unknown_rows(data: MaseDataModule, trained: Preprocessing) -> MaseDataModule:
    """Rows that do not say what was done to them, which their numbers may tell."""
    look = looked_at(data.splits, trained.kind == "channels")
    stage = stage_of(look, trained)
    both = worst_column(trained, look)
    then = "they are scaled with the constants of the model"
    if trained.in_graph:
        then = "the graph scales them itself"
    if stage is None:
        logger.warning(
            "The rows look neither like those that the model was trained on nor standardised (%s); "
            "they are taken as measured, and %s", both, then,
        )  # fmt: skip
    elif stage.is_identity:
        logger.info("The rows look as they were measured, and %s", then)
    elif stage.constants == trained.constants:
        remedy = f"; {then}, so give it rows as they were measured" if trained.in_graph else ""
        logger.warning(
            "The rows look standardised already and are left as they are (%s)%s", both, remedy
        )
        return data
    else:
        logger.warning("The rows look divided by %g already (%s); %s", stage.divisor, both, then)
    return data.scaled_as(trained.of_rows, taken_as=stage or trained.identity)
