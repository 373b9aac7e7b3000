"""Rows are scaled as those that the loaded model was trained on, and nothing of it is silent."""

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from chop import MaseGraph, actions
from chop.cli import main
from chop.dataset import DATASETS, MaseDataModule, Preprocessing, Splits, register_dataset
from chop.dataset.inputs import rows_for
from chop.dataset.preprocess import standardise
from chop.errors import CheckpointError, DataError, GraphError
from chop.loading.networks import load_model
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    load_mase_graph,
    normalise_transform_pass,
    save_mase_graph_interface_pass,
)
from chop.preprocessing import preprocessing_of, set_preprocessing
from chop.training.metrics import feature_summary

ROWS = 600
RNG = np.random.default_rng(7)
CENTRES = np.array([[1000.0, -5.0, 0.3], [1100.0, -5.02, 0.5]])
LABELS = RNG.integers(0, 2, ROWS)
MEASURED = RNG.normal(CENTRES[LABELS], (60, 0.015, 0.15)).astype(np.float32)
NAMES = ("mass", "charge", "width")


def csv(path: Path, features: np.ndarray, names: tuple[str, ...] = NAMES) -> Path:
    lines = [",".join([*names, "label"])]
    lines += [
        ",".join([*map(repr, row.tolist()), str(label)])
        for row, label in zip(features, LABELS, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def own(features: np.ndarray, **facts: Any) -> Splits:
    rows = (features, LABELS)
    return Splits(rows, rows, rows, **facts)


class OneByOne(Dataset[Any]):
    def __init__(self, features: np.ndarray) -> None:
        self.features = features

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        return self.features[place], int(LABELS[place])


@pytest.fixture
def data_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Splits], MaseDataModule]:
    """A data module of rows that a function of the user's own returns."""
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS.items()))

    def make(splits: Splits) -> MaseDataModule:
        name = f"own-{len(DATASETS)}"
        register_dataset(name)(lambda: splits)
        return MaseDataModule(name, batch_size=64)

    return make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project in which a network was trained on a CSV file and made into a saved graph."""
    folder = tmp_path_factory.mktemp("runs")
    file = csv(folder / "rows.csv", MEASURED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHOP_CACHE", str(folder / "cache"))
        assert main([*TRAIN, *common(folder, file), "--max-epochs", "8"]) == 0
        load = ["--load", str(checkpoint(folder)), "--load-type", "pl"]
        config = folder / "passes.toml"
        config.write_text("[passes.report_graph]\n", encoding="utf-8")
        assert main(["transform", *common(folder, file), *load, "--config", str(config)]) == 0
        yield folder


TRAIN = ("train", "--learning-rate", "1e-2", "--report-to", "none")


def common(folder: Path, file: Path) -> list[str]:
    words = ["jsc-mlp", "csv", "--dataset-path", str(file), "--project-dir", str(folder)]
    words += ["--project", "p", "--accelerator", "cpu", "--batch-size", "32"]
    return words


def checkpoint(folder: Path) -> Path:
    return folder / "p" / "software" / "training_ckpts" / "best.ckpt"


def saved_graph(folder: Path) -> Path:
    return folder / "p" / "software" / "transform" / "transformed_ckpt"


def of_csv(run: Path, name: str = "rows.csv") -> MaseDataModule:
    return MaseDataModule("csv", 32, path=run / name)


def accuracy(model: torch.nn.Module, data: MaseDataModule) -> float:
    info = get_model_info("jsc-mlp")
    result: float = actions.test(model, info, data, data.dataset_info).accuracy
    return result


LOADERS = {
    "checkpoint": lambda run: load_model(
        checkpoint(run), "pl", get_model("jsc-mlp", dataset_info=of_csv(run).dataset_info)
    ),
    "graph": lambda run: load_model(saved_graph(run)),
}
LOADED = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)


def trained_with(run: Path) -> Preprocessing:
    found = of_csv(run).preprocessing
    assert found is not None
    return found


def by_hand(how: Preprocessing, features: np.ndarray = MEASURED) -> torch.Tensor:
    """Features scaled with these constants, step by step in float32."""
    mean, scale = np.array(how.mean, np.float32), np.array(how.scale, np.float32)
    return torch.from_numpy((features - mean) / scale)


def test_what_is_stored_is_what_was_done(run: Path) -> None:
    data = of_csv(run)
    done = trained_with(run)
    assert (done.kind, done.names, len(done.mean)) == ("features", NAMES, 3)
    rows = {row.numpy().tobytes() for row in by_hand(done)}
    assert {row.numpy().tobytes() for row in data.test_dataset.tensors[0]} <= rows
    for load in LOADERS.values():
        assert preprocessing_of(load(run)) == done
    again = json.loads(json.dumps(done.as_plain()))
    assert Preprocessing(**again) == done


@LOADED
def test_measured_rows_through_a_function_of_the_users(
    load: Callable[[Path], torch.nn.Module],
    run: Path,
    data_of: Callable[[Splits], MaseDataModule],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such rows got an accuracy of 0.640 where rows scaled by hand got 0.852, without a word."""
    model, data = load(run), data_of(own(MEASURED))
    done = trained_with(run)
    with torch.no_grad():
        right = (model.eval()(by_hand(done)).argmax(1).numpy() == LABELS).mean()
        wrong = (model(torch.from_numpy(MEASURED)).argmax(1).numpy() == LABELS).mean()
    assert accuracy(model, data) == pytest.approx(right)
    assert right > 0.8 > 0.7 > wrong
    assert torch.equal(rows_for(model, data).test_dataset.tensors[0], by_hand(done))
    assert torch.equal(data.test_dataset.tensors[0], torch.from_numpy(MEASURED))
    shown = capsys.readouterr().out
    assert "The rows look as they were measured, and they are scaled with" in shown
    assert "WARNING" not in shown
    assert "Features: 3 features, standardised ('mass': mean 10" in shown


