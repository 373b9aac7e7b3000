"""Networks that predict numbers: from a file to a front, in the units of the file."""

import csv
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import chop
from chop import actions
from chop.dataset import MaseDataModule
from chop.errors import ConfigError, DataError, UnknownNameError
from chop.figures import significant
from chop.lowering import InIntegers
from chop.models import get_model
from chop.models.weights import read_checkpoint
from chop.passes.graph.interface import load_mase_graph
from chop.preprocessing import Preprocessing, Targets, from_plain, preprocessing_of, targets_of
from chop.runs import RunFolder
from chop.tasks import TASKS, classes_predicted, numbers_predicted, task_of
from chop.training.metrics import evaluate_model
from chop.training.results import RegressionEvaluation, RegressionTally
from chop.views.sections import run as sections

BATCH = 64
SETTINGS: dict[str, Any] = {
    "task": "regression", "learning_rate": 0.01, "max_epochs": 3, "accelerator": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))


def houses(path: Path, rows: int = 400, shift: float = 0.0) -> Path:
    """Prices of about a quarter of a million, and weights of about a thousandth."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, rows), rng.normal(500, 100, rows)
    price = 250_000 + shift + 40_000 * a + 100 * (b - 500) + rng.normal(0, 2_000, rows)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "b", "price", "weight"])
        writer.writerows(zip(a, b, price, a / 1000, strict=True))
    return path


def data_of(path: Path, column: str = "price", **options: Any) -> MaseDataModule:
    return MaseDataModule(
        "csv", BATCH, path=path, label_column=column, task="regression", **options
    )


def trained(folder: Path, data: MaseDataModule, **settings: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = get_model("toy_mlp", "regression", dataset_info=data.dataset_info)
    found = actions.train(model, data_module=data, save_path=folder, **{**SETTINGS, **settings})
    return model, found


def test_a_file_is_learned_in_its_own_units(tmp_path: Path) -> None:
    data = data_of(houses(tmp_path / "houses.csv"))
    info = data.dataset_info
    assert (info.regression, info.num_outputs, info.num_classes) == (True, 1, None)
    assert info.target_names == ("price",)
    _, labels = next(iter(data.train_dataloader()))
    assert labels.shape == (BATCH, 1)
    assert 200_000 < float(labels.mean()) < 300_000  # labels are never scaled
    model, result = trained(tmp_path / "run", data)
    targets = targets_of(model)
    assert targets is not None
    raw = torch.cat([y for _, y in data.train_dataloader()])
    assert targets.mean == pytest.approx([float(raw.mean())], rel=1e-5)
    assert targets.scale == pytest.approx([float(raw.std(correction=0))], rel=1e-4)
    best = min(result.history, key=lambda row: row["val_loss_epoch"])
    assert best["val_loss_epoch"] < 0.5  # of standardised targets: a share of the variance
    assert 1_000 < best["val_mae_epoch"] < 30_000  # in the units of the file
    assert 0.5 < best["val_r2_epoch"] < 1
    log = (tmp_path / "run" / "training_log.csv").read_text().splitlines()[0]
    assert "train_mae" in log
    assert "acc" not in log
    tested_now = actions.test(model, data_module=data, task="regression")
    assert isinstance(tested_now, RegressionEvaluation)
    x, y = data.splits.test.tensors  # type: ignore[union-attr]
    with torch.no_grad():
        found = model(x).double() * targets.scale[0] + targets.mean[0]
    error = (found - y).abs()
    assert tested_now.mae == pytest.approx(float(error.mean()), rel=1e-5)
    assert tested_now.rmse == pytest.approx(float((found - y).square().mean().sqrt()), rel=1e-5)
    half = 1.96 * float(error.std()) / math.sqrt(len(y))
    assert tested_now.interval[1] - tested_now.mae == pytest.approx(half, rel=0.01)


def test_a_loaded_network_predicts_in_the_units_it_was_trained_on(tmp_path: Path) -> None:
    data = data_of(houses(tmp_path / "a.csv"))
    model, result = trained(tmp_path / "run", data)
    stored = read_checkpoint(result.last)["chop"]["preprocessing"]
    assert from_plain(stored, "it").targets == targets_of(model)  # type: ignore[union-attr]
    other = data_of(houses(tmp_path / "b.csv", shift=5_000.0))
    fresh = get_model("toy_mlp", "regression", dataset_info=other.dataset_info)
    found: Any = actions.test(
        fresh, data_module=other, task="regression", load_name=result.last, load_type="pl"
    )
    same: Any = actions.test(model, data_module=data, task="regression")
    # The other file has a mean of its own, by which nothing is taken back.
    assert found.mae == pytest.approx(same.mae, abs=5_000)
    assert found.mae != pytest.approx(same.mae, abs=10)
    assert targets_of(fresh) == targets_of(model)


def test_an_interrupted_run_goes_on_exactly(tmp_path: Path) -> None:
    data = data_of(houses(tmp_path / "a.csv"))
    _, whole = trained(tmp_path / "whole", data)
    trained(tmp_path / "half", data, max_epochs=3, max_steps=7)
    _, rest = trained(tmp_path / "half", data, resume=True)
    left, right = (read_checkpoint(each.last)["state_dict"] for each in (whole, rest))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_several_targets(tmp_path: Path) -> None:
    data = data_of(houses(tmp_path / "a.csv"), "price, weight")
    model, _ = trained(tmp_path / "run", data)
    found: Any = actions.test(model, data_module=data, task="regression", save_path=tmp_path / "t")
    price, weight = found.errors
    assert price.mae > 100
    assert weight.mae < 0.01
    assert found.r2 == pytest.approx((price.r2 + weight.r2) / 2)
    stored = json.loads((tmp_path / "t" / "test_results.json").read_text())
    assert list(stored["per_target"]) == ["price", "weight"]
    columns = numbers_predicted(torch.zeros(2, 2), preprocessing_of(model))
    assert list(columns) == ["prediction_price", "prediction_weight"]
    found = [float(each) for each in columns["prediction_price"]]
    assert found == pytest.approx([targets_of(model).mean[0]] * 2)  # type: ignore[union-attr]


MISTAKES = {
    "real numbers without a task": ({"task": "cls"}, "price", "write --task regression"),
    "a column of words": ({}, "words", "column 'words' does not hold numbers"),
    "a column with holes": ({}, "holes", "column 'holes' has values that are missing or not fin"),
    "an unknown column": ({}, "price,wieght", "no label column 'wieght': did you mean 'weight'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_is_wrong_with_a_file_is_one_line(case: str, tmp_path: Path) -> None:
    options, column, message = MISTAKES[case]
    rows = [["price", "weight", "words", "holes"][i] for i in range(4)]
    path = tmp_path / "bad.csv"
    lines = [[f"{n + 0.5}", f"{n}", "x" if column == "words" else "1", "nan" if n == 5 else "1"]
             for n in range(20)]  # fmt: skip
    path.write_text("\n".join(",".join(line) for line in [rows, *lines]))
    if column != "holes":
        path.write_text(path.read_text().replace("nan", "1"))
    with pytest.raises(DataError, match=message) as caught:
        MaseDataModule("csv", BATCH, path=path, label_column=column,
                       **{"task": "regression", **options}).setup()  # fmt: skip
    assert "\n" not in str(caught.value)


def test_tasks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'toy_tiny' has classes: write task 'cls'"):
        MaseDataModule("toy_tiny", BATCH, task="regression")
    friedman = MaseDataModule("friedman", BATCH)
    model = get_model("toy_mlp", "reg", dataset_info=friedman.dataset_info)
    with pytest.raises(ConfigError, match="numbers to be predicted: write task 'regression'"):
        actions.train(model, data_module=friedman, save_path=tmp_path)
    with pytest.raises(ConfigError, match="takes text"):
        get_model("encoder-tiny", "regression")
    with pytest.raises(DataError, match="predicts 2 numbers, but a row has 1"):
        actions.train(nn.Linear(10, 2), data_module=friedman, save_path=tmp_path, **SETTINGS)


def test_a_model_that_asks_for_classes_is_told_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from chop.models import MODELS, register_model

    monkeypatch.setattr(MODELS, "_entries", dict(MODELS.items()))
    register_model("mine")(lambda info: nn.Linear(info.num_features, info.num_classes))
    info = MaseDataModule("friedman", BATCH).dataset_info
    with pytest.raises(ConfigError, match="give num_outputs numbers, which is 1 here"):
        get_model("mine", "regression", dataset_info=info)


def test_the_toy_data_set_is_what_its_formula_says() -> None:
    data = MaseDataModule("friedman", BATCH)
    features, labels = data.splits.test.tensors  # type: ignore[union-attr]
    assert (len(features), data.dataset_info.target_names) == (2_000, ("y",))
    known = data.preprocessing
    assert known is not None
    x = features.double() * torch.tensor(known.scale) + torch.tensor(known.mean)
    told = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    noise = labels[:, 0] - (told + 10 * x[:, 3] + 5 * x[:, 4])
    assert float(noise.std()) == pytest.approx(1.0, abs=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.05)
    assert data.fingerprint == MaseDataModule("friedman", 7).fingerprint


class Net(nn.Module):
    """One number for each row, without a row of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.hidden(x).relu()).squeeze(-1)
        return found


