from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from chop.dataset import (
    AVAILABLE_DATASETS,
    DATASETS,
    DatasetRequest,
    MaseDataModule,
    MaseDatasetInfo,
    Splits,
    get_dataset,
    get_dataset_info,
    register_dataset,
)
from chop.errors import ChopError, ConfigError, DataError, RegistrationError, UnknownNameError

SPLITS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(DATASETS)
    yield
    DATASETS._entries.clear()
    DATASETS._entries.update(before)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_data_set_says_in_one_line_what_it_is(name: str) -> None:
    line = DATASETS.descriptions()[name]
    assert len(line) > 20
    assert "\n" not in line
    assert get_dataset_info(name.upper()) is DATASETS[name].info
    assert name in AVAILABLE_DATASETS


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"dataset_source": "hugging"}, "unknown dataset_source 'hugging'"),
        ({"available_splits": ("train", "valid")}, "unknown split 'valid'"),
        ({"available_splits": ()}, "available_splits is empty"),
        ({"available_splits": "train"}, "must be a list or tuple"),
        ({"num_classes": 0}, "num_classes must be a whole number above 0"),
        ({"num_features": 2.5}, "num_features must be a whole number above 0"),
        ({"image_size": (3, -1, 3)}, "image_size must be a whole number above 0"),
        ({"image_classification": 1}, "image_classification must be true or false"),
        ({"num_classes": 3, "class_names": ("a", "b")}, "2 class_names for 3"),
    ],
)
def test_facts_that_make_no_sense_are_one_line(facts: dict[str, object], message: str) -> None:
    sensible = {"dataset_source": "manual", "available_splits": SPLITS}
    with pytest.raises(ConfigError, match=message) as error:
        MaseDatasetInfo("mine", **(sensible | facts))
    assert "\n" not in str(error.value)
    assert "data set 'mine'" in str(error.value)


def test_split_properties() -> None:
    info = MaseDatasetInfo("mine", "manual", ["train", "test"])
    assert info.available_splits == ("train", "test")
    found = [getattr(info, f"{split}_split_available") for split in (*SPLITS, "pred")]
    assert found == [True, False, True, False]


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'jsc-sim'"):
        MaseDataModule("jsc-sin", batch_size=8)


def rows(count: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    return rng.normal(size=(count, 4)), np.arange(count) % classes


def test_a_function_of_the_users_becomes_a_data_set() -> None:
    @register_dataset("Flowers", num_features=4, num_classes=3)
    def flowers(request: DatasetRequest) -> Splits:
        """Four measurements of three flowers."""
        assert request.seed == 5
        return Splits(train=rows(90), validation=rows(30), test=rows(30))

    module = MaseDataModule("flowers", batch_size=32, seed=5)
    assert DATASETS.descriptions()["flowers"] == "Four measurements of three flowers."
    assert module.dataset_info.physical_data_point_classification
    x, y = next(iter(module.train_dataloader()))
    assert (x.dtype, y.dtype, tuple(x.shape)) == (torch.float32, torch.int64, (32, 4))
    with pytest.raises(DataError, match="has no pred split; it has train, validation, test"):
        module.pred_dataloader()
    with pytest.raises(RegistrationError, match="already registered"):
        register_dataset("flowers")(flowers)


def test_sizes_left_out_are_read_off_the_rows() -> None:
    @register_dataset("plain")
    def plain() -> Splits:
        return Splits(train=rows(60), validation=rows(20))

    info = MaseDataModule("plain", batch_size=4).dataset_info
    assert (info.num_features, info.num_classes) == (4, 3)
    assert info.available_splits == ("train", "validation")
    assert info.physical_data_point_classification
    assert isinstance(get_dataset("plain", "validation"), TensorDataset)


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


def test_rows_that_come_one_by_one_use_the_loader_of_torch() -> None:
    register_dataset("squares", num_features=4, num_classes=2)(lambda: Splits(train=Squares()))
    loader = MaseDataModule("squares", batch_size=8, seed=3).train_dataloader()
    assert isinstance(loader, DataLoader)
    first = torch.cat([x[:, 0] for x, _ in loader])
    second = torch.cat([x[:, 0] for x, _ in loader])
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, torch.arange(50.0))
    loader.sampler.set_epoch(0)
    assert torch.equal(first, torch.cat([x[:, 0] for x, _ in loader]))


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (None, "must return Splits"),
        (Splits(test=rows(9)), "no training rows"),
        (Splits(train=(np.ones((3, 4)), np.ones(2, int))), "must be"),
        (Splits(train=(np.ones((3, 4)), np.ones(3))), "class indices"),
        (Splits(train=(np.ones((3, 4)), -np.ones(3, int))), "from 0"),
        (Splits(train=(np.full((3, 4), np.nan), np.ones(3, int))), "not finite"),
        (Splits(train=(np.array([["a"], ["b"]]), np.ones(2, int))), "not numbers"),
        (Splits(train=(np.ones((0, 4)), np.ones(0, int))), "no rows"),
        (Splits(train=rows(9), test=(np.ones((3, 5)), np.ones(3, int))), "different shapes"),
        (Splits(train=rows(9, classes=7)), "label 6, but 3 classes"),
        (Splits(train=(np.ones((3, 5)), np.arange(3))), "num_features is 5, not 4"),
        (Splits(train=5), "torch data set"),
    ],
)
def test_rows_that_do_not_fit_are_one_line(splits: Splits, message: str) -> None:
    register_dataset("broken", num_features=4, num_classes=3)(lambda: splits)
    with pytest.raises(DataError, match=message) as error:
        MaseDataModule("broken", batch_size=2).setup()
    assert "data set 'broken'" in str(error.value)


def test_registration_mistakes() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'num_features'"):
        register_dataset("wrong", num_feature=4)(lambda: Splits())
    with pytest.raises(RegistrationError, match="one request or nothing"):
        register_dataset("wrong")(lambda a, b: Splits())


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"batch_size": 2.0}, {"batch_size": 8, "num_workers": -1}]
)
def test_module_arguments(wrong: dict[str, int]) -> None:
    with pytest.raises(ChopError, match="must be a whole number from"):
        MaseDataModule("toy_tiny", **wrong)
