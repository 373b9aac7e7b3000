"""Searches of networks with batch normalisation, which is folded before formats are chosen."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import chop
from chop.actions import search
from chop.config.layers import read_toml
from chop.dataset import MaseDataModule
from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import PASSES
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)


class Residual(nn.Module):
    """A network that begins with a normalisation and has one behind each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(1)
        self.convs = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.out = nn.Linear(4, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.norms[0](self.convs[0](self.first(image))).relu()
        x = (x + self.norms[1](self.convs[1](x))).relu()
        scores: Tensor = self.out(x.mean((2, 3)))
        return scores


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    model = Residual()
    for _ in range(8):  # running statistics that are not those of the beginning
        model(torch.randn(32, 1, 8, 8) * 3 + 1)
    return model.eval()


def loader(rows: int, seed: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 1, 8, 8, generator=generator) * 3 + 1
    return DataLoader(TensorDataset(images, torch.randint(3, (rows,), generator=generator)), 32)


def test_the_front_is_verified_and_its_files_make_the_same_networks(
    tmp_path: Path, network: nn.Module
) -> None:
    before = {name: value.clone() for name, value in network.state_dict().items()}
    rows = {"train": loader(64, 0), "val": loader(64, 1), "test": loader(64, 2)}
    front = chop.search(
        network, **rows, strategy="random", n_trials=4, widths=(6, 8), project=tmp_path
    )
    assert front.best
    assert all(front.verified[trial.number].equal for trial in front.best)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())

    passes = read_toml(Path(str(front.folder)) / "best_0.toml")["passes"]
    assert list(passes) == ["fold_normalisation", "quantize"]
    images = next(iter(rows["test"]))[0]
    graph, _ = init_metadata_analysis_pass(MaseGraph(network))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"image": images}})
    for name, arguments in passes.items():
        graph, _ = PASSES[name](graph, arguments)
    assert torch.equal(graph.model(images), front[0].model(images))


def test_the_search_that_sensitivity_suggests_folds(network: nn.Module) -> None:
    found = chop.sensitivity(network, train=loader(64, 0), val=loader(64, 1), widths=(4, 8))
    assert found.search["search_space"]["setup"] == {"by": "name", "fold": True}
    assert set(found.layers) == {"first", "convs_0", "convs_1", "out"}


def search_tiny(folder: Path, *, fold: bool, eval_mode: bool) -> None:
    """Search one configuration of jsc-tiny, which begins with a normalisation."""
    rule = {"name": ["integer"]}
    for role in ("data_in", "weight", "bias"):
        rule |= {f"{role}_width": [8], f"{role}_frac_width": [4]}
    space = {
        "name": "graph/quantize/mixed_precision_ptq",
        "setup": {"by": "type", "fold": fold},
        "seed": {"linear": {"config": rule}} | ({"conv1d": {"config": rule}} if fold else {}),
    }
    strategy = {
        "name": "optuna",
        "eval_mode": eval_mode,
        "setup": {"n_trials": 1},
        "sw_runner": {"basic_evaluation": {"num_samples": 64}},
        "hw_runner": {},
        "metrics": {"accuracy": {"direction": "maximize"}},
    }
    tables = {"search_space": space, "strategy": strategy}
    data = MaseDataModule("jsc-sim", batch_size=512)
    data.setup()
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    search(model, get_model_info("jsc-tiny"), data, tables, save_dir=folder, pretrained=True)


def test_a_network_in_training_mode_cannot_be_folded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eval_mode = true"):
        search_tiny(tmp_path, fold=True, eval_mode=False)


def test_a_search_that_cannot_be_verified_says_that_folding_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    advice = "fold = true in [search.search_space.setup]"
    search_tiny(tmp_path / "as it is", fold=False, eval_mode=True)
    assert "0 of 1 best trials" in caplog.text
    assert advice in caplog.text
    caplog.clear()
    search_tiny(tmp_path / "folded", fold=True, eval_mode=True)
    assert "1 of 1 best trials" in caplog.text
    assert advice not in caplog.text
