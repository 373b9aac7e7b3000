"""The best trials of a search, compared with their integers when it ends."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from chop.actions import search
from chop.dataset import MaseDataModule
from chop.errors import SearchError
from chop.figures import Measured
from chop.lowering import program
from chop.models import get_model, get_model_info
from chop.search.front import verification
from chop.search.front.accuracy import Judge
from chop.training.metrics import evaluate_model
from chop.views.sections.search import search_section

LINEAR = "seq_blocks_2"


def found(folder: Path, width: int = 8, frac: int = 4, *, resume: bool = False, **more: Any) -> Any:
    """Search widths of the linear layer of a network all of whose operations are quantised."""
    roles = ("data_in", "weight", "bias")
    widths = {f"{r}_{k}": [v] for r in roles for k, v in (("width", width), ("frac_width", frac))}
    every = {"config": {"name": ["integer"], **widths}}
    some = {"config": {"name": ["integer"], **widths, "weight_width": [3, width]}}
    tables = {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "seed": {"default": more.get("default", every), LINEAR: some},
        },
        "strategy": {
            "sw_runner": {"basic_evaluation": {"num_samples": 512}},
            "hw_runner": {"average_bitwidth": {}},
            "setup": {"sampler": "brute", "plots": False},
            "metrics": {
                "accuracy": {"direction": "maximize"},
                "average_bitwidth": {"direction": "minimize"},
            },
            "verify": more.get("verify"),
        },
    }
    torch.manual_seed(0)
    model, data = get_model("jsc-tiny"), MaseDataModule("jsc-sim", batch_size=1024)
    info = get_model_info("jsc-tiny")
    tables["strategy"]["sw_runner"]["basic_evaluation"] |= more.get("evaluation", {})
    return search(model, info, data, tables, save_dir=folder, pretrained=True, resume=resume)


def marks(folder: Path) -> list[Any]:
    return [
        point.get("verified") for point in json.loads((folder / "best.json").read_text()).values()
    ]


def page(folder: Path) -> str:
    section = search_section(folder, "", 0)
    assert section is not None
    return str(section.body)


def test_every_point_of_a_front_is_verified_on_validation_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "chop"):
        result = found(tmp_path)
    assert result.verified.keys() == {trial.number for trial in result.best}
    stored = marks(tmp_path)
    assert stored == [each.model_dump() for each in result.verified.values()]
    assert {(m["equal"], m["promised"], m["rows"], m["different"]) for m in stored} == {
        (True, True, 20_000, 0)
    }
    said = caplog.text
    assert f"{len(stored)} of {len(stored)} best trials compute in integers" in said
    assert "| verified" in said
    assert "20,000 rows |" in said
    assert "Verified in integers" in page(tmp_path)
    assert "20,000 rows" in page(tmp_path)


def test_what_was_verified_once_is_not_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = found(tmp_path).verified
    monkeypatch.setattr(verification, "compare", None)  # whatever calls it, fails
    assert found(tmp_path, resume=True).verified == before
    assert marks(tmp_path) == [each.model_dump() for each in before.values()]
    (tmp_path / "best.json").write_text("{")
    with pytest.raises(TypeError):
        found(tmp_path, resume=True)


def test_where_nothing_is_promised_the_difference_is_told(tmp_path: Path) -> None:
    (mark, *_) = found(tmp_path, width=16, frac=15).verified.values()
    assert (mark.equal, mark.promised) == (mark.different == 0, False)
    assert 0 < mark.different < mark.numbers == 5 * 20_000
    assert f"inexact: {mark.different:,} of 100,000 outputs differ" in page(tmp_path)


def test_a_network_without_integers_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    floating = {"default": {"config": {"name": [None]}}}
    with caplog.at_level(logging.INFO, "chop"):
        found(tmp_path / "a", **floating)
    reason = "seq_blocks_0 reads the input 'x' in floating point"
    assert "WARNING" not in caplog.text
    assert f"0 of {len(marks(tmp_path / 'a'))} best trials compute in integers" in caplog.text
    assert "| verified" not in caplog.text
    assert all(mark["equal"] is None and reason in mark["reason"] for mark in marks(tmp_path / "a"))
    assert "Not verified:" in page(tmp_path / "a")
    with caplog.at_level(logging.WARNING, "chop"):
        found(tmp_path / "b", verify="integer", **floating)
    assert any(each.levelname == "WARNING" and reason in each.message for each in caplog.records)
    found(tmp_path / "c", verify="none")
    assert set(marks(tmp_path / "c")) == {None}
    assert "integers" not in page(tmp_path / "c")


def test_a_network_that_is_not_its_integers_fails_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = program.Product.__init__

    def wrong(self: Any, node: str, *args: Any, **fields: Any) -> None:
        right(self, node, *args, **fields | {"weight": fields["weight"] + 1})

    monkeypatch.setattr(program.Product, "__init__", wrong)
    with pytest.raises(
        SearchError, match=rf"trial \d: .* differs .* in {LINEAR}, at a batch size of 1"
    ):
        found(tmp_path)
    assert {(mark["equal"], mark["promised"]) for mark in marks(tmp_path)} == {(False, True)}
    assert "WRONG" in page(tmp_path)
    monkeypatch.undo()
    assert all(mark.equal for mark in found(tmp_path, resume=True).verified.values())
    assert (tmp_path / "trials.csv").is_file()


def test_the_front_and_the_float_network_are_tested_when_the_search_is_over(
    tmp_path: Path,
) -> None:
    result = found(tmp_path)
    stored = json.loads((tmp_path / "best.json").read_text())
    torch.manual_seed(0)
    model, data = get_model("jsc-tiny"), MaseDataModule("jsc-sim", batch_size=1024)
    data.setup()
    tested = evaluate_model(model, data.test_dataloader())
    assert result.start.test == Measured.of(tested.right, 20_000)
    assert json.loads((tmp_path / "search.json").read_text())["start"]["test"] == (
        result.start.test.model_dump()
    )
    for place, trial in enumerate(result.best):
        known = stored[str(place)]["accuracies"]
        assert known == result.judged[trial.number].model_dump()
        assert known["chosen_by"]["accuracy"] == trial.software["accuracy"]
        assert (known["chosen_by"]["rows"], known["test"]["rows"]) == (512, 20_000)
        assert known["test"]["low"] < known["test"]["accuracy"] < known["test"]["high"]
        head = (tmp_path / f"best_{place}.toml").read_text().splitlines()[0]
        assert head.startswith(f"# Trial {trial.number}: loss ")
        assert f"accuracy {known['chosen_by']['accuracy']:.4g}, " in head


def test_what_was_tested_once_is_not_tested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = found(tmp_path).judged
    monkeypatch.setattr(Judge, "_model", None)  # whatever calls it, fails
    assert found(tmp_path, resume=True).judged == before
    (tmp_path / "best.json").write_text("{")
    with pytest.raises(TypeError):
        found(tmp_path, resume=True)


def test_a_search_that_chooses_by_test_rows_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found(tmp_path, evaluation={"data_loader": "test_dataloader"})
    assert "The search chooses by test rows" in caplog.text
