"""Formats by methods in one table: what it counts, compares, records and refuses."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import chop
from chop.cli import main
from chop.dataset.info import get_dataset_info
from chop.errors import ChopError
from chop.models import get_model
from chop.results.formats import FormatComparison
from chop.verbs.formats.cells import cells_of, parse_operands, usable_formats

Rows = list[tuple[Tensor, Tensor]]


def network() -> tuple[nn.Module, Rows]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 6)).eval()
    x = torch.randn(600, 32) @ torch.randn(32, 32)
    with torch.no_grad():
        return model, [(part, model(part).argmax(1)) for part in x.split(200)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FormatComparison:
    model, rows = network()
    before = [each.clone() for each in model.parameters()]
    result = chop.compare_formats(
        model, rows, formats=["integer", "mxfp4", "nvfp4"], methods=["rtn", "gptq", "lqer"],
        widths=["w3", "w3a8"], project=tmp_path_factory.mktemp("p"), calibration_rows=200,
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return result


def test_a_row_for_each_combination_with_bits_that_are_stored(found: FormatComparison) -> None:
    keys = [point.key for point in found.points]
    assert len(keys) == len(set(keys)) == 18
    assert all(point.problem is None for point in found.points)
    weights = 32 * 48 + 48 * 6
    of = found.by_key
    assert of["integer", "w3", "rtn"].weight_bits == 3
    assert of["integer", "w3", "rtn"].data_bits is None
    assert of["integer", "w3a8", "rtn"].data_bits == 8
    mx = 4 + 8 * (48 * 1 + 6 * 2) / weights
    assert of["mxfp4", "w", "gptq"].weight_bits == pytest.approx(mx)
    nv = 4 + (8 * (48 * 2 + 6 * 3) + 2 * 32) / weights
    assert of["nvfp4", "wa", "rtn"].weight_bits == pytest.approx(nv)
    thin = 16 * (8 * (32 + 48) + 6 * 48 + 6 * 6) / weights
    assert of["integer", "w3", "lqer"].weight_bits == pytest.approx(3 + thin)


def test_methods_help_where_they_say_so_on_the_same_rows(found: FormatComparison) -> None:
    of = found.by_key
    point, nearest = of["integer", "w3", "gptq"], of["integer", "w3", "rtn"]
    assert found.score(found.start)[0] == 1.0
    assert found.score(point)[0] == pytest.approx(1 - sum(point.losses) / 600)
    assert found.verdict(point, nearest) == "better"
    assert found.verdict(nearest, point) == "worse"
    assert found.verdict(point, point) == "same"
    assert found.share_won_back(point) == pytest.approx(1 - sum(point.losses) / sum(nearest.losses))
    assert set(point.snr) == {"_0", "_2"}
    assert all(point.snr[name] > nearest.snr[name] for name in point.snr)


def test_what_is_saved_is_read_and_shown(found: FormatComparison) -> None:
    assert found.folder is not None
    again = FormatComparison.load(found.folder)
    assert again == found
    text = repr(again)
    assert "than rtn" in text
    assert "600 validation rows" in text
    assert (found.folder / "formats.png").stat().st_size > 1000
    lines = (found.folder / "formats.csv").read_text().splitlines()
    assert len(lines) == 19
    page = chop.report(found.folder.parent.parent).read_text()
    assert "Formats compared" in page


def test_what_was_measured_is_kept_and_a_torn_line_is_not(found: FormatComparison) -> None:
    assert found.folder is not None
    journal, project = found.folder / "points.jsonl", found.folder.parent.parent
    lines = journal.read_text().splitlines()
    marked = json.loads(lines[1]) | {"seconds": 12345.0}
    journal.write_text("\n".join([lines[0], json.dumps(marked), lines[2][:50]]))
    model, rows = network()
    more = chop.compare_formats(
        model, rows, formats=["integer"], methods=["rtn", "gptq"], widths=["w3"],
        project=project, calibration_rows=200, n_jobs=2,
    )  # fmt: skip
    assert more.folder == found.folder
    assert more.points[0].seconds == 12345.0
    assert more.points[1].losses == found.by_key["integer", "w3", "gptq"].losses
    with torch.no_grad():
        next(model.parameters()).mul_(1.1)
    other = chop.compare_formats(
        model, rows, formats="integer", methods="rtn", widths="w3", project=project
    )
    assert other.folder is not None
    assert other.folder.name == "formats-v1"


def test_cache_and_scores_of_attention_have_bits_of_their_own() -> None:
    torch.manual_seed(1)
    model = get_model("decoder-tiny", "lm", dataset_info=get_dataset_info("agreement-lm")).eval()
    tokens = torch.randint(1, 50, (24, 15))
    rows = [(tokens, tokens.roll(-1, 1))]
    widths = ["w8", "kv3", "s3", "a8", "w8a8kv8s8"]
    found = chop.compare_formats(
        model, rows, formats=["integer", "mxfp4"], methods=["rtn"], widths=widths
    )
    assert found.metric == "perplexity"
    of = {(p.format, p.operands): p for p in found.points}
    assert {key for key in of if key[0] == "mxfp4"} == {
        ("mxfp4", each) for each in ("w", "kv", "s", "a", "all")
    }
    assert all(point.problem is None for point in found.points)
    assert of["integer", "w8"].data_bits is None
    assert of["integer", "kv3"].weight_bits is None
    assert len({of["mxfp4", each].losses for each in ("w", "kv", "s", "a", "all")}) == 5
    assert found.start.losses not in {point.losses for point in found.points}


def test_the_command_line_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["jsc-toy", "jsc-sim", "--formats", "mxfp4", "--methods", "rtn,rotate+gptq"]
    words += ["--widths", "w4", "--num-samples", "300", "--project", "p"]
    assert main(["formats", *words]) == 0
    out = capsys.readouterr().out
    assert "rotate+gptq" in out
    found = FormatComparison.load(tmp_path / "mase_output/p/software/formats")
    assert found.rows_measured == 300
    assert [point.method for point in found.points] == ["rtn", "rotate+gptq"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--formats", "mxfp5"], "mxfp5"),
        (["--methods", "gptk"], "unknown method 'gptk'"),
        (["--methods", "rtn+gptq"], "stands alone"),
        (["--widths", "x4"], "does not say what is rounded"),
        (["--widths", "w", "--formats", "integer"], "wants bits for w"),
        (["--formats", "integer_scaled"], "cannot be compared by a width alone"),
    ],
)
def test_mistakes_leave_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["formats", "jsc-toy", "jsc-sim", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ChopError, match="unknown setting"):
        chop.compare_formats(network()[0], network()[1], seeds=3)


def test_words_for_operands() -> None:
    assert parse_operands("w4a8kv3") == {"w": 4, "a": 8, "kv": 3}
    assert parse_operands("4") == dict.fromkeys(("w", "a", "kv", "s"), 4)
    assert {"integer", "nvfp4", "log"} <= set(usable_formats())
    assert not {"fixed", "integer_trained", "integer_scaled"} & set(usable_formats())
    cells = cells_of(["mxfp4"], ["w4", "w8", 4], ["rtn"])
    assert [cell.operands for cell in cells] == ["w", "all"]
