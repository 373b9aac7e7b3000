"""``ch quantize``, ``ch sensitivity`` and ``ch predict`` on a network and rows of one's own."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import chop
from chop.cli import main
from chop.errors import ConfigError, UnknownNameError
from chop.loading.networks import load_model
from chop.models.info import MODELS
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.one_line import (
    FormatSpec,
    one_line_rules,
    parse_format_spec,
    parse_rules,
)
from chop.passes.graph.transforms.quantize.plan import QuantizeArgs
from chop.preprocessing import Preprocessing, preprocessing_of
from chop.runs import read_json
from chop.tasks import classes_predicted
from chop.validation import parse
from chop.verbs.sensitivity.layers import paired_difference, parse_widths
from chop.verbs.sensitivity.suggested import choices

NET = """
from torch import nn

class OneLineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))
"""
WORD = "my_net.py:OneLineNet"
PROJECT = "mase_output/p"
GRAPH = f"{PROJECT}/software/transform/transformed_ckpt"
# Another order than that of the alphabet or of numbers must not matter.
KINDS = ("30", "4", "200")


def rows_of_ones_own(count: int = 300) -> list[list[str]]:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(count, 3, generator=generator) * torch.tensor([1.0, 10.0, 100.0]) + 7
    kinds = (values[:, 0] * 100 + values[:, 2]).argsort().argsort() * 3 // count
    return [
        [*map(str, row), KINDS[kind]]
        for row, kind in zip(values.tolist(), kinds.tolist(), strict=True)
    ]


def write(name: str, rows: list[list[str]]) -> None:
    with Path(name).open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def read(name: str) -> list[dict[str, str]]:
    with Path(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a network that was trained, with a seed of its own, and a quantised one."""
    folder, before, known = tmp_path_factory.mktemp("own"), Path.cwd(), dict(MODELS)
    os.chdir(folder)
    try:
        Path("my_net.py").write_text(NET)
        write("rows.csv", [["a", "b", "c", "y"], *rows_of_ones_own()])
        words = ["train", WORD, "rows.csv", "--label-column", "y", "--seed", "3", "--project", "p"]
        assert main([*words, "--max-epochs", "15", "--learning-rate", "3e-2", "-q"]) == 0
        assert main(["quantize", WORD, "--load", PROJECT, "--width", "6", "--rule", "fc1=4"]) == 0
        yield folder
    finally:
        os.chdir(before)
        MODELS._entries = known


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def test_quantize_is_a_transform_with_calibration(here: Path) -> None:
    record = read_json(Path(f"{PROJECT}/software/run_quantize.json"))
    settings = {each["name"]: each["effective"] for each in record["settings"]}
    assert (settings["dataset"], settings["seed"]) == ("csv", 3)  # as the training had them
    assert record["cost"]["before"]["weight_bits"] == 32
    stored = 3 * 8 * 4 + 8 * 3 * 6 + (8 + 3) * 16  # weights of both layers, and biases
    assert record["cost"]["after"]["weight_bits"] == pytest.approx(stored / 59)
    assert record["accuracies"]["before"]["rows"] == record["accuracies"]["after"]["rows"] == 30
    layers = dict(load_model(GRAPH).named_modules())
    widths = {name: layers[name].quant.operands["weight"].width for name in ("fc1", "fc2")}
    assert widths == {"fc1": 4, "fc2": 6}


def test_the_last_line_of_a_search_exports_a_network_of_ones_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sensitivity", WORD, "--load", PROJECT, "--widths", "4", "--project", "found"]
    assert main(words) == 0
    config = Path("mase_output/found/software/sensitivity/search.toml")
    config.write_text(config.read_text().replace("n_trials = 100", "n_trials = 3"))
    assert main(["search", "--config", str(config), "--import", WORD]) == 0
    lines = capsys.readouterr().out.splitlines()
    export = next(line.partition("or:   ch ")[2] for line in lines if "or:   ch export" in line)
    assert export.endswith(f"--to c --import {WORD}")
    assert main(export.partition(" --import")[0].split()) == 2  # no code runs unasked
    assert main(export.split()) == 0
    assert "equal to the engine on 2,000 rows" in capsys.readouterr().out


def test_the_last_lines_can_be_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", WORD, "--load", PROJECT, "--project", "again"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("before, " in line and "validation rows" in line for line in lines[-6:])
    assert any(line.split()[1] == "Cost:" for line in lines[-4:])
    found = [line.partition("ch ")[2].split() for line in lines[-2:]]
    assert [words[0] for words in found] == ["export", "test"]
    for words in found:
        assert main(words) == 0


