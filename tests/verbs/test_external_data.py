"""Actions on data that is not one of our data sets, and on models that are not registered."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import train_bench as bench
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from chop import actions
from chop.dataset import MaseDataModule
from chop.dataset.own import as_data_module
from chop.errors import ConfigError, DataError
from chop.models import get_model_info
from chop.passes import PASSES
from chop.training.batches import Epochs


def rows(seed: int, count: int = 60) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def loader(seed: int) -> DataLoader[Any]:
    return DataLoader(rows(seed), batch_size=20)


class Rows(LightningDataModule):
    """Has its rows only after `setup` for the right stage, as Lightning's documents teach it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare")

    def setup(self, stage: str) -> None:
        self.calls.append(stage)
        if stage == "fit":
            self.train, self.val = rows(0), rows(1)
        if stage == "test":
            self.test = rows(2)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=20)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, batch_size=20)

    def test_dataloader(self) -> list[DataLoader[Any]]:
        return [DataLoader(self.test, batch_size=20)]


class TrainOnly(LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return loader(0)


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(4, 2)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.layer(features)
        return out


def batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for x, y in loader(seed)]


SETTINGS = {"max_epochs": 2, "learning_rate": 0.1, "accelerator": "cpu"}
WHOLE: dict[str, Callable[[], Any]] = {
    "Lightning": Rows,
    "from_datasets": lambda: LightningDataModule.from_datasets(
        rows(0), rows(1), rows(2), batch_size=20
    ),
    "three loaders": lambda: (loader(0), loader(1), loader(2)),
    "a dictionary": lambda: {"train": loader(0), "val": loader(1), "test": loader(2)},
    "lists of batches": lambda: {
        "train": batches(0), "validation": batches(1), "test": batches(2),
    },
}  # fmt: skip


def by_hand(folder: Path) -> Any:
    """The same rows as a data module of ours would serve them."""

    class Ours(MaseDataModule):
        def train_dataloader(self) -> Any:
            return loader(0)

        def val_dataloader(self) -> Any:
            return loader(1)

        def test_dataloader(self) -> Any:
            return loader(2)

    data = Ours("toy_tiny", 20)
    info = get_model_info("toy")
    run = actions.train(Mine(), info, data, data.dataset_info, save_path=folder, **SETTINGS)
    return run, actions.test(Mine(), info, data, data.dataset_info)


@pytest.mark.filterwarnings("ignore:'pin_memory'")  # which Lightning sets
@pytest.mark.parametrize("kind", WHOLE)
def test_training_and_testing_need_a_model_and_rows(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = actions.train(Mine(), data_module=WHOLE[kind](), save_path=tmp_path / "a", **SETTINGS)
    shown = capsys.readouterr().out
    assert "Training model 'Mine'..." in shown
    assert shown.count("without class names (classes are numbered), a fingerprint of the rows") == 1
    result = actions.test(Mine(), data_module=WHOLE[kind](), save_path=tmp_path / "test")
    if kind != "from_datasets":  # which shuffles
        expected, tested = by_hand(tmp_path / "b")
        assert bench.same(run.last, expected.last)
        assert torch.equal(result.confusion, tested.confusion)
        assert result.loss == tested.loss
    assert "val_loss_epoch" in run.history[-1]
    assert "0        " in capsys.readouterr().out  # classes have numbers for names


def test_lightnings_stages_are_asked_for_once() -> None:
    module = Rows()
    data = as_data_module(module, "train")
    assert data.batch_size == 20
    for _ in range(2):
        data.train_dataloader()
        data.val_dataloader()
    assert module.calls == ["prepare", "fit"]
    assert len(data.test_dataloader()) == 3
    assert module.calls == ["prepare", "fit", "test"]
    assert data.dataset_info.available_splits == ("train", "validation", "test")


@pytest.mark.parametrize("data", [loader(0), TrainOnly(), (loader(0),), batches(0)])
def test_rows_for_training_alone_train_without_validation(data: Any, tmp_path: Path) -> None:
    run = actions.train(Mine(), data_module=data, save_path=tmp_path, **SETTINGS)
    assert run.history[-1].keys() >= {"train_loss"}
    assert "val_loss_epoch" not in run.history[-1]


def test_a_single_loader_is_tested_on() -> None:
    assert actions.test(Mine(), data_module=loader(2)).rows == 60
    assert actions.test(Mine(), data_module=(loader(0), loader(1)), split="val").rows == 60


def test_a_shuffled_loader_is_gone_on_with_exactly(tmp_path: Path) -> None:
    def train(folder: Path, **given: Any) -> Any:
        torch.manual_seed(0 if folder.name == "whole" or given["max_epochs"] == 1 else 9)
        pair = (DataLoader(rows(0), batch_size=20, shuffle=True), loader(1))
        settings = SETTINGS | {"scheduler": "constant"} | given
        return actions.train(Mine(), data_module=pair, save_path=folder, **settings)

    whole = train(tmp_path / "whole", max_epochs=3)
    for epochs in (1, 3):
        parts = train(tmp_path / "parts", max_epochs=epochs, resume=True)
    assert bench.same(whole.last, parts.last)


def test_class_names_come_from_whoever_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    module = Rows()
    module.class_names = ["down", "up"]
    actions.test(Mine(), data_module=module)
    assert "down  " in capsys.readouterr().out


INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4,
           "weight_width": 4, "weight_frac_width": 2}  # fmt: skip


