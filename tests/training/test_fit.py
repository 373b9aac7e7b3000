"""Training: what is computed, counted, logged and stored."""

import csv
import json
import math
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import train_bench as bench
from lightning.pytorch.loggers import TensorBoardLogger
from torch import fx
from torch.utils.data import DataLoader

from chop.dataset import MaseDataModule
from chop.errors import ConfigError, DataError
from chop.training.optimisers import learning_rate
from chop.training.settings import TrainingSettings


class RowByRow(MaseDataModule):
    """The same rows through torch's own loader, as for data that does not fit in memory."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_dataset, self.batch_size)


def test_a_network_learns(tmp_path: Path) -> None:
    history = bench.run(tmp_path, max_epochs=8, learning_rate=0.05).history
    assert history[-1]["val_acc_epoch"] > 0.9
    assert history[-1]["val_loss_epoch"] < history[0]["val_loss_epoch"]


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    runs = [bench.run(tmp_path, bench.dropout_model(), seed=seed) for seed in (0, 1)]
    runs.append(bench.run(tmp_path, bench.dropout_model(), seed=0))
    assert bench.same(runs[0].last, runs[2].last)
    assert not bench.same(runs[0].last, runs[1].last)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_weight_decay_is_honoured(tmp_path: Path, optimizer: str) -> None:
    norms = []
    for decay in (0.0, 0.5):
        result = bench.run(tmp_path, optimizer=optimizer, weight_decay=decay, max_epochs=1)
        state = torch.load(result.last, weights_only=True)["optimizer_states"][0]
        assert state["param_groups"][0]["weight_decay"] == decay
        norms.append(sum(float(value.norm()) for value in bench.weights(result.last).values()))
    assert norms[1] < norms[0]


def test_sgd_has_nesterov_momentum(tmp_path: Path) -> None:
    result = bench.run(tmp_path, optimizer="sgd", max_epochs=1)
    group = torch.load(result.last, weights_only=True)["optimizer_states"][0]["param_groups"][0]
    assert (group["momentum"], group["nesterov"], group["fused"]) == (0.9, True, True)


@pytest.mark.parametrize("rate", [1e-2, 1e-6, 1e-8])
def test_the_cosine_schedule_is_torchs_and_never_rises(rate: float) -> None:
    settings = TrainingSettings(learning_rate=rate, max_epochs=10)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10, eta_min=min(1e-6, rate))
    rates = []
    for epoch in range(10):
        rates.append(learning_rate(settings, epoch))
        assert math.isclose(rates[-1], schedule.get_last_lr()[0], rel_tol=1e-9)
        optimiser.step()
        schedule.step()
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("scheduler", "expected"), [("linear", [0.01, 0.005]), ("constant", [0.01, 0.01])]
)
def test_other_schedules(scheduler: str, expected: list[float], tmp_path: Path) -> None:
    history = bench.run(tmp_path, scheduler=scheduler, max_epochs=2).history
    assert [row["learning_rate"] for row in history] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("accumulate", "per_epoch"), [(1, 10), (3, 4), (20, 1)])
def test_optimiser_steps_are_counted(tmp_path: Path, accumulate: int, per_epoch: int) -> None:
    result = bench.run(tmp_path, accumulate_grad_batches=accumulate, max_epochs=2)
    content = torch.load(result.last, weights_only=True)
    assert content["global_step"] == 2 * per_epoch
    assert content["epoch"] == 1
    assert content["optimizer_states"][0]["state"][0]["step"] == 2 * per_epoch


def test_accumulated_gradients_are_those_of_a_larger_batch(tmp_path: Path) -> None:
    small = bench.run(tmp_path, data=MaseDataModule("toy_tiny", 512), accumulate_grad_batches=2)
    large = bench.run(tmp_path)
    for name, value in bench.weights(large.last).items():
        assert torch.allclose(bench.weights(small.last)[name], value, atol=1e-5)


@pytest.mark.parametrize("limit", [1, 10, 17])
def test_max_steps_is_exact_and_the_last_epoch_is_validated(tmp_path: Path, limit: int) -> None:
    result = bench.run(tmp_path, max_steps=limit)
    assert torch.load(result.last, weights_only=True)["global_step"] == limit
    assert result.history[-1]["step"] == limit
    assert "val_loss_epoch" in result.history[-1]


def test_metrics_are_logged_at_the_steps_asked_for(tmp_path: Path) -> None:
    memory = bench.MemoryLogger()
    bench.run(tmp_path, visualizer=memory, log_every_n_steps=7, max_epochs=2)
    for name in ("train_acc_step", "train_loss_step", "lr-Adam"):
        assert memory.steps_with(name) == [7, 14]
    for name in ("val_acc_epoch", "val_loss_epoch"):
        assert memory.steps_with(name) == [10, 20]


def test_tensorboard_has_the_names_of_the_labs(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardLogger(tmp_path / "tensorboard", default_hp_metric=False)
    bench.run(tmp_path, visualizer=board, log_every_n_steps=5, max_epochs=2)
    folder = tmp_path / "tensorboard" / "lightning_logs" / "version_0"
    events = EventAccumulator(str(folder)).Reload()
    names = {"train_acc_step", "train_loss_step", "val_acc_epoch", "val_loss_epoch"}
    assert names <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train_acc_step")] == [5, 10, 15, 20]
    assert "learning_rate: 0.01" in (folder / "hparams.yaml").read_text()


def test_every_epoch_is_in_the_table_and_the_curves_are_drawn(tmp_path: Path) -> None:
    result = bench.run(tmp_path)
    text = (tmp_path / "training_log.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [int(row["step"]) for row in rows] == [10, 20, 30]
    assert float(rows[2]["val_loss_epoch"]) == result.history[2]["val_loss_epoch"]
    assert (tmp_path / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_checkpoint_tells_how_it_was_made(tmp_path: Path) -> None:
    result = bench.run(tmp_path, seed=3, record={"command": ["ch", "train"]})
    content = torch.load(result.best, weights_only=True)
    assert all(name.startswith("model.") for name in content["state_dict"])
    ours = content["chop"]
    assert ours["seed"] == 3
    assert ours["record"]["command"] == ["ch", "train"]
    assert ours["record"]["data"].startswith("toy_tiny")
    assert ours["versions"]["torch"] == version("torch")  # a build may add +cpu or +cu130 to it
    json.dumps([ours["settings"], ours["record"], ours["versions"]])


def test_the_best_epoch_has_the_lowest_validation_loss(tmp_path: Path) -> None:
    result = bench.run(tmp_path, optimizer="sgd", learning_rate=8.0, max_epochs=6, seed=5)
    losses = [row["val_loss_epoch"] for row in result.history]
    best = torch.load(result.best, weights_only=True)
    assert best["epoch"] == losses.index(min(losses))
    assert best["callbacks"]["BestAndLast"]["best_loss"] == pytest.approx(min(losses))


def test_a_second_run_leaves_the_first_alone(tmp_path: Path) -> None:
    first = bench.run(tmp_path, max_epochs=1)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    second = bench.run(tmp_path, max_epochs=1, learning_rate=0.1)
    assert (first.best.name, second.best.name, second.last.name) == (
        "best.ckpt",
        "best-v1.ckpt",
        "last-v1.ckpt",
    )
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (tmp_path / "training_log-v1.csv").exists()


def test_early_stopping(tmp_path: Path) -> None:
    result = bench.run(tmp_path, learning_rate=1e-30, early_stopping=2, max_epochs=50)
    assert len(result.history) == 3  # the first epoch sets the mark, two more do not beat it


def test_rows_may_come_from_torchs_own_loader(tmp_path: Path) -> None:
    result = bench.run(tmp_path, bench.dropout_model(), RowByRow("toy_tiny", 2048), max_epochs=1)
    assert result.history[0]["step"] == 5


def test_a_traced_graph_is_trained(tmp_path: Path) -> None:
    graph = fx.symbolic_trace(bench.toy_model())
    graph.eval()
    before = {name: value.clone() for name, value in graph.state_dict().items()}
    result = bench.run(tmp_path, graph, max_epochs=1)
    after = graph.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert {name.removeprefix("model.") for name in bench.weights(result.last)} == set(before)


@pytest.mark.parametrize(("precision", "dtype"), [("64", torch.float64), (32, torch.float32)])
def test_precision(tmp_path: Path, precision: object, dtype: torch.dtype) -> None:
    result = bench.run(tmp_path, precision=precision, max_epochs=1)
    assert {value.dtype for value in bench.weights(result.last).values()} == {dtype}


def test_a_model_of_doubles_stays_one(tmp_path: Path) -> None:
    result = bench.run(tmp_path, bench.toy_model().double(), max_epochs=1)
    assert {value.dtype for value in bench.weights(result.last).values()} == {torch.float64}


def test_half_precision_falls_back_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run(tmp_path, precision="16-mixed", accelerator="cpu", max_epochs=1)
    assert "16-mixed needs a GPU" in capsys.readouterr().out


def test_the_output_is_calm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(tmp_path, max_epochs=2)
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0].endswith("Training model 'toy'...")
    assert lines[-1].endswith("Training is completed")
    epochs = [line for line in lines if "Epoch" in line]
    assert len(epochs) == 2
    assert re.search(r"10/10 .*train_acc_step=.*val_acc_epoch=.*val_loss_epoch=", epochs[1])
    assert not any(word in shown.out for word in ("GPU available", "Tip", "LOCAL_RANK"))


def test_the_number_of_threads_is_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    bench.run(tmp_path, num_threads=2, max_epochs=1)
    assert torch.get_num_threads() == before


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_epoch.*did you mean 'max_epochs'"):
        bench.run(tmp_path, plt_trainer_args={"max_epoch": 3})
    with pytest.raises(ConfigError, match="classifier"):
        bench.run(tmp_path, task="translation")


def test_a_model_that_does_not_fit_the_data_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot take a batch of shape \(1024, 1, 2, 2\)"):
        bench.run(tmp_path, torch.nn.Linear(7, 2))
    with pytest.raises(DataError, match="1 classes apart; a label is 1"):
        bench.run(tmp_path, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1)))


def test_a_quantised_graph_is_trained_and_saved_as_a_graph(tmp_path: Path) -> None:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.graph import quantize_transform_pass
    from chop.passes.graph.analysis import (
        add_common_metadata_analysis_pass,
        init_metadata_analysis_pass,
    )
    from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass

    graph, _ = init_metadata_analysis_pass(MaseGraph(bench.toy_model()), None)
    graph, _ = add_common_metadata_analysis_pass(
        graph, {"dummy_in": {"x": torch.randn(8, 1, 2, 2)}}
    )
    widths = {f"{what}_{kind}": size for what in ("data_in", "weight", "bias")
              for kind, size in (("width", 8), ("frac_width", 4))}  # fmt: skip
    rule = {"config": {"name": "integer", **widths}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": rule})
    save_mase_graph_interface_pass(graph, {"save_dir": tmp_path / "quantised"})
    given = {"load_name": tmp_path / "quantised", "load_type": "mz", "learning_rate": 0.05}
    result = bench.run(tmp_path / "run", **given)
    assert result.history[-1]["val_acc_epoch"] > result.history[0]["val_acc_epoch"]
    trained = load_mase_graph(tmp_path / "run" / "transformed_ckpt").model
    kinds = {type(module).__name__ for module in trained.modules()}
    assert "LinearInteger" in kinds
    saved = {
        name.removeprefix("model."): value for name, value in bench.weights(result.last).items()
    }
    assert all(torch.equal(value, saved[name]) for name, value in trained.state_dict().items())
