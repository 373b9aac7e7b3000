"""Comparison of samplers: real runs on a small space, and sums that can be checked by hand."""

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from warm import WarmRun

from chop.cli import main
from chop.config.layers import read_toml
from chop.dataset import MaseDataModule
from chop.errors import ChopError, ConfigError, SearchError
from chop.models import get_model, get_model_info
from chop.results.comparison import BEST_FRONT, TRUE_FRONT, Comparison
from chop.search.config import parse_search
from chop.search.contest import Contest, Run, SamplerRun
from chop.search.spaces.measure import Measure
from chop.search.study.trial import Outcome
from chop.verbs.search.comparing import ComparisonResult, compare

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "jsc_compare.toml"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def data() -> MaseDataModule:
    module = MaseDataModule("jsc-sim", batch_size=512)
    module.setup()
    return module


def tables(**setup: Any) -> dict[str, Any]:
    """The example with 3 x 3 x 2 configurations in place of 588."""
    search: dict[str, Any] = read_toml(EXAMPLE)["search"]
    seed = search["search_space"]["seed"]["linear"]["config"]
    seed |= {"data_in_width": [2, 4, 8], "weight_width": [2, 4, 8], "bias_width": [2, 8]}
    seed["weight_frac_width"] = ["NA"]
    search["strategy"]["setup"] = {"n_trials": 100, **setup}
    return search


def run(data: MaseDataModule, folder: Path, search: dict[str, Any], **how: Any) -> ComparisonResult:
    torch.manual_seed(3)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    info = get_model_info("jsc-tiny")
    return compare(model, info, data, search, save_dir=folder, pretrained=True, **how)


def test_samplers_that_exhaust_the_space_end_at_the_true_front(
    tmp_path: Path, data: MaseDataModule
) -> None:
    how: dict[str, Any] = {"samplers": ["tpe", "random", "brute"], "seeds": 2}
    found = run(data, tmp_path / "one", tables(), **how)
    summary = json.loads((found.folder / "comparison.json").read_text())
    assert summary == found.summary
    assert summary["normalised_by"] == TRUE_FRONT
    assert summary["space_size"] == summary["measured"] == 18
    assert {name: len(s["runs"]) for name, s in summary["samplers"].items()} == {
        "tpe": 2, "random": 2, "brute": 1,
    }  # fmt: skip
    for sampler in summary["samplers"].values():
        for each in sampler["runs"]:
            assert each["curve"] == sorted(each["curve"])
            assert len(each["curve"]) == each["evaluations"] == 18
            assert each["curve"][-1] == 1.0
            assert each["curve"][each["reached"]["0.99"] - 1] >= 0.99
        assert sampler["median"][-1] == sampler["low"][-1] == sampler["high"][-1] == 1.0
    first, second = (each["curve"] for each in summary["samplers"]["random"]["runs"])
    assert first != second

    again = run(data, tmp_path / "two", tables(), **how)
    for name in ("comparison.json", "comparison.csv"):
        assert (again.folder / name).read_bytes() == (found.folder / name).read_bytes()
    assert (found.folder / "comparison.png").read_bytes().startswith(PNG)
    rows = list(csv.DictReader((found.folder / "comparison.csv").read_text().splitlines()))
    assert len(rows) == 5 * 18


def test_a_run_alone_or_among_others_sees_the_same(tmp_path: Path, data: MaseDataModule) -> None:
    """What others have measured before must not change what a sampler does."""
    alone = run(data, tmp_path / "a", tables(n_trials=7), samplers=["tpe"], seeds=[5]).summary
    among = run(
        data, tmp_path / "b", tables(n_trials=7), samplers=["random", "tpe"], seeds=[4, 5]
    ).summary
    (mine,) = alone["samplers"]["tpe"]["runs"]
    theirs = among["samplers"]["tpe"]["runs"][1]
    assert mine == theirs
    assert mine["evaluations"] == 7