def test_code_of_a_project_is_not_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "--load", PROJECT]) == 2
    assert f"write ch quantize {WORD} --load {PROJECT}" in capsys.readouterr().err


def test_sensitivity_is_what_one_quantised_layer_loses(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [WORD, "--load", PROJECT]
    assert main(["sensitivity", *words, "--widths", "8,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[lines.index("INFO     Each layer alone") :][:7])) <= 80
    folder = here / PROJECT / "software" / "sensitivity"
    found = json.loads((folder / "layers.json").read_text())
    assert [(each["layer"], each["width"]) for each in found["layers"]] == [
        ("fc1", 2), ("fc1", 8), ("fc2", 2), ("fc2", 8)
    ]  # fmt: skip
    assert len(read(str(folder / "layers.csv"))) == 4
    worst = found["layers"][0]
    assert worst["bits_saved"] == (32 - 2) * (3 * 8 + 8)
    assert worst["low"] < worst["lost"] < worst["high"]
    alone = ["--width", "2", "--rule", "fc2=float", "--products-only"]
    assert main(["quantize", *words, *alone, "--project", "q"]) == 0
    after = read_json(Path("mase_output/q/software/run_quantize.json"))["accuracies"]
    assert after["after"]["accuracy"] == worst["accuracy"]
    assert after["before"]["accuracy"] == found["start"]["accuracy"]


def test_the_suggested_search_runs_as_it_stands(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from chop.verbs.sensitivity import suggested

    monkeypatch.setattr(suggested, "TRIALS", 4)
    assert main(["sensitivity", WORD, "--load", PROJECT, "--widths", "2,4", "--project", "s"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    words = last.partition("ch ")[2].split()
    assert words[0] == "search"
    assert main(words) == 0
    best = Path("mase_output/s/software/search_ckpts/best_0.toml").read_text()
    assert "[passes.quantize.fc1.config]" in best


def test_predictions_are_those_of_a_test(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where columns have another order and the file that was trained on is gone."""
    Path("rows.csv").rename("gone.csv")
    try:
        rows = read("gone.csv")
        mixed = [[row["y"], row["c"], 'ü;,"', row["a"], row["b"]] for row in rows]
        write("mixed.csv", [["y", "c", "note", "a", "b"], *mixed])
        assert main(["predict", WORD, "mixed.csv", "--load", PROJECT]) == 0
    finally:
        Path("gone.csv").rename("rows.csv")
    found = read("mixed_predictions.csv")
    right = sum(row["y"] == row["prediction"] for row in found)
    assert found[0]["note"] == 'ü;,"'
    assert set(found[0]) == {
        "y",
        "c",
        "note",
        "a",
        "b",
        "prediction",
        "class_number",
        "probability",
        "problem",
    }
    assert {row["problem"] for row in found} == {""}
    assert all(1 / 3 <= float(row["probability"]) <= 1 for row in found)
    capsys.readouterr()
    words = ["test", WORD, "rows.csv", "--label-column", "y", "--split", "all", "--project", "t"]
    assert main([*words, "--load", PROJECT]) == 0
    tested = read_json(Path("mase_output/t/software/checkpoints/test_results.json"))
    assert (tested["right"], tested["rows"]) == (right, 300)
    assert right > 200  # so that the sums above are no accident


def test_classes_of_another_file_have_the_numbers_of_the_training(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of two of the three classes would number them from 0."""
    known = [row for row in rows_of_ones_own() if row[-1] != KINDS[1]]
    write(str(tmp_path / "two.csv"), [["a", "b", "c", "y"], *known])
    words = [WORD, "--load", GRAPH, "--project", "two", "--label-column", "y", "--split", "all"]
    assert main(["test", *words[:1], str(tmp_path / "two.csv"), *words[1:]]) == 0
    tested = read_json(Path("mase_output/two/software/checkpoints/test_results.json"))
    assert main(["predict", "--load", GRAPH, str(tmp_path / "two.csv"), "-o", "two.csv"]) == 0
    found = read("two.csv")
    right = sum(row["y"] == row["prediction"] for row in found)
    assert (tested["right"], tested["rows"]) == (right, len(found))
    assert right / len(found) > 0.6


def test_a_graph_predicts_without_the_code_of_its_model(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preprocessing_of(load_model(GRAPH)).classes == ("4", "30", "200")  # type: ignore[union-attr]
    capsys.readouterr()
    assert main(["predict", "--load", GRAPH, "rows.csv", "-o", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a,b,c,y,prediction,class_number,probability,problem"
    assert len(lines) == 301
    assert not list(here.glob("rows_predictions*"))


def test_archives_are_predicted_too(here: Path) -> None:
    rows = read("rows.csv")
    features = np.array([[float(row[name]) for name in "abc"] for row in rows])
    np.savez("rows.npz", x=features, kind=np.array([row["y"] for row in rows]))
    assert main(["predict", "--load", GRAPH, "rows.npz", "-o", "npz.csv", "-q"]) == 0
    assert main(["predict", "--load", GRAPH, "rows.csv", "-o", "csv.csv", "-q"]) == 0
    by_file = [[row["prediction"] for row in read(name)] for name in ("npz.csv", "csv.csv")]
    assert by_file[0] == by_file[1]
    assert read("npz.csv")[0]["kind"] == rows[0]["y"]


FAULTY = {
    "lacks a column that the model was trained on: 'c'": "a,b,y\n1,2,4\n",
    "no row can be predicted (row 1: column 'b' says nan)": "a,b,c\n1,nan,3\n",
    "no row can be predicted (row 1: column 'a' says 'x', which is not a number)": "a,b,c\nx,2,3\n",
    "no row can be predicted (row 1: column 'c' is empty)": "a,b,c\n1,2,\n",
    "row 2 has 2 cells, but there are 3 columns": "a,b,c\n1,2,3\n1,2\n",
    "has no rows": "a,b,c\n",
    "is empty": "",
    "has a column 'prediction' already": "a,b,c,prediction\n1,2,3,4\n",
    "has a column 'problem' already": "a,b,c,problem\n1,2,3,4\n",
    "is not a table of text": "a,b,c\n1,2,\udcff\n",
    "two columns are called 'a'": "a,a,b,c\n1,1,2,3\n",
}


@pytest.mark.parametrize("message", FAULTY)
def test_faulty_rows_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    Path("faulty.csv").write_text(FAULTY[message], errors="surrogateescape")
    before = sorted(os.listdir())
    assert main(["predict", "--load", GRAPH, "faulty.csv"]) == 2
    said = capsys.readouterr().err
    assert f"ch: faulty.csv: {message}" in said
    assert said.count("\n") == 1
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "rows.csv"], "--load PATH is missing"),
        (["predict", WORD, "--load", PROJECT], "FILE is missing"),
        (["predict", "--load", "nowhere", "rows.csv"], "there is no file or folder nowhere"),
        (["predict", "--load", GRAPH, "rows.csv", "-o", "rows.csv"], "holds the rows themselves"),
        (["predict", "--load", GRAPH, "rows.csv", "--label-column", "z"], "no label column 'z'"),
        (["predict", "--load", GRAPH, "rows.txt"], "unknown kind of file '.txt'"),
        (["quantize", WORD, "--load", PROJECT, "--rule", "fc9=4"], "no node has the name 'fc9'"),
        (["quantize", WORD, "--load", PROJECT, "--rule", "fc1"], "write LAYER=WIDTH"),
        (["quantize", WORD, "--load", PROJECT, "--format", "itneger"], "did you mean 'integer'?"),
        (["sensitivity", WORD, "--load", PROJECT, "--widths", "2,x"], "'x' is not a bit width"),
        (["sensitivity", WORD, "--load", PROJECT, "--format", "mxfp4"], "has one width only"),
    ],
)  # fmt: skip
def test_mistakes(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"integer_scaled"}))
@pytest.mark.parametrize("calibrated", [True, False])
def test_every_format_has_rules_of_one_line(name: str, calibrated: bool) -> None:
    rules = one_line_rules(FormatSpec(name), {"linear": FormatSpec(None)}, calibrated=calibrated)
    parse(QuantizeArgs, rules, "rules")
    graph = chop.quantize(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.randn(2, 4),
                          number_format=name).graph  # fmt: skip
    assert graph.model(torch.randn(2, 4)).shape == (2, 4)


def test_rules_in_words() -> None:
    usual = FormatSpec("integer", 8)
    assert parse_rules(["fc1=6", "a|b=float", "x=log:5"], usual) == {
        "fc1": FormatSpec("integer", 6), "a|b": FormatSpec(None), "x": FormatSpec("log", 5)
    }  # fmt: skip
    assert parse_format_spec("mxfp4", usual) == FormatSpec("mxfp4")
    config = FormatSpec("minifloat_ieee", 6, 4).config(calibrated=False)
    assert (config["weight_width"], config["weight_exponent_width"]) == (4, 2)
    assert one_line_rules(usual, {"fc1": usual}, calibrated=False)["by"] == "name"
    assert one_line_rules(usual, {"fc.*": usual}, calibrated=False)["by"] == "regex_name"
    with pytest.raises(ConfigError, match="cannot stand together"):
        one_line_rules(usual, {"fc1": usual, "linear": usual}, calibrated=False)
    with pytest.raises(ConfigError, match="needs more than a width"):
        FormatSpec("integer_scaled", 8).config(calibrated=True)
    with pytest.raises(UnknownNameError):
        parse_format_spec("minfloat:3", usual)


def test_choices_follow_from_what_is_enough() -> None:
    widths = (2, 3, 4, 6, 8)
    assert choices(2, widths) == [2, 3, 4]
    assert choices(4, widths) == [3, 4, 6]
    assert choices(8, widths) == [6, 8, 10]
    assert choices(None, widths) == [8, 10, 12]
    assert parse_widths("8, 2,2") == (2, 8)


def test_differences_are_of_the_same_rows() -> None:
    before, after = torch.zeros(100), torch.zeros(100)
    assert paired_difference(before, after) == (0.0, 0.0)
    after[:10] = 1
    lost, half = paired_difference(before, after)
    assert lost == pytest.approx(0.1)
    assert half == pytest.approx(1.96 * (0.1 * 0.9 / 100) ** 0.5, rel=1e-3)


def test_classes_without_names_are_numbers() -> None:
    outputs = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    found = classes_predicted(outputs, None)
    assert (found["prediction"], "class_number" in found) == (["1", "0"], False)
    known = Preprocessing("features", (0,), (1,), classes=("no", "yes"))
    found = classes_predicted(outputs, known)
    assert (found["prediction"], found["class_number"]) == (["yes", "no"], ["1", "0"])


def prices(count: int = 300) -> list[list[str]]:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, count, generator=generator)
    price = 250_000 + 40_000 * a - 9_000 * b
    return [[f"{x}" for x in row] for row in torch.stack([a, b, price]).t().tolist()]


def test_numbers_are_quantised_looked_at_and_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("houses.csv", [["a", "b", "price"], *prices()])
    words = ["train", "toy_mlp", "houses.csv", "--label-column", "price", "--task", "regression"]
    assert main([*words, "--project", "p", "--max-epochs", "20", "--learning-rate", "0.01"]) == 0
    assert main(["quantize", "--load", PROJECT, "--width", "8"]) == 0
    assert main(["test", "toy_mlp", "--load", PROJECT]) == 0  # the task is that of the project
    assert main(["sensitivity", "--load", PROJECT, "--widths", "2,8"]) == 0
    shown = capsys.readouterr().out
    assert "Per cent more mean absolute error (of " in shown
    layers = read(f"{PROJECT}/software/sensitivity/layers.csv")
    lost = [float(row["lost"]) for row in layers if row["layer"] == layers[0]["layer"]]
    assert lost[0] > 5 * abs(lost[1])  # two bits cost much more than eight
    suggestion = Path(f"{PROJECT}/software/sensitivity/search.toml").read_text()
    assert "regression_evaluation" in suggestion
    assert "[search.strategy.metrics.mae]" in suggestion

    assert main(["predict", "--load", GRAPH, "houses.csv"]) == 0
    found = read("houses_predictions.csv")
    wrong = [abs(float(row["price"]) - float(row["prediction"])) for row in found]
    mean = sum(wrong) / len(wrong)
    assert mean < 20_000  # the prices themselves are some 250,000
    said = capsys.readouterr().out
    told = next(line for line in said.splitlines() if "Mean absolute error on the 300 rows" in line)
    number = told.split(": ")[1].split(" ")[0].replace(",", "")
    assert float(number) == pytest.approx(mean, rel=0.01)


def test_sensitivity_in_python(tmp_path: Path) -> None:
    torch.manual_seed(0)
    features = torch.randn(60, 4)
    loader = [(features, (features[:, 0] > 0).long())]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    found = chop.sensitivity(model, train=loader, val=loader, widths=(2, 8), project=tmp_path)
    assert list(found.layers) == ["_0", "_2"]
    assert "layer with bits:" in repr(found)
    assert found.folder == tmp_path / "software" / "sensitivity"
    assert found.search["search_space"]["seed"].keys() == {"default", "_0", "_2"}
    numbers = [(features, features[:, :2] * 3)]
    found = chop.sensitivity(model, train=numbers, val=numbers, widths=(2, 8), project=tmp_path)
    assert found.start.metric == "mae"
    assert "regression_evaluation" in found.search["strategy"]["sw_runner"]
