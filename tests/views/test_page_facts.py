"""The numbers behind the page."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import Page, logged, put

from chop.figures import number
from chop.markup import Markup, escape, tag
from chop.numerics import FORMATS
from chop.results.front import SearchResult
from chop.results.front_charts import choices_of, importances, varied_choices
from chop.results.graph import NodeFacts, rounded_tensor, sqnr
from chop.runs import RunFolder
from chop.search.study.trial import SearchDescription as Problem
from chop.search.study.trial import Trial
from chop.verbs.report import report
from chop.views.sections.graph import (
    DEEPEST,
    bit_colour,
    error_colour,
    picture,
    place_nodes,
    statistic_text,
    together,
)
from chop.views.sections.search import MOST_POINTS, json_block, plot_data, search_charts, thin_out
from chop.views.svg import Axis, nice_ticks


def test_sqnr_is_the_ratio_of_powers() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert sqnr(x, x + 0.1) == pytest.approx(10 * math.log10(14 / 0.03), abs=1e-4)
    assert sqnr(x, x) == math.inf
    assert sqnr(torch.zeros(2), torch.ones(2)) == -math.inf


@pytest.mark.parametrize("width", [4, 8])
def test_one_more_bit_is_six_decibels(width: int) -> None:
    x = torch.rand(20_000) * 2 - 1
    make = FORMATS["integer"]
    one, two = (
        rounded_tensor("n", "weight", x, make(width=w, frac_width=w - 1))
        for w in (width, width + 1)
    )
    assert two.sqnr - one.sqnr == pytest.approx(6.02, abs=0.6)
    assert one.before.sum() == one.after.sum() == one.count == 20_000
    assert np.count_nonzero(one.after) <= 2**width
    assert one.bits == width


def test_histograms_survive_what_is_not_finite() -> None:
    x = torch.tensor([math.nan, math.inf, 0.5])
    found = rounded_tensor("n", "weight", x, FORMATS["integer"](width=8, frac_width=4))
    assert found.before.sum() == 1


@given(
    st.floats(-1e9, 1e9),
    st.floats(0, 1e9),
    st.booleans(),
)
def test_ticks_cover_their_range(low: float, span: float, whole: bool) -> None:
    ticks = nice_ticks(low, low + span, whole=whole)
    slack = 1e-9 * max(1.0, abs(low), span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 12
    assert ticks == sorted(set(ticks))
    if whole:
        assert all(float(tick).is_integer() for tick in ticks)


@settings(deadline=None)  # a busy machine is no mistake
@given(st.text(), st.text())
def test_text_never_becomes_markup(words: str, attribute: str) -> None:
    page = Page(tag("p", words, title=attribute))
    assert [name for name, _ in page.tags] == ["p"]
    assert list(page.tags[0][1]) == ["title"]
    assert escape(Markup("<b>")) == "<b>"


@pytest.mark.parametrize(
    ("value", "words"),
    [(1234567, "1,234,567"), (0.1234567, "0.1235"), (12345.6, "12,346"), (2.0, "2"), (None, "–"),
     (math.inf, "∞"), (math.nan, "–"), ("x", "x"), (-3.14159, "-3.142"), (True, "True")],
)  # fmt: skip
def test_numbers_as_people_write_them(value: object, words: str) -> None:
    assert number(value) == words


def test_colours_run_from_none_to_full() -> None:
    assert bit_colour(32) == bit_colour(64) == error_colour(None) == error_colour(math.inf) == 0
    assert bit_colour(1) == error_colour(-math.inf) == DEEPEST
    assert bit_colour(4) > bit_colour(8) > bit_colour(16) > 0


def node(name: str, *inputs: str) -> NodeFacts:
    return NodeFacts(name, "add", "add", "1", inputs, {}, 32.0, (), ())


def test_a_node_is_below_all_that_it_reads() -> None:
    nodes = [node("x"), node("a", "x"), node("b", "x"), node("c", "a", "b"), node("d", "c", "x")]
    assert place_nodes(nodes) == {"x": (0, 0), "a": (1, 0), "b": (1, 1), "c": (2, 0), "d": (3, 0)}
    page = Page(picture(nodes))
    assert [attrs["class"] for tag_, attrs in page.tags if tag_ == "path"] == ["edge"] * 6


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.5, "0.5"), (torch.tensor([1.0, 3.0]), "1 … 3 (2 values)"), ([], "–"), ("x", "–"),
     ([[1, 2], [3, 4]], "1 … 4 (4 values)")],
)  # fmt: skip
def test_statistics_in_a_few_characters(value: object, words: str) -> None:
    assert statistic_text(value) == words


def make_search(count: int, front: list[int], **problem: object) -> SearchResult:
    trials = [
        Trial(
            n,
            {"accuracy": 0.5 + 0.1 * (n % 2), "noise": 0.0},
            (0.5 + 0.1 * (n % 2),),
            {("a", "config", "w"): 4 if n % 2 else 8, ("b", "config", "w"): n % 3, ("c",): 1}
            | ({("d",): "x"} if n % 4 else {}),
        )
        for n in range(count)
    ]
    stated = Problem(directions=("maximize",), **problem)
    return SearchResult(trials, [trials[n] for n in front], stated)


def test_the_choice_that_decides_matters_most() -> None:
    search = make_search(60, [1])
    mattered = importances(search)
    assert mattered is not None
    found = mattered.shares["the sum of scaled metrics"]
    assert next(iter(found)) == "a w"
    assert sum(found.values()) == pytest.approx(1)
    assert varied_choices([choices_of(trial) for trial in search.trials]) == ["a w", "b w"]


@pytest.mark.parametrize(
    ("count", "words"), [(7, "8 complete trials are needed"), (8, "variance between 8 trials")]
)
def test_the_page_says_what_the_shares_are_or_why_there_are_none(count: int, words: str) -> None:
    shown = search_charts(make_search(count, [1]))
    assert words in shown
    assert ("What matters for" in shown) == (count == 8)


def test_large_searches_keep_the_page_small() -> None:
    search = make_search(50_000, [1, 49_999])
    assert {1, 49_999} <= {trial.number for trial in thin_out(search)}
    assert len(thin_out(search)) <= MOST_POINTS
    block = json_block(plot_data(search, ["accuracy", "noise"]), "x")
    assert len(block) < 400_000


def test_a_search_over_many_layers_stays_below_two_megabytes(tmp_path: Path) -> None:
    folder = tmp_path / "p/software/search_ckpts"
    rule = {"name": "integer", "weight_width": 4, "data_in_width": 8, "weight_frac_width": None}
    config = {f"layer_{place}": {"config": rule} for place in range(60)}
    rows = {
        str(n): logged(n, 0.5 + n / 1e5, 4 + n % 3, user_attrs_sampled_config=config)
        for n in range(3000)
    }
    put(folder / "log.json", rows)
    put(folder / "best.json", {str(n): {"number": n} for n in range(60)})
    for n in range(60):
        tables = "".join(f"[passes.quantize.layer_{i}.config]\nname = 'x'\n" for i in range(60))
        put(folder / f"best_{n}.toml", f"[passes.quantize]\nby = 'name'\n{tables}")
    assert report(tmp_path / "p").stat().st_size < 2_000_000


def test_bounds_put_trials_out() -> None:
    search = make_search(4, [1], metrics={"accuracy": {"min": 0.55}})
    assert [search.group(trial) for trial in search.trials] == [
        "out of bounds", "front", "out of bounds", "dominated",
    ]  # fmt: skip


def test_the_page_of_a_branching_network_of_its_own(tmp_path: Path) -> None:
    """Functions, several inputs and a format with blocks, saved and shown."""
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes import graph as passes

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.conv(x) + x).flatten(1)

    mg = MaseGraph(Net())
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(
        mg, {"dummy_in": {"x": torch.rand(2, 3, 8, 8)}}
    )
    block = {"name": "block_fp", "data_in_width": 6, "data_in_exponent_width": 4}
    block |= {"data_in_exponent_bias": None, "data_in_block_size": [16], "weight_width": 5}
    block |= {"weight_exponent_width": 4, "weight_exponent_bias": None, "weight_block_size": [16]}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "conv2d": {"config": block}})
    passes.save_mase_graph_interface_pass(mg, tmp_path / "p/software/transform/transformed_ckpt")
    page = Page(report(tmp_path / "p").read_text(encoding="utf-8"))
    assert page.sections == ["graph", "quantisation", "costs"]
    assert "Conv2dBlockFP" in page.texts["graph"]
    assert "2×3×8×8" in page.texts["graph"]


@pytest.mark.parametrize(
    ("ticks", "words"),
    [([0, 2e6, 4e6], ["0", "2 M", "4 M"]), ([0, 5e8, 1e9], ["0", "0.5 G", "1 G"]),
     ([0.0, 0.5, 1.0], ["0", "0.5", "1"]), ([-5e5, 0, 5e5], ["-500 k", "0", "500 k"])],
)  # fmt: skip
def test_long_numbers_along_an_axis_are_short(ticks: list[float], words: list[str]) -> None:
    axis = Axis("x", ticks, 0, 100)
    assert [axis.tick_text(tick) for tick in ticks] == words


def test_statistics_of_a_tensor_stand_in_one_row_unless_they_contradict() -> None:
    one, two = {"mean": 1.0, "count": 4}, {"max": 2.0, "count": 4}
    other = {"min": 0.0, "count": 5}
    found = together([("weight", "a", one), ("weight", "b", two), ("weight", "c", other)])
    assert found == [("weight", "a, b", one | two), ("weight", "c", other)]


def test_a_stored_path_is_seen_from_the_project(tmp_path: Path) -> None:
    put(tmp_path / "jets/software/best.ckpt", "")
    run = RunFolder(tmp_path / "jets", tmp_path / "jets/software")
    assert run.short("mase_output/jets/software/best.ckpt") == "software/best.ckpt"
    assert run.short(str(tmp_path / "jets/software/best.ckpt")) == "software/best.ckpt"
    assert run.short("elsewhere/best.ckpt") == "elsewhere/best.ckpt"
    assert run.short(None) == ""