def loaders() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=generator)
    y = x.sum(dim=1) + 0.1 * torch.randn(500, generator=generator)
    parts = [(x[a:b], y[a:b]) for a, b in ((0, 300), (300, 400), (400, 500))]
    return [DataLoader(TensorDataset(*part), 50) for part in parts]


def test_loaders_of_real_numbers_from_python_to_a_front(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, val, test = loaders()
    torch.manual_seed(0)
    model = Net()
    chop.train(model, train, val, epochs=8, learning_rate=0.02, project=tmp_path)
    result: Any = chop.evaluate(model, test)
    x, y = (torch.cat(each) for each in zip(*test, strict=True))
    assert result.mae == pytest.approx(float((model(x) - y).abs().mean().detach()), rel=1e-5)
    assert result.r2 > 0.9
    quantised: Any = chop.evaluate(chop.quantize(model, width=8, calibrate=train), test, exact=True)
    assert quantised.agreement.promised
    assert quantised.agreement.predictions == 0
    front = chop.search(
        model, train=train, val=val, test=test, strategy="tpe", widths=(3, 8), n_trials=6,
        project=tmp_path,
    )  # fmt: skip
    assert list(front.metrics) == ["mae", "ebops"]
    assert front[0].metrics["mae"] == min(point.metrics["mae"] for point in front)
    assert front[0].test == evaluate_model(front[0].model, test).primary
    assert front[0].test_accuracy is None
    assert front.start.chosen_by == evaluate_model(model, val).primary  # type: ignore[union-attr]
    assert "test mae" in repr(front)
    assert "test mae" in front._repr_html_()
    done = front[0].export("c", tmp_path / "c")
    assert done.verified_rows == 2_000
    assert done.manifest["verified"]["compared"]["graph"] == 2_000
    assert done.manifest["verified"]["kinds"]["real"] > 0
    with pytest.raises(UnknownNameError, match="'regression': unknown objective 'accuracy'.* mae"):
        chop.search(model, train=train, val=val, objectives=["accuracy"], project=tmp_path)
    with pytest.raises(DataError, match="give task='regression'"):
        chop.search(model, train=train, val=val, task="cls", project=tmp_path)
    with pytest.raises(DataError, match=r"real numbers, .* not torch.int64"):
        chop.train(model, [(x[:8], y[:8].long())], task="regression", project=tmp_path)
    with caplog.at_level(logging.INFO, "chop"):
        assert chop.report(tmp_path).is_file()


def test_widths_are_learned_where_numbers_are_predicted(tmp_path: Path) -> None:
    train, val, _ = loaders()
    torch.manual_seed(0)
    model = Net()
    chop.train(model, train, val, epochs=8, learning_rate=0.02, project=tmp_path)
    front = chop.search(
        model, train=train, val=val, strategy="learned", cycles=2, epochs=2, project=tmp_path,
        teacher={"hidden": [8], "epochs": 1, "share": 0.5},
    )  # fmt: skip
    assert front[0].metrics["r2"] > 0.5
    assert front[0].is_verified
    table = (front.folder / "learning.csv").read_text().splitlines()
    assert "mae" in table[0]


SEARCH: dict[str, Any] = {
    "search_space": {
        "name": "graph/quantize/mixed_precision_ptq",
        "setup": {"by": "type"},
        "seed": {
            "default": {"config": {"name": [None]}},
            "linear": {
                "config": {
                    "name": ["integer"], "data_in_width": [8], "data_in_frac_width": [4],
                    "weight_width": [4, 8], "weight_frac_width": [6],
                }
            },
        },
    },
    "strategy": {
        "sw_runner": {"regression_evaluation": {}},
        "hw_runner": {"average_bitwidth": {}},
        "metrics": {each: {"direction": "minimize"} for each in ("mae", "average_bitwidth")},
        "setup": {"n_trials": 2, "plots": False},
    },
}  # fmt: skip


def with_runner(name: str, metric: str) -> dict[str, Any]:
    metrics = {metric: {"direction": "minimize"}}
    return {
        **SEARCH,
        "strategy": {**SEARCH["strategy"], "sw_runner": {name: {}}, "metrics": metrics},
    }


def test_searches_measure_what_was_trained(tmp_path: Path) -> None:
    data = data_of(houses(tmp_path / "houses.csv"))
    model, _ = trained(tmp_path / "run", data)
    how: dict[str, Any] = {"task": "regression", "pretrained": True}
    found = actions.search(model, None, data, SEARCH, save_dir=tmp_path / "s", **how)
    assert list(found.metrics) == ["mae", "average_bitwidth"]  # type: ignore[union-attr]
    # A candidate knows nothing of scaling; the search does.
    assert 1_000 < found.best[0].metrics["mae"] < 40_000
    stored = json.loads((tmp_path / "s" / "best.json").read_text())["0"]["accuracies"]
    assert stored["test"]["mae"] > 1_000
    assert stored["chosen_by"]["mae"] == pytest.approx(found.best[0].metrics["mae"])
    again = actions.search(model, None, data, SEARCH, save_dir=tmp_path / "s", resume=True, **how)
    assert again.judged == found.judged  # type: ignore[union-attr]
    with pytest.raises(
        ConfigError, match=r"basic_evaluation is not for regression; write regr.*mae"
    ):
        actions.search(
            model, None, data, with_runner("basic_evaluation", "accuracy"),
            save_dir=tmp_path / "t", **how,
        )  # fmt: skip
    more = actions.search(
        model, None, data, with_runner("regression_train", "r2"), save_dir=tmp_path / "u", **how
    )
    assert 0 < more.best[0].metrics["r2"] < 1


def test_a_transform_says_what_it_has_cost_in_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from chop.verbs.transform.passes import BeforeAndAfter

    data = data_of(houses(tmp_path / "houses.csv"))
    model, _ = trained(tmp_path / "run", data)
    measured = BeforeAndAfter(data)
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8,
              "weight_frac_width": 6}  # fmt: skip
    graph, _ = actions.transform(
        model, None, data, {"quantize": {"by": "type", "linear": {"config": config}}},
        save_dir=tmp_path / "q", watch=measured, task="regression", pretrained=True,
    )  # fmt: skip
    with caplog.at_level(logging.INFO, "chop"):
        found = measured.compare(graph)
    assert "Mean absolute error on the same 40 validation rows: " in caplog.text
    assert found["before"]["mae"] != found["after"]["mae"]
    assert found["after"]["mae"] == pytest.approx(found["before"]["mae"], rel=0.3)
    again = load_mase_graph(tmp_path / "q" / "transformed_ckpt").model
    assert targets_of(again) == targets_of(model)