def test_the_command_line_scales_measured_rows(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS.items()))
    code = tmp_path / "mine.py"
    code.write_text(
        "import numpy as np\n"
        "from chop.dataset import Splits, register_dataset\n"
        "@register_dataset('measured-rows')\n"
        "def rows(request):\n"
        "    table = np.loadtxt(request.path, delimiter=',', skiprows=1)\n"
        "    part = (table[:, :-1].astype(np.float32), table[:, -1].astype(int))\n"
        "    return Splits(part, part, part)\n",
        encoding="utf-8",
    )
    for load in (["--load", str(checkpoint(run)), "--load-type", "pl"],
                 ["--load", str(saved_graph(run)), "--load-type", "mz"]):  # fmt: skip
        words = common(tmp_path, run / "rows.csv")
        words[1] = "measured-rows"
        assert main(["test", "--report-to", "none", *words, "--import", str(code), *load]) == 0
    stored = sorted((tmp_path / "p/software/checkpoints").glob("test_results*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in stored]
    assert len({each["test_acc_epoch"] for each in results}) == 1
    assert results[0]["test_acc_epoch"] > 0.8
    assert Preprocessing(**results[0]["preprocessing"]) == trained_with(run)


def test_all_rows_of_a_file_as_test_rows(run: Path, tmp_path: Path) -> None:
    load = ["--load", str(checkpoint(run)), "--load-type", "pl", "--split", "all"]
    assert main(["test", "--report-to", "none", *common(tmp_path, run / "rows.csv"), *load]) == 0
    stored = json.loads((tmp_path / "p/software/checkpoints/test_results.json").read_text())
    assert (stored["rows"], stored["split"]) == (ROWS, "all")
    with torch.no_grad():
        found = LOADERS["checkpoint"](run).eval()(by_hand(trained_with(run))).argmax(1)
    assert stored["all_acc_epoch"] == pytest.approx((found.numpy() == LABELS).mean())


STATES: dict[str, tuple[Callable[[Preprocessing], np.ndarray], str, bool]] = {
    "standardised": (lambda how: by_hand(how).numpy(), "look standardised already", False),
    "by constants of their own": (
        lambda how: (MEASURED - MEASURED.mean(0)) / MEASURED.std(0),
        "look standardised already and are left as they are ('",
        False,
    ),
    "elsewhere": (
        lambda how: MEASURED * np.float32(3) + np.float32(900),
        "look neither like those that the model was trained on nor standardised ('charge' has mean",
        True,
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_rows_that_look_otherwise_are_a_warning(
    state: str,
    run: Path,
    data_of: Callable[[Splits], MaseDataModule],
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, message, is_scaled = STATES[state]
    done = trained_with(run)
    features = make(done)
    found = rows_for(LOADERS["graph"](run), data_of(own(features))).test_dataset.tensors[0]
    expected = by_hand(done, features) if is_scaled else torch.from_numpy(features)
    assert torch.equal(found, expected)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "WARNING" in each]
    assert message in line
    assert "in training" in line


@LOADED
def test_a_file_of_other_rows_is_scaled_with_the_constants_of_the_model(
    load: Callable[[Path], torch.nn.Module], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shifted = MEASURED.copy()
    shifted[LABELS == 1, 0] += np.float32(500)
    csv(run / "shifted.csv", shifted)
    data = of_csv(run, "shifted.csv")
    found = rows_for(load(run), data)
    done = trained_with(run)
    assert data.preprocessing.constants != found.preprocessing.constants == done.constants
    exact = {row.numpy().tobytes() for row in by_hand(done, shifted)}
    assert {row.numpy().tobytes() for row in found.train_dataset.tensors[0]} <= exact
    assert found.fingerprint == data.fingerprint
    sent = pickle.loads(pickle.dumps(found))  # as to a process of a search
    assert torch.equal(sent.test_dataset.tensors[0], found.test_dataset.tensors[0])
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "WARNING" in each]
    mean, scale = data.preprocessing.mean[0], data.preprocessing.scale[0]
    assert f"'mass' has mean {mean:.4g} and deviation {scale:.4g} here" in line
    assert f"{done.mean[0]:.4g} and {done.scale[0]:.4g} in training" in line


def test_the_same_rows_are_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = of_csv(run)
    assert rows_for(LOADERS["graph"](run), data) is data
    assert "WARNING" not in capsys.readouterr().out


def test_rows_whose_function_says_what_it_did(
    run: Path, data_of: Callable[[Splits], MaseDataModule]
) -> None:
    features = MEASURED + np.float32(0.01)
    expected = by_hand(trained_with(run), features)
    scaled = features.copy()
    said = standardise(scaled, names=NAMES)
    found = rows_for(LOADERS["graph"](run), data_of(own(scaled, preprocessing=said)))
    torch.testing.assert_close(found.test_dataset.tensors[0], expected, atol=2e-5, rtol=1e-5)


def test_rows_that_come_one_by_one(run: Path, data_of: Callable[[Splits], MaseDataModule]) -> None:
    rows = OneByOne(MEASURED)
    found = rows_for(
        LOADERS["graph"](run), data_of(Splits(rows, rows, rows, class_names=("a", "b")))
    )
    features = torch.cat([batch for batch, _ in found.test_dataloader()])
    assert torch.equal(features, by_hand(trained_with(run)))


MISFITS = {
    "features in another order": (
        MEASURED[:, ::-1],
        ("width", "charge", "mass"),
        r"in another order \('width' for 'mass'\): order the columns as mass, charge, width",
    ),
    "fewer features": (MEASURED[:, :2], NAMES[:2], "trained on 3 features, but the rows have 2"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_other_features_do_not_fit(case: str, run: Path) -> None:
    features, names, message = MISFITS[case]
    csv(run / "misfit.csv", features, names)
    with pytest.raises(DataError, match=message):
        rows_for(LOADERS["graph"](run), of_csv(run, "misfit.csv"))


def test_other_names_are_a_warning(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv(run / "renamed.csv", MEASURED, ("mass", "charge", "breadth"))
    rows_for(LOADERS["graph"](run), of_csv(run, "renamed.csv"))
    assert "other features than the model was trained on: 'breadth' for 'width'" in (
        capsys.readouterr().out
    )


def test_files_of_before_say_nothing_and_load(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = torch.load(checkpoint(run), weights_only=True)
    del content["chop"]["preprocessing"]
    torch.save(content, tmp_path / "old.ckpt")
    model = get_model("jsc-mlp", dataset_info=of_csv(run).dataset_info)
    graph = load_mase_graph(saved_graph(run))
    graph.preprocessing = None
    save_mase_graph_interface_pass(graph, tmp_path / "old")
    assert "preprocessing" not in json.loads((tmp_path / "old/graph.json").read_text())
    capsys.readouterr()
    for loaded in (load_model(tmp_path / "old.ckpt", "pl", model), load_model(tmp_path / "old")):
        assert preprocessing_of(loaded) is None
        data = of_csv(run)
        assert rows_for(loaded, data) is data
    shown = capsys.readouterr().out
    assert shown.count("It does not say how the rows were scaled") == 2
    assert "WARNING" not in shown


HOSTILE: dict[str, dict[str, Any]] = {
    "no number": {"mean": [0, float("nan"), 0]},
    "infinite": {"scale": [1, float("inf"), 1]},
    "too large for float32": {"mean": [0, 1e300, 0]},
    "zero": {"scale": [1, 0, 1]},
    "zero in float32": {"scale": [1, 1e-60, 1]},
    "negative": {"scale": [1, -1, 1]},
    "divisor": {"divisor": 0},
    "too few": {"scale": [1, 1]},
    "none": {"mean": [], "scale": [], "names": []},
    "names": {"names": ["a"]},
    "kind": {"kind": "rows"},
    "text": {"mean": ["x", "y", "z"]},
    "lists": {"mean": [[0], [0], [0]]},
    "unknown": {"exec": "import os"},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_constants_from_a_stranger_are_checked(case: str, run: Path, tmp_path: Path) -> None:
    plain = trained_with(run).as_plain() | HOSTILE[case]
    content = torch.load(checkpoint(run), weights_only=True)
    content["chop"]["preprocessing"] = plain
    torch.save(content, tmp_path / "hostile.ckpt")
    model = get_model("jsc-mlp", dataset_info=of_csv(run).dataset_info)
    with pytest.raises(CheckpointError, match=r"hostile\.ckpt: its preprocessing makes no sense"):
        load_model(tmp_path / "hostile.ckpt", "pl", model)
    graph = load_mase_graph(saved_graph(run))
    save_mase_graph_interface_pass(graph, tmp_path / "hostile")
    record = json.loads((tmp_path / "hostile/graph.json").read_text())
    del record["checksum"]
    record["preprocessing"] = plain
    (tmp_path / "hostile/graph.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"graph\.json: its preprocessing makes no sense"):
        load_mase_graph(tmp_path / "hostile")


QUANTISED = {
    "name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8,
    "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6,
}  # fmt: skip


def test_it_survives_copies_and_passes(run: Path, tmp_path: Path) -> None:
    from chop.passes.graph import (
        add_common_metadata_analysis_pass,
        linear_bn_fusion_transform_pass,
        prune_transform_pass,
        quantize_transform_pass,
    )

    done = trained_with(run)
    graph = load_mase_graph(saved_graph(run))
    x = by_hand(done)[:8]
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    for change in (
        copy.deepcopy,
        lambda graph: MaseGraph(copy.deepcopy(graph.model)),
        lambda graph: MaseGraph(pickle.loads(pickle.dumps(graph.model))),
    ):
        assert change(graph).preprocessing == done
    linear_bn_fusion_transform_pass(graph)
    prune_transform_pass(graph, {"weight": {"sparsity": 0.2}})
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": QUANTISED}})
    assert graph.preprocessing == done
    save_mase_graph_interface_pass(graph, {"save_dir": tmp_path / "g", "weights": "codes"})
    assert load_mase_graph(tmp_path / "g").preprocessing == done


def test_training_that_starts_from_a_model_keeps_its_constants(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = csv(tmp_path / "other.csv", MEASURED[::-1] * np.float32(1.01))
    load = ["--load", str(checkpoint(run)), "--load-type", "pl", "--max-epochs", "1"]
    assert main([*TRAIN, *common(tmp_path, other), *load]) == 0
    assert "with the constants of the model" in capsys.readouterr().out
    content = torch.load(checkpoint(tmp_path), weights_only=True)
    assert Preprocessing(**content["chop"]["preprocessing"]) == trained_with(run)
    record = json.loads((tmp_path / "p/software/run_train.json").read_text(encoding="utf-8"))
    assert Preprocessing(**record["preprocessing"]) == trained_with(run)
    # Without --load it is the run that goes on that says how its rows are scaled.
    capsys.readouterr()
    assert main([*TRAIN, *common(tmp_path, other), "--max-epochs", "1", "--resume"]) == 0
    assert "with the constants of the model" in capsys.readouterr().out


PROFILE = """
[passes.profile_statistics]
by = "type"
target_weight_nodes = []
target_activation_nodes = ["relu"]
num_samples = 64
activation_statistics.range_min_max = {device = "cpu", dims = "all"}
"""


def transformed(run: Path, folder: Path, passes: str) -> torch.nn.Module:
    """The network of the run after some passes of the command line, saved and loaded."""
    folder.mkdir()
    config = folder / "passes.toml"
    config.write_text(passes, encoding="utf-8")
    load = ["--load", str(checkpoint(run)), "--load-type", "pl", "--config", str(config)]
    assert main(["transform", *common(folder, run / "rows.csv"), *load]) == 0
    return load_model(saved_graph(folder))


def test_a_graph_that_scales_its_rows_itself(
    run: Path,
    tmp_path: Path,
    data_of: Callable[[Splits], MaseDataModule],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = transformed(run, tmp_path / "inside", "[passes.normalise]\n" + PROFILE)
    before = transformed(run, tmp_path / "outside", PROFILE)
    done = trained_with(run)
    assert preprocessing_of(model) == replace(done, in_graph=True)
    with torch.no_grad():
        scores = model(torch.from_numpy(MEASURED))
        assert torch.equal(scores, before(by_hand(done)))
    # Passes that follow see the activations that they would have seen.
    found = [
        {node.name: node for node in MaseGraph(each).nodes}["seq_blocks_1"].meta["mase"]
        for each in (model, before)
    ]
    assert found[0]["software"] == found[1]["software"]
    assert found[0]["software"]["args"]["data_in_0"]["stat"]["range_min_max"]["max"] > 0
    right = float((scores.argmax(1).numpy() == LABELS).mean())
    capsys.readouterr()
    assert accuracy(model, data_of(own(MEASURED))) == pytest.approx(right)
    found = rows_for(model, of_csv(run))
    measured = {row.tobytes() for row in MEASURED}
    assert {row.numpy().tobytes() for row in found.test_dataset.tensors[0]} <= measured
    assert accuracy(model, of_csv(run)) == accuracy(before, of_csv(run))
    assert "WARNING" not in capsys.readouterr().out
    with pytest.raises(GraphError, match="scales its rows itself already"):
        normalise_transform_pass(MaseGraph(model))


def test_normalise_needs_constants_and_one_input() -> None:
    graph = MaseGraph(get_model("jsc-tiny"))
    with pytest.raises(GraphError, match="does not say how the rows were scaled"):
        normalise_transform_pass(graph)


IMAGES = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8)).astype(np.float32)
KINDS_OF_ROWS = {
    "features": (np.random.default_rng(1).normal(50, 9, (40, 4)).astype(np.float32), 1.0),
    "large": (np.random.default_rng(1).uniform(-3e38, 3e38, (40, 4)).astype(np.float32), 1.0),
    "images": (IMAGES, 255.0),
}


class Net(torch.nn.Module):
    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        self.flatten = torch.nn.Flatten()
        self.linear = torch.nn.Linear(int(np.prod(rows.shape[1:])), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.flatten(x))
        return out


@pytest.mark.parametrize("with_metadata", [True, False])
@pytest.mark.parametrize("kind", KINDS_OF_ROWS)
def test_the_nodes_do_what_was_done_to_the_last_bit(
    kind: str, with_metadata: bool, tmp_path: Path
) -> None:
    from chop.passes.graph import add_common_metadata_analysis_pass, quantize_transform_pass

    rows, divisor = KINDS_OF_ROWS[kind]
    scaled = rows.copy()
    done = standardise(scaled, channels=rows.ndim > 2, divisor=divisor)
    graph = MaseGraph(Net(rows))
    graph.preprocessing = done
    expected = graph.model(torch.from_numpy(scaled))
    if with_metadata:
        add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.from_numpy(scaled)}})
    normalise_transform_pass(graph)
    assert torch.equal(graph.model(torch.from_numpy(rows)), expected)
    save_mase_graph_interface_pass(graph, tmp_path / "g")
    loaded = load_mase_graph(tmp_path / "g")
    assert loaded.preprocessing == replace(done, in_graph=True)
    assert torch.equal(loaded.model(torch.from_numpy(rows)), expected)
    add_common_metadata_analysis_pass(loaded, {"dummy_in": {"x": torch.from_numpy(rows)}})
    names = {node.name for node in loaded.nodes if node.op == "call_function"}
    assert names >= {"sub", "div"}
    quantize_transform_pass(loaded, {"by": "type", "default": {"config": QUANTISED}})
    assert torch.isfinite(loaded.model(torch.from_numpy(rows))).all()


def test_images_that_were_divided_already(
    data_of: Callable[[Splits], MaseDataModule], capsys: pytest.CaptureFixture[str]
) -> None:
    scaled = IMAGES.copy()
    done = standardise(scaled, channels=True, divisor=255.0)
    model = Net(IMAGES)
    set_preprocessing(model, done)
    labels = np.arange(40) % 2
    parts = {divisor: (IMAGES / np.float32(divisor), labels) for divisor in (1, 255)}
    for part in parts.values():
        found = rows_for(model, data_of(Splits(part)))
        assert torch.equal(found.train_dataset.tensors[0], torch.from_numpy(scaled))
    shown = capsys.readouterr().out
    assert "look as they were measured" in shown
    assert "look divided by 255 already (channel 0 has mean 0." in shown


SEARCH = """
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
[search.search_space.seed]
default.config.name = ["NA"]
[search.search_space.seed.linear.config]
name = ["integer", "NA"]
data_in_width = [8]
data_in_frac_width = [3]
weight_width = [8]
weight_frac_width = [6]
bias_width = [8]
bias_frac_width = [6]
[search.strategy]
name = "optuna"
sw_runner.basic_evaluation = {data_loader = "test_dataloader"}
hw_runner.average_bitwidth.compare_to = 32
setup = {n_trials = 3, sampler = "brute", plots = false, n_jobs = 2}
metrics.accuracy = {scale = 1.0, direction = "maximize"}
metrics.average_bitwidth = {scale = 0.2, direction = "minimize"}
"""


def test_the_constants_are_shown_as_a_table() -> None:
    known = Preprocessing("features", (1.5,) * 40, (0.25,) * 40)
    lines = feature_summary(known).splitlines()
    assert lines[2].split() == ["feature", "0", "1.5", "0.25"]
    assert lines[-1] == "… and 8 more"
    named = replace(known, mean=(2,), scale=(4,), names=("mass\x1b[2J",))
    assert feature_summary(named).splitlines()[2:] == ["'mass\\x1b[2J'  2       4"]


def test_a_search_scales_its_rows_and_says_how_at_each_point(run: Path, tmp_path: Path) -> None:
    shifted = MEASURED.copy()
    shifted[LABELS == 0, 0] -= np.float32(3_000)  # what constants of their own would undo
    file = csv(tmp_path / "shifted.csv", shifted)
    config = tmp_path / "search.toml"
    config.write_text(SEARCH, encoding="utf-8")
    load = ["--load", str(checkpoint(run)), "--load-type", "pl", "--config", str(config)]
    assert main(["search", *common(tmp_path, file), *load]) == 0
    folder = tmp_path / "p/software/search_ckpts"
    points = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    done = trained_with(run)
    assert points
    for point in points.values():
        assert Preprocessing(**point["preprocessing"]) == done
    for name in ("search.json", "run_search.json"):
        stored = json.loads((folder / name).read_text(encoding="utf-8"))
        assert Preprocessing(**stored["preprocessing"]) == done
    trials = json.loads((folder / "log.json").read_text(encoding="utf-8")).values()
    (unquantised,) = [
        trial["user_attrs_software_metrics"]["accuracy"]
        for trial in trials
        if {each["config"]["name"] for each in trial["user_attrs_sampled_config"].values()}
        == {None}
    ]
    data = MaseDataModule("csv", 32, path=file)
    assert unquantised == pytest.approx(accuracy(LOADERS["checkpoint"](run), data))
    # A study of the same rows with other constants is another study.
    old = tmp_path / "old.ckpt"
    content = torch.load(checkpoint(run), weights_only=True)
    del content["chop"]["preprocessing"]
    torch.save(content, old)
    again = ["--load", str(old), *load[2:], "--resume"]
    assert main(["search", *common(tmp_path, file), *again]) == 2
