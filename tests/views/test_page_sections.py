"""Each section of the page is there if its data is, and tells what the files tell."""

import csv
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from report_pages import a_result, logged, page_of, put

from chop.cli import main
from chop.errors import ChopError
from chop.runs import write_record
from chop.verbs.report import report

ALL = ["search-0", "test", "graph", "statistics", "quantisation", "costs", "training", "run"]
NETWORK = ("http://", "https://", "@import", "url(")


def test_everything_is_shown(page_file: Path, run_folder: Path) -> None:
    page = page_of(page_file)
    assert page.sections == ALL
    assert page_file == run_folder / "report.html"


def test_the_page_is_small_and_needs_no_network(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    page = page_of(page_file)
    assert not [attrs for _, attrs in page.tags if {"src", "srcset"} & attrs.keys()]
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert links == {f"#{anchor}" for anchor in [*ALL, "content"]}
    style = text[text.index("<style>") : text.index("</style>")]
    assert not [word for word in NETWORK if word in style]


def test_what_was_run_is_told_with_who_set_what(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    warning = text.index("Simulated stand-in data, not the JSC data set")
    assert warning < text.index('id="search-0"')  # before anything that could be misread
    words = page_of(page_file).texts["run"]
    assert "--max-epochs" in words
    assert "settings as by default" in words
    assert "torch" in words  # its version
    assert len([word for word in words.split() if len(word) == 64]) == 1  # one fingerprint


def test_numbers_are_those_of_the_files(page_file: Path, run_folder: Path) -> None:
    stored = json.loads((run_folder / "software/checkpoints/test_results.json").read_text())
    page = page_of(page_file)
    assert f"{stored['test_acc_epoch']:.4f}" in page.texts["test"]
    for count in stored["confusion_matrix"][0]:
        assert f"{count:,}" in page.texts["test"]
    assert "2 epochs" in page.texts["training"]


def test_the_graph_shows_operation_shape_format_and_error(page_file: Path) -> None:
    page = page_of(page_file)
    words = page.texts["graph"]
    for part in ("LinearInteger", "BatchNorm1d", "4096×5", "6 bit", "not rounded", "SQNR"):
        assert part in words
    boxes = [attrs for tag, attrs in page.tags if tag == "g" and attrs.get("class") == "node"]
    assert len(boxes) == 6
    styles = {str(box["style"]) for box in boxes}
    assert "--bits:0%;--error:0%" in styles
    assert len(styles) == 2  # the one quantised layer has colours of its own


def test_the_scaling_of_the_features_is_shown(page_file: Path) -> None:
    page = page_of(page_file)
    for section in ("run", "test", "graph"):
        assert "16 features, standardised ('j_zlogz': mean " in page.texts[section]
    for name in ("j_c1_b0_mmdt", "j_multiplicity"):
        assert name in page.texts["run"]


def test_a_scaling_that_makes_no_sense_is_a_problem(tmp_path: Path) -> None:
    software = tmp_path / "p" / "software"
    harm = {"preprocessing": {"kind": "features", "mean": [1], "scale": [0]}}
    put(software / "checkpoints/test_results.json", a_result(**harm))
    put(software / "run_train.json", {"action": "train", **harm})
    put(software / "run_test.json", {"action": "test", "data": "rows"})
    page = page_of(report(tmp_path / "p"))
    assert page.texts["problems"].count("its preprocessing makes no sense") == 2
    assert "rows" in page.texts["run"]


def test_statistics_histograms_and_costs(page_file: Path) -> None:
    page = page_of(page_file)
    assert "variance_precise" in page.texts["statistics"]
    assert "range_quantile" in page.texts["statistics"]
    assert "before: float" in page.texts["quantisation"]
    assert "after: Integer 6 bit" in page.texts["quantisation"]
    for part in ("MACs", "FLOPs", "BitOPs", "Parameter bits", "Per sample"):
        assert part in page.texts["costs"]


def test_the_search_has_front_hypervolume_importance_and_changes(
    page_file: Path, run_folder: Path
) -> None:
    page = page_of(page_file)
    best = json.loads((run_folder / "software/search_ckpts/best.json").read_text())
    data = page.json["search-0-data"]
    front = [trial["n"] for trial in data["trials"] if trial["g"] == "front"]
    assert sorted(front) == sorted(entry["number"] for entry in best.values())
    assert len(data["trials"]) == 12
    assert [metric["name"] for metric in data["metrics"]] == [
        "accuracy", "average_bitwidth", "loss", "memory_density",
    ]  # fmt: skip
    words = page.texts["search-0"]
    for part in ("12 distinct configurations", "Hypervolume", "What matters for accuracy",
                 "What each configuration of the front changes"):  # fmt: skip
        assert part in words
    for trial in data["trials"]:
        if trial["g"] == "front":
            assert tomllib.loads(trial["toml"])["passes"]["quantize"]["by"] == "name"


def test_every_chart_names_its_axes(page_file: Path) -> None:
    page = page_of(page_file)
    charts = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(charts) > 10
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)
    labels = [attrs for tag, attrs in page.tags if tag == "text" and attrs.get("class") == "label"]
    assert len(labels) >= len(charts) - 1  # the graph has no axes


PARTS = {
    "training_ckpts": ("training", "run"),
    "checkpoints": ("test",),
    "transform": ("graph", "statistics", "quantisation", "costs"),
    "search_ckpts": ("search-0", "run"),
}


@pytest.mark.parametrize("kept", PARTS)
def test_sections_without_data_are_left_out(run_folder: Path, tmp_path: Path, kept: str) -> None:
    target = tmp_path / "part" / "software" / kept
    shutil.copytree(run_folder / "software" / kept, target)
    sections = page_of(report(tmp_path / "part")).sections
    expected = ["test", "run"] if kept == "checkpoints" else list(PARTS[kept])
    assert [name for name in sections if name not in expected] == []
    assert sections == expected


def test_a_record_beside_the_results_is_used(tmp_path: Path) -> None:
    software = tmp_path / "p" / "software"
    settings = [
        {"name": "seed", "default": 0, "file": 7, "command_line": "", "effective": 7},
        {"name": "dataset", "default": None, "file": "", "command_line": "jsc", "effective": "jsc"},
        {"name": "task", "default": "cls", "file": "", "command_line": "", "effective": "cls"},
    ]
    record = {"command": ["ch", "transform", "a b"], "settings": settings, "fingerprint": "f" * 64}
    first = write_record(software, "transform", record)
    second = write_record(software, "transform", record | {"command": ["ch", "again"]})
    assert (first.name, second.name) == ("run_transform.json", "run_transform-v1.json")
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["run"]
    words = " ".join(page.texts["run"].split())
    assert "ch transform 'a b'" in words
    assert "1 earlier run of ch transform" in words
    assert "seed 7 file 0 (default)" in words
    assert "dataset jsc command line none (default)" in words
    assert "1 setting as by default" in words
    assert "f" * 64 in words
    assert "python 3" in words
    assert "stand-in" not in words


def test_a_search_without_a_journal_is_shown_from_its_tables(tmp_path: Path) -> None:
    folder = tmp_path / "p" / "software" / "search_ckpts"
    rows = [logged(0, 0.5, 2), logged(1, 0.9, 8), logged(2, None, 4), logged(3, 0.4, 8)]
    put(folder / "log.json", {str(place): row for place, row in enumerate(rows)})
    put(folder / "best.json", {"0": {"number": 0}, "1": {"number": 1}})
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["search-0"]
    words = page.texts["search-0"]
    assert "4 distinct configurations evaluated: 2 on the front, 1 failed." in words
    assert "out of memory" in words
    assert "Hypervolume" not in words  # nobody knows what is better
    facts = {
        "directions": ["maximize", "minimize"],
        "metrics": {"accuracy": {"min": 0.45}, "average_bitwidth": {"direction": "minimize"}},
        "space_size": 40,
        "repeats": 3,
        "sampler": "tpe",
    }
    put(folder / "search.json", facts)
    words = page_of(report(tmp_path / "p")).texts["search-0"]
    assert "4 distinct configurations of 40 evaluated" in words
    assert "1 out of bounds" in words
    assert "3 repeated proposals not evaluated again" in words
    assert "Hypervolume" in words


def test_the_newest_comes_first_and_older_ones_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "p" / "software" / "checkpoints"
    for version, accuracy in (("", 0.1), ("-v1", 0.2), ("-v2", 0.3), ("-v10", 0.4)):
        put(folder / f"test_results{version}.json", a_result(test_acc_epoch=accuracy))
    words = page_of(report(tmp_path / "p")).texts["test"]
    places = [words.index(f"0.{accuracy}000") for accuracy in (4, 3, 2, 1)]
    assert places == sorted(places)


def test_nothing_heavy_is_imported_for_results_alone(tmp_path: Path) -> None:
    put(tmp_path / "p/software/checkpoints/test_results.json", a_result(run={"command": ["ch"]}))
    ask = "import sys; from chop.verbs.report import report; report(sys.argv[1]);"
    command = [sys.executable, "-c", f"{ask} print(*sys.modules)", str(tmp_path / "p")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"torch", "optuna", "matplotlib", "lightning"} & set(done.stdout.split())
    assert (tmp_path / "p/report.html").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nowhere", "there is no such folder"),
        (lambda path: put(path / "file", "x"), "is a file"),
        (lambda path: path, "it has no folder 'software'"),
        (
            lambda path: put(path / "jets/software/x", "").parents[2],
            "name one of those in it: jets",
        ),
        (lambda path: put(path / "jets/software/x", "").parents[1], "holds no results yet"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, make: object, message: str) -> None:
    with pytest.raises(ChopError, match=message) as caught:
        report(make(tmp_path))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_the_output_can_be_named_and_is_replaced(run_folder: Path, tmp_path: Path) -> None:
    part = tmp_path / "p" / "software" / "checkpoints"
    shutil.copytree(run_folder / "software/checkpoints", part)
    target = tmp_path / "deep" / "page.html"
    assert report(tmp_path / "p" / "software", target) == target
    before = target.read_text(encoding="utf-8")
    put(part / "test_results-v1.json", a_result())
    report(tmp_path / "p", target)
    assert target.read_text(encoding="utf-8") != before
    with pytest.raises(ChopError, match="is a folder"):
        report(tmp_path / "p", tmp_path)


def test_a_test_on_validation_rows_says_so_and_agrees_with_training(
    run_folder: Path, tmp_path: Path
) -> None:
    folder = run_folder / "software/training_ckpts"
    given = ["jsc-tiny", "jsc-sim", "--batch-size", "4096", "--load", str(folder / "best.ckpt")]
    given += ["--load-type", "pl", "--split", "val", "--report-to", "none"]
    assert main(["test", *given, "--project-dir", str(tmp_path), "--project", "p"]) == 0
    stored = json.loads((tmp_path / "p/software/checkpoints/test_results.json").read_text())
    with (folder / "training_log.csv").open() as stream:
        epochs = [(float(row["val_loss_epoch"]), float(row["val_acc_epoch"]))
                  for row in csv.DictReader(stream)]  # fmt: skip
    assert stored["split"] == "val"
    assert stored["val_acc_epoch"] == pytest.approx(min(epochs)[1], abs=1e-6)
    assert stored["val_loss_epoch"] == pytest.approx(min(epochs)[0], abs=1e-6)
    page = report(tmp_path / "p")
    assert f"{stored['rows']:,} val" in page_of(page).texts["test"]
    assert "Validation accuracy" in page.read_text()
    assert "Test accuracy" not in page.read_text()
