"""Data sets by name: the rows, their description and the loaders that serve them.

`info` holds the table and how a data set joins it, `rows` what one reads and how it is split,
`preprocess` how it is scaled, `data_module` the loaders. `cache`, `download` and `tables` read
files; `own` takes a user's files, data modules and loaders.
"""

from typing import Any

from torch.utils.data import Dataset

from chop.dataset import own, toy, vision  # noqa: F401  (register their data sets)
from chop.dataset.data_module import MaseDataModule
from chop.dataset.info import (
    DATASETS,
    DatasetSource,
    MaseDatasetInfo,
    get_dataset_info,
    register_dataset,
)
from chop.dataset.physical import jsc, jsc_sim  # noqa: F401
from chop.dataset.rows import DatasetRequest, Splits
from chop.preprocessing import Preprocessing

AVAILABLE_DATASETS = DATASETS.keys()

__all__ = [
    "AVAILABLE_DATASETS",
    "DATASETS",
    "DatasetRequest",
    "DatasetSource",
    "MaseDataModule",
    "MaseDatasetInfo",
    "Preprocessing",
    "Splits",
    "get_dataset",
    "get_dataset_info",
    "register_dataset",
]


def get_dataset(name: str, split: str = "train", **options: Any) -> Dataset[Any]:
    """One split of a data set, row by row; `options` are those of `MaseDataModule`."""
    module = MaseDataModule(name, batch_size=1, **options)
    return module.split(split)
