"""What comes back shows itself, in notebooks and in a terminal."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import chop

PICTURE = '<img src="data:image/png;base64,'


@pytest.fixture(scope="module")
def rows() -> DataLoader[tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    x = torch.randn(120, 3)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 40)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def cells(markup: str) -> list[str]:
    return re.findall(r"<t[hd](?: [^>]*)?>(.*?)\s*</t[hd]>", markup)


def test_a_training_shows_two_epochs_and_its_curves(
    network: nn.Module, rows: DataLoader[tuple[torch.Tensor, ...]], tmp_path: Path
) -> None:
    result = chop.train(network, rows, rows, epochs=3, project=tmp_path)
    shown = result._repr_html_()
    assert PICTURE in shown
    assert result.curves is not None
    assert result.curves.is_file()
    last = result.history[-1]
    assert cells(shown)[:5] == ["epoch", "train_loss", "train_acc", "val_loss", "val_acc"]
    assert cells(shown)[-5:] == [
        "2 (last)",
        *(f"{last[name]:.4f}" for name in ("train_loss", "train_acc")),
        *(f"{last[name]:.4f}" for name in ("val_loss_epoch", "val_acc_epoch")),
    ]
    assert repr(result).endswith(f"{result.best})")
    assert len(repr(result).splitlines()) == 1


def test_a_quantised_network_shows_its_formats(
    network: nn.Module, rows: DataLoader[tuple[torch.Tensor, ...]]
) -> None:
    q = chop.quantize(network, width=8, calibrate=rows, products_only=True)
    scale = q.info["calibration"]["operands"]["_0"]["weight"]["frac_width"]
    found = cells(q._repr_html_())
    assert found[:5] == ["", "computed by", "data_in_0", "weight", "bias"]
    assert found[5:7] == ["_0", "LinearInteger"]
    assert found[8] == f"integer (8, {scale})"
    assert "_2: LinearInteger" in repr(q)


def test_an_evaluation_shows_its_interval(
    network: nn.Module, rows: DataLoader[tuple[torch.Tensor, ...]]
) -> None:
    result = chop.evaluate(network, rows)
    low, high = result.interval
    assert cells(result._repr_html_()) == [
        "acc", f"{result.accuracy:.4f} ({low:.4f} to {high:.4f})",
        "loss", f"{result.loss:.4f}", "rows", "120",
    ]  # fmt: skip
    assert repr(result).startswith(f"Evaluation(acc {result.accuracy:.4f} (")


def test_a_front_shows_all_points_the_float_network_and_a_picture(
    network: nn.Module, rows: DataLoader[tuple[torch.Tensor, ...]], tmp_path: Path
) -> None:
    front = chop.search(
        network, train=rows, val=rows, test=rows, strategy="random", n_trials=8, project=tmp_path
    )
    shown = front._repr_html_()
    assert PICTURE in shown
    heads = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", shown)
    assert heads[:4] == ["", "trial", "accuracy", "ebops"]
    body = re.findall(r"<tr>(<td.*?)</tr>", shown)
    names = [cells(row)[0] for row in body]
    assert names == ["float", *(f"best_{place}" for place in range(len(front)))]
    assert all("±" in row for row in body)
