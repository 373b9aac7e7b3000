"""The demo says what it runs, and would not call a front right that is not."""

import importlib.util
import json
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from report_pages import put

from chop.config.command_line import parse_arguments
from chop.config.layers import na_to_none
from chop.search.config import parse_search

ROOT = Path(__file__).parents[2]
NUMBERS = {"accuracy": 0.7, "loss": 0.8, "ebops": 1000.0, "different": 0}


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts/demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def said(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The commands that the demo runs, as the command line understands them; none is run."""
    commands: list[dict[str, Any]] = []
    monkeypatch.setattr(
        demo, "run", lambda words: commands.append(parse_arguments(list(map(str, words))))
    )
    return commands


def trial(accuracy: float = 0.7, ebops: float = 1000.0) -> dict[str, Any]:
    """A network of a front, as ``best.json`` has it."""
    known = {"accuracy": accuracy, "rows": 20000, "low": accuracy - 0.01, "high": accuracy + 0.01}
    return {
        "software_metrics": {"loss": 0.8, "accuracy": accuracy},
        "hardware_metrics": {"ebops": ebops},
        "accuracies": {"chosen_by": known, "test": known},
        "verified": {"equal": True, "rows": 20000},
    }


def put_search(folder: Path, *trials: dict[str, Any]) -> Path:
    put(folder / "best.json", json.dumps({str(n): each for n, each in enumerate(trials)}))
    return folder


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """What a search leaves of a front of two."""
    return put_search(tmp_path / "search_ckpts", trial(), trial())


def test_every_point_of_the_front_is_made_and_measured(demo: ModuleType, search: Path) -> None:
    points = list(demo.front(search, search / "verify"))
    assert [point.file.name for point in points] == ["best_0.toml", "best_1.toml"]
    assert len({point.check for point in points}) == 2
    for point in points:
        transform, test = (parse_arguments(list(map(str, each))) for each in point.commands())
        assert (transform["action"], test["action"]) == ("transform", "test")
        assert transform["config"] == test["config"] == str(point.file)
        assert (test["split"], test["load_name"]) == ("val", str(point.graph))
        assert test["exact"] is True


@pytest.mark.parametrize(
    ("name", "value"), [(None, 0), ("accuracy", 0.7007), ("ebops", 999.0), ("different", 1)]
)
def test_a_front_that_is_not_what_the_search_said_ends_the_demo(
    demo: ModuleType,
    search: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str | None,
    value: float,
) -> None:
    again = NUMBERS | ({name: value} if name else {})
    made = []
    monkeypatch.setattr(demo.Point, "make", lambda point: made.append(point))
    monkeypatch.setattr(demo.Point, "measured", lambda _: again)
    points = list(demo.front(search, search / "verify"))
    with ThreadPoolExecutor(1) as here:
        if name is None:
            demo.verify(points, here)
            assert capsys.readouterr().out.count("✓ as in the search") == 2
        else:
            with pytest.raises(SystemExit, match="not what the search said"):
                demo.verify(points, here)
            assert "✗" in capsys.readouterr().out
    assert made == points


def test_a_network_that_cannot_be_made_again_is_named(demo: ModuleType, search: Path) -> None:
    point = next(demo.front(search, search / "verify"))
    with pytest.raises(RuntimeError, match=r"ch transform failed on .*best_0.toml"):
        point.again()


def test_what_was_measured_is_what_the_new_test_says(
    demo: ModuleType, search: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = next(demo.front(search, search / "verify"))
    found = {"val_acc_epoch": 0.7, "val_loss_epoch": 0.8, "integers": {"different": 3}}
    put(point.check / "software/checkpoints/test_results.json", found)
    monkeypatch.setattr(demo, "ebops_of", {point.graph: 1000}.__getitem__)
    assert point.measured() == NUMBERS | {"different": 3}
    assert not demo.is_equal(point, point.measured())


def test_a_command_that_fails_ends_the_demo(demo: ModuleType) -> None:
    with pytest.raises(SystemExit, match="there is no such folder"):
        demo.run(["report", "nowhere"], shown=False)


def test_the_files_of_the_demo_are_there(demo: ModuleType) -> None:
    for name in demo.SEARCHES.values():
        assert (ROOT / name).is_file()


def test_the_searches_can_be_drawn_on_one_picture(demo: ModuleType) -> None:
    files = [tomllib.loads((ROOT / name).read_text()) for name in demo.SEARCHES.values()]
    objectives = [parse_search(na_to_none(each["search"])).metrics for each in files]
    assert [list(each) for each in objectives] == [["accuracy", "ebops"]] * 2
    rows = [each["search"]["strategy"]["sw_runner"]["basic_evaluation"] for each in files]
    assert rows == [{"data_loader": "val_dataloader"}] * 2
    for each in files:
        assert (each["model"], each["dataset"]) == demo.NETWORK


def test_both_searches_start_from_the_network_that_was_trained(
    demo: ModuleType, said: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "OUTPUT", tmp_path)
    one = demo.Demo("p")
    one.prepare()
    for name, config in demo.SEARCHES.items():
        put_search(one.place(name), trial())
        assert len(one.search(name, config)) == 1
    actions = ["train", "test", "quantize", "test", "search", "search"]
    assert [command["action"] for command in said] == actions
    loaded = [command["load_name"] for command in said if command["action"] != "train"]
    own = str(tmp_path / "p")
    assert loaded == [own, own, f"{own}/software/transform/transformed_ckpt", own, own]
    assert {command["project"] for command in said} == {"p"}


@pytest.mark.parametrize(("float_accuracy", "wanted"), [(0.73, 1), (0.735, 0), (0.71, 2), (0.9, 0)])
def test_the_cheapest_that_loses_little_is_exported(
    demo: ModuleType, tmp_path: Path, float_accuracy: float, wanted: int
) -> None:
    folder = put_search(tmp_path, trial(0.73, 900), trial(0.724, 300), trial(0.70, 100))
    points = list(demo.front(folder, tmp_path))
    assert demo.chosen(points, float_accuracy) == points[wanted]


@pytest.mark.parametrize("there", [set(), {"cc"}, {"cc", "iverilog"}])
def test_a_form_that_cannot_be_checked_here_is_left_out_in_one_line(
    demo: ModuleType,
    said: list[dict[str, Any]],
    search: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: set[str],
) -> None:
    monkeypatch.setattr(demo.shutil, "which", lambda name: name if name in there else None)
    demo.Demo("p").export(next(demo.front(search, search)))
    assert [command["to"] for command in said] == ["c", "verilog"][: len(there)]
    assert all(command["verify"] for command in said)
    left_out = [line for line in capsys.readouterr().out.splitlines() if "There is no" in line]
    assert len(left_out) == 2 - len(there)
    assert all("ch doctor" in line for line in left_out)


def test_the_last_table_has_every_kind_of_network(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "OUTPUT", tmp_path)
    monkeypatch.setattr(demo, "ebops_of", lambda _: 54321)
    one = demo.Demo("p")
    known = trial(0.75)["accuracies"]
    trials = [trial(0.7 - n / 100, 900 - n) for n in range(9)]
    for name in demo.SEARCHES:
        put(put_search(one.place(name), *trials) / "search.json", {"start": known})
    put(one.software / "run_quantize.json", {"accuracies": {"after": known["test"]}})
    tested = {"test_acc_epoch": 0.72, "accuracy_95_percent_interval": [0.71, 0.73]}
    integers = {"rows": 20000, "different": 0}
    put(one.software / "checkpoints/test_results-v1.json", tested | {"integers": integers})
    fronts = {name: list(demo.front(one.place(name), tmp_path)) for name in demo.SEARCHES}
    rows = one.table(fronts, fronts["learned"][3]).splitlines()[2:]
    names = [row.split("  ")[0] for row in rows]
    places = [0, 2, 4, 6, 8]
    assert names == [
        "float", "8 bits", *(f"TPE best_{n}" for n in places),
        *(f"learned best_{n}" for n in ("0", "2", "3 ★", "4", "6", "8")),
    ]  # fmt: skip
    assert rows[1].split() == "8 bits 54,321 0.7500 ±0.0100 0.7200 ±0.0100 20,000 rows".split()


def test_what_was_exported_is_said_with_what_checked_it(demo: ModuleType, search: Path) -> None:
    manifest = {"form": "c", "verified": {"rows": 2000}, "checked_with": "cc -std=c99"}
    put(search / "export_c_epoch_7/manifest.json", manifest)
    point = next(demo.front(search, search))
    assert demo.exported(point) == "★ c: equal to its integers on 2,000 rows (cc -std=c99)"