def test_transform_and_search_take_them_too(tmp_path: Path) -> None:
    passes = {"quantize": {"by": "type", "linear": {"config": INTEGER}}}
    graph, found = actions.transform(
        Mine(), data_module=Rows(), passes=passes, save_dir=tmp_path / "t"
    )
    assert found["quantize"]["quantized"] == {"layer": "LinearInteger"}
    assert isinstance(PASSES["quantize"](graph, passes["quantize"]), tuple)
    seed = {"linear": {"config": {key: [value] for key, value in INTEGER.items()}}}
    seed["linear"]["config"]["weight_width"] = [2, 4]
    space = {"name": "graph/quantize/mixed_precision_ptq", "setup": {"by": "type"}, "seed": seed}
    strategy = {
        "name": "optuna",
        "sw_runner": {"basic_evaluation": {"num_samples": 60}},
        "setup": {"n_trials": 2, "sampler": "brute", "n_jobs": 1, "plots": False},
        "metrics": {"accuracy": {"direction": "maximize"}},
    }
    result = actions.search(
        Mine(),
        data_module=(loader(0), loader(1)),
        search_config={"search_space": space, "strategy": strategy},
        save_dir=tmp_path / "s",
    )
    assert len(result.trials) == 2


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.ones(4), 1


MISTAKES: dict[str, tuple[Any, str]] = {
    "nothing": (None, "train: data_module is missing: give data_module= a MaseDataModule"),
    "a number": (3, "a int is not a loader of train rows"),
    "an iterator": (iter(batches(0)), "the train rows come from an iterator"),
    "a wrong key": ({"trian": loader(0)}, "unknown split 'trian': did you mean 'train'"),
    "an empty dictionary": ({}, "there is no loader"),
    "too many": ((loader(0),) * 4, "4 loaders were given"),
    "no training rows": ({"val": loader(1)}, "the loaders given has no train rows; it has valid"),
    "a data module without loaders": (LightningDataModule(), "it must have train_dataloader and"),
    "batches of one": ([(torch.ones(2, 4),)], "a batch must be a pair (features, labels)"),
    "no tensors": (
        {"train": [("a", "b")]},
        "features and labels of a batch must be tensors, not str and str",
    ),
    "labels that are no classes": (
        [(torch.ones(2, 4), torch.ones(2, 1))],
        "labels must be class indices, one for each row, not torch.float32 of shape (2, 1)",
    ),
    "a wrong shape": ([(torch.ones(2, 7), torch.ones(2).long())], "cannot take a batch of shape"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_is_missing_is_named_in_one_line(case: str, tmp_path: Path) -> None:
    data, message = MISTAKES[case]
    with pytest.raises((ConfigError, DataError)) as caught:
        actions.train(Mine(), data_module=data, save_path=tmp_path, **SETTINGS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whatever_else_is_missing_is_named_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="transform: passes is missing"):
        actions.transform(Mine(), data_module=Rows(), save_dir=tmp_path)
    with pytest.raises(ConfigError, match="search_space"):
        actions.search(Mine(), data_module=Rows(), save_dir=tmp_path)
    with pytest.raises(DataError, match="the loaders given has no test rows"):
        actions.test(Mine(), data_module=(loader(0), loader(1)))


def test_labels_of_any_whole_numbers_will_do(tmp_path: Path) -> None:
    data = [(x, y.to(torch.uint8)) for x, y in loader(0)]
    run = actions.train(Mine(), data_module=data, save_path=tmp_path / "a", **SETTINGS)
    other = actions.train(Mine(), data_module=batches(0), save_path=tmp_path / "b", **SETTINGS)
    assert bench.same(run.last, other.last)


@pytest.mark.parametrize("data", [batches(0), DataLoader(Endless(), batch_size=2)])
def test_several_processes_need_rows_to_deal_out(data: Any) -> None:
    with pytest.raises(DataError, match="several processes share the rows of a DataLoader"):
        Epochs(data).batches(0, rank=0, processes=2)