def test_the_page_speaks_of_errors(tmp_path: Path) -> None:
    data = data_of(houses(tmp_path / "houses.csv"))
    folder = tmp_path / "p" / "software"
    model, _ = trained(folder / "training_ckpts", data)
    actions.test(model, data_module=data, task="regression", save_path=folder / "checkpoints")
    parts = (sections.learning_curves, sections.test_section)
    curves, results = (part(RunFolder(tmp_path / "p", folder)) for part in parts)
    assert curves is not None
    assert results is not None
    assert curves.tiles[0].label == "Validation mean absolute error"
    assert results.tiles[0].label == "Test mean absolute error"
    both = f"{curves.body}{results.body}"
    assert "ccuracy" not in both
    assert "nats" not in both
    assert "R²" in both


def test_errors_are_those_that_their_names_say() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(50, 2, generator=generator)
    targets = Targets((1e6, -3.0), (100.0, 0.1), ("a", "b"))
    labels = targets.restore(outputs.double() + torch.randn(50, 2, generator=generator)).float()
    counted = RegressionTally(targets)
    for rows in range(0, 50, 20):
        counted.add(outputs[rows : rows + 20], labels[rows : rows + 20])
    found = counted.result()
    errors = targets.restore(outputs.double()) - labels
    residual, total = errors.square().sum(0), (labels.double() - labels.double().mean(0)).square()
    assert [each.mae for each in found.errors] == pytest.approx(errors.abs().mean(0).tolist())
    assert [each.r2 for each in found.errors] == pytest.approx(
        (1 - residual / total.sum(0)).tolist(), rel=1e-6
    )
    loss = task_of(labels).loss(outputs, labels, targets)
    assert found.loss == pytest.approx(float(loss), rel=1e-3)
    constant = RegressionTally()
    constant.add(torch.ones(4), torch.ones(4))
    assert constant.result().r2 == 1.0


def test_rows_that_differ_from_their_integers_are_counted_without_classes() -> None:
    torch.manual_seed(0)
    quantised = chop.quantize(nn.Linear(3, 1), torch.zeros(2, 3), width=8)
    both = InIntegers(quantised.model, torch.zeros(2, 3), classes=False)
    original = both._finished
    both._finished = lambda exact, device: original(exact, device) + 1  # type: ignore[method-assign]
    both(torch.randn(5, 3))
    assert both.agreement.predictions == 5


def test_every_task_is_one_row_of_one_table() -> None:
    for task in TASKS.values():
        assert task.primary_metric in task.metrics
        assert TASKS[task.name] is task
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    known = Preprocessing("features", (0,), (1,), classes=("no", "yes"))
    assert classes_predicted(scores, known)["prediction"] == ["yes", "no"]
    assert numbers_predicted(torch.ones(2), None) == {"prediction": ["1", "1"]}
    texts = [significant(each) for each in (8312.4, 13.008, 1.3e-3, 2e12, 0.0)]
    assert texts == ["8,312", "13.01", "0.001300", "2e+12", "0"]