def test_one_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "compare.toml"
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in (
        ('compare = ["tpe", "random", "nsgaii", "brute"]', 'compare = ["random", "nsgaii"]'),
        ("repeats = 5", "repeats = 2"),
        ("n_trials = 150", "n_trials = 10"),
    ):
        assert old in text
        text = text.replace(old, new)
    config.write_text(text, encoding="utf-8")
    where = ["--project-dir", str(tmp_path), "--project", "out", "--cpu=0", "--report-to", "none"]
    assert main(["search", "--config", str(config), *where]) == 0
    folder = tmp_path / "out" / "software" / "comparison"
    summary = json.loads((folder / "comparison.json").read_text())
    assert [run["seed"] for run in summary["samplers"]["nsgaii"]["runs"]] == [42, 43]
    assert summary["normalised_by"] == TRUE_FRONT
    assert "| nsgaii    | 2      | 10 " in capsys.readouterr().out
    killed = kill_midway([*where[:3], "killed", *where[4:], "--config", str(config)], tmp_path)
    assert not (killed / "comparison.json").exists()
    where[3] = "killed"
    assert main(["search", "--config", str(config), *where, "--resume"]) == 0
    assert json.loads((killed / "comparison.json").read_text()) == summary
    assert not killed.with_name("comparison-v1").exists()


def kill_midway(arguments: list[str], folder: Path) -> Path:
    """Start a comparison with two processes, kill both while they are at it; its folder."""
    config = Path(arguments[-1])
    config.write_text(config.read_text().replace("repeats = 2", "repeats = 2\nn_jobs = 2"))
    process = WarmRun("search", *arguments)
    comparison = folder / "killed" / "software" / "comparison"
    journal, deadline = comparison / "study.log", time.monotonic() + 600
    while not journal.exists() or journal.read_bytes().count(b"\n") < 40:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return comparison


