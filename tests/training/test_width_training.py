"""Training runs that learn widths: rates, cost, checkpoints, and the frozen network's bits."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from warm import python

from chop.actions import train
from chop.cli import main
from chop.config.layers import read_toml
from chop.dataset import MaseDataModule
from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.models.weights import read_checkpoint
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    freeze_transform_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)
from chop.training.optimisers import make_optimiser
from chop.training.settings import TrainingSettings

ROWS = 600


def learning(weight: float = 5.0) -> MaseGraph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(2, 16)}})
    config = {"name": "integer_trained", "weight_frac_width": weight}
    return quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})[0]


def run(graph: MaseGraph, folder: Path, epochs: int = 3, **more: Any) -> Any:
    x = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(2))
    rows = torch.utils.data.TensorDataset(x, x[:, :5].argmax(1))
    loaders = [torch.utils.data.DataLoader(rows, batch_size=100) for _ in range(2)]
    return train(
        graph.model, data_module=tuple(loaders), learning_rate=0.01, save_path=folder,
        plt_trainer_args={"max_epochs": epochs, "accelerator": "cpu"},
        **{"scheduler": "constant", "cost": {"weight": 1e-4}, **more},
    )  # fmt: skip


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[MaseGraph, Any]:
    """A run of three epochs that nothing disturbs."""
    graph = learning()
    return graph, run(graph, tmp_path_factory.mktemp("straight"))


def test_the_cost_falls_and_is_written(straight: tuple[MaseGraph, Any], tmp_path: Path) -> None:
    graph, result = straight
    free = run(learning(), tmp_path, cost=None).history
    costly = run(learning(), tmp_path, cost={"weight": 1e-2}).history
    assert costly[-1]["ebops_estimate"] < 0.7 * free[-1]["ebops_estimate"]
    table = (result.last.parent / "training_log.csv").read_text(encoding="utf-8")
    assert table.splitlines()[0].split(",")[-2] == "ebops_estimate"
    assert not graph.model._forward_pre_hooks
    for layer in ("0", "2"):
        data = graph.model.get_submodule(layer).quantizers["data_in"]
        assert bool((data.hi - data.lo).isfinite().all())


@pytest.mark.parametrize("cut", [{"epochs": 2}, {"max_steps": 9}])
def test_a_run_that_stops_resumes_with_the_same_numbers(
    cut: dict[str, int], straight: tuple[MaseGraph, Any], tmp_path: Path
) -> None:
    run(learning(), tmp_path, **cut)  # after an epoch, or after steps that are no whole refresh
    resumed = learning()
    run(resumed, tmp_path, resume=True)
    for name, value in straight[0].model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    kept = [read_checkpoint(each)["chop"]["learned_widths"]["widths"]
            for each in (straight[1].last, tmp_path / "last.ckpt")]  # fmt: skip
    assert kept[0]["step"] == kept[1]["step"] == 18
    with pytest.raises(ConfigError, match=r"cost is .*, but the run in .* has"):
        run(learning(), tmp_path, resume=True, cost={"weight": 1e-3})


def test_bits_have_a_separate_rate() -> None:
    model = learning().model
    bits = {id(p) for name, p in model.named_parameters() if name.endswith("frac_width")}
    for stated, expected in ((None, 0.02), (0.5, 0.5)):
        settings = TrainingSettings(
            learning_rate=0.01, bits_learning_rate=stated, weight_decay=0.1, optimizer="adamw"
        )
        first, second = make_optimiser(model, settings).param_groups
        assert {id(p) for p in second["params"]} == bits
        assert (first["lr"], second["lr"]) == (0.01, expected)
        assert (first["weight_decay"], second["weight_decay"]) == (0.1, 0.0)
        assert len(first["params"]) == 4
    model.parameter_groups = lambda: [{"params": list(model.parameters()), "lr": 0.3}]
    (only,) = make_optimiser(model, TrainingSettings()).param_groups
    assert only["lr"] == 0.3


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("weight = -1.0", r"cost.weight: input should be greater than or equal to 0 \(got -1.0\)"),
        ("magnitude = 2.0", r"cost.weight: .*required"),
        ("weight = 1.0\nname = 'macs'", "cost.name: input should be 'ebops'"),
        ("weight = 1.0\nrefresh = 0", "cost.refresh: input should be greater than 0"),
        ("weight = 1.0", "nothing in this network learns its widths"),
    ],
)
def test_a_cost_that_means_nothing_is_refused(
    table: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cost.toml"
    file.write_text(f"[train.cost]\n{table}\n", encoding="utf-8")
    assert "train" in read_toml(file)
    project = ["--project-dir", str(tmp_path / "out"), "--project", "p", "--report-to", "none"]
    command = ["train", "jsc-tiny", "jsc-sim", "--config", str(file), "--max-epochs", "1"]
    assert main([*command, *project]) == 2
    said = capfd.readouterr().err.strip().splitlines()

    assert re.search(message, said[-1]), said
    assert not (tmp_path / "out").exists()


FRESH = """
import sys, torch
from chop.dataset import MaseDataModule
from chop.ir.graph.mase_graph import MaseGraph
data = MaseDataModule("jsc-sim", batch_size=777)
data.setup()
graph = MaseGraph.from_checkpoint(sys.argv[1])
with torch.inference_mode():
    scores = torch.cat([graph.model(x) for x, _ in data.test_dataloader()])
torch.save(scores, sys.argv[2])
"""


def test_a_fresh_process_computes_the_same_bits_on_all_test_rows(
    straight: tuple[MaseGraph, Any], tmp_path: Path
) -> None:
    graph = copy.deepcopy(straight[0])
    data = MaseDataModule("jsc-sim", batch_size=1024)
    data.setup()
    graph.model.eval()
    with torch.no_grad():
        expected = torch.cat([graph.model(x) for x, _ in data.test_dataloader()])
    assert len(expected) == 20_000
    assert len(expected.unique(dim=0)) > 1000
    frozen, _ = freeze_transform_pass(graph)
    save_mase_graph_interface_pass(frozen, {"save_dir": tmp_path / "g", "weights": "codes"})
    done = python("-c", FRESH, tmp_path / "g", tmp_path / "scores.pt")
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "scores.pt", weights_only=True), expected)