class Counted:
    """Counts what is measured and what is run, and stops everything after so many runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> None:
        self.measured = self.runs = 0
        measure, begin = Measure.__call__, Contest._begin

        def measuring(this: Measure, config: dict[str, Any]) -> Outcome:
            self.measured += 1
            return measure(this, config)

        def beginning(this: Contest, plan: Any) -> SamplerRun:
            if self.runs == stop_after:
                raise KeyboardInterrupt
            self.runs += 1
            return begin(this, plan)

        monkeypatch.setattr(Measure, "__call__", measuring)
        monkeypatch.setattr(Contest, "_begin", beginning)


def test_a_comparison_that_was_stopped_goes_on(
    tmp_path: Path, data: MaseDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"samplers": ["random", "tpe"], "seeds": 2}
    whole = run(data, tmp_path / "whole", tables(n_trials=7), **how)
    with monkeypatch.context() as patch:
        first = Counted(patch, stop_after=3)
        with pytest.raises(KeyboardInterrupt):
            run(data, tmp_path / "stopped", tables(n_trials=7), **how)
    with monkeypatch.context() as patch:
        second = Counted(patch)
        resumed = run(data, tmp_path / "stopped", tables(n_trials=7), resume=True, **how)
    assert (first.runs, second.runs) == (3, 1)
    assert first.measured > 0
    assert first.measured + second.measured == 18  # the whole space, each configuration once
    assert resumed.folder == tmp_path / "stopped"
    assert resumed.summary == whole.summary
    with monkeypatch.context() as patch:
        third = Counted(patch)
        run(data, tmp_path / "stopped", tables(n_trials=7), resume=True, **how)
        assert (third.runs, third.measured) == (0, 0)
        more = how | {"samplers": ["random", "tpe", "nsgaii"]}
        run(data, tmp_path / "stopped", tables(n_trials=7), resume=True, **more)
        assert (third.runs, third.measured) == (2, 0)


def test_a_comparison_of_something_else_is_not_gone_on_with(
    tmp_path: Path, data: MaseDataModule
) -> None:
    how: dict[str, Any] = {"samplers": ["random"], "seeds": 1}
    run(data, tmp_path / "one", tables(n_trials=3), **how)
    other = tables(n_trials=3)
    other["strategy"]["sw_runner"]["basic_evaluation"]["num_samples"] = 100
    with pytest.raises(SearchError, match="another runners"):
        run(data, tmp_path / "one", other, resume=True, **how)


def test_processes_share_the_runs_and_find_the_same(
    tmp_path: Path, data: MaseDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"samplers": ["tpe", "random"], "seeds": 3}
    one = run(data, tmp_path / "one", tables(n_trials=8), **how)
    measure = Measure.__call__

    def noted(this: Measure, config: dict[str, Any]) -> Outcome:
        (tmp_path / f"measured-by-{os.getpid()}").touch()
        return measure(this, config)

    monkeypatch.setattr(Measure, "__call__", noted)
    three = run(data, tmp_path / "three", tables(n_trials=8, n_jobs=3), **how)
    assert three.summary == one.summary
    workers = {path.name for path in tmp_path.glob("measured-by-*")}
    assert len(workers - {f"measured-by-{os.getpid()}"}) == len(workers) == 3


def comparison(*, complete: bool, runs: list[Run] | None = None) -> Comparison:
    """Two objectives: accuracy is maximised, the width minimised; d is worse than b."""
    values = {"a": [0.0, 0.0], "b": [1.0, 1.0], "c": [0.5, 0.5], "d": [0.5, 1.0]}
    outcomes = {key: Outcome(each) for key, each in values.items()} | {"e": Outcome(reason="nan")}
    runs = runs or [Run("random", 0, ("e", "d", "b", "c", "a"), 0), Run("random", 1, ("a",), 3)]
    return Comparison(parse_search(tables()), runs, outcomes, complete=complete)


def test_the_curve_is_the_share_of_the_hypervolume() -> None:
    found = comparison(complete=True)
    assert found.reference == pytest.approx((0.01, 1.01))
    # Slices between the reference (0.01, 1.01) and the points (-1, 1), (-0.5, 0.5), (0, 0).
    whole = 0.5 * 0.01 + 0.5 * 0.51 + 0.01 * 1.01
    shares = [0.0, 0.51 * 0.01, 1.01 * 0.01, 0.5 * 0.01 + 0.51 * 0.51, whole]
    assert found.whole == pytest.approx(whole)
    assert found.curve(found.runs[0]) == pytest.approx([share / whole for share in shares])
    assert found.evaluations_to("random", 0.95) == [4, None]
    low, median, high = found.band("random")
    assert median[-1] == pytest.approx((1 + 0.01 * 1.01 / whole) / 2)
    assert (low <= median).all()
    assert (median <= high).all()


def test_the_table_says_what_was_never_reached() -> None:
    table = comparison(complete=False, runs=[Run("tpe", 0, ("e",), 0)]).table()
    assert "never" in table
    assert comparison(complete=False).normalised_by == BEST_FRONT


def test_nothing_within_bounds_is_an_error() -> None:
    config = parse_search(tables())
    with pytest.raises(SearchError, match="within all bounds"):
        outside = Outcome([0.5, 4.0], violations={"accuracy": 0.1})
        Comparison(config, [], {"a": outside}, complete=True)


def test_a_comparison_whose_trials_all_fail_says_why() -> None:
    config = parse_search(tables(compare=["random"]))
    outcomes = {key: Outcome(reason=f"{key} has no width") for key in ("bias", "weight")}
    with pytest.raises(SearchError, match="^every trial failed; the first: bias has no width$"):
        Comparison(config, [], outcomes, complete=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"samplers": ["tpe", "randm"]}, "randm"),
        ({"samplers": []}, "at least one sampler"),
        ({"seeds": []}, "at least one seed"),
        ({"storage": "sqlite:///x.db"}, "leave out storage"),
    ],
)
def test_mistakes_are_named(
    how: dict[str, Any], message: str, tmp_path: Path, data: MaseDataModule
) -> None:
    setup = {"storage": how.pop("storage")} if "storage" in how else {}
    with pytest.raises(ChopError, match=message) as error:
        run(data, tmp_path, tables(**setup), **how)
    assert isinstance(error.value, ConfigError)
