"""Charts: what is described once is drawn into a file and into the page."""

from itertools import pairwise
from pathlib import Path

import pytest

from chop.charts import Band, BarChart, Chart, LineChart, RankingChart, make_figure, write_png
from chop.training.report import draw_curves
from chop.views.svg import bar_chart, line_chart, log_ticks

LINES = LineChart(
    "Loss", "epoch", "nats", {"a": [(0, 1.0), (1, 0.5)], "b": [(0, 2.0), (1, 40.0)]},
    {"a": Band([(0, 0.9), (1, 0.4)], [(0, 1.1), (1, 0.6)])}, legend="setting",
)  # fmt: skip


@pytest.mark.parametrize(
    "chart",
    [LINES, BarChart("What matters", "share", {"a": 0.5, "b": 0.0}, ".3f"),
     RankingChart("Accuracy", "fraction", {"a": [1.0, 2.0], "b": [1.5]})],
    ids=lambda chart: type(chart).__name__,
)  # fmt: skip
def test_every_kind_of_chart_is_drawn_with_its_words(chart: Chart, tmp_path: Path) -> None:
    path = write_png(tmp_path / "chart.png", [[chart]], "title")
    assert path.read_bytes().startswith(b"\x89PNG")
    figure = make_figure([[chart]], "title")
    (panel,) = figure.axes
    assert (panel.get_title(), panel.get_xlabel()) == (chart.title, chart.x)
    assert figure.get_suptitle() == "title"


def test_a_row_of_charts_has_one_legend_with_all_names() -> None:
    part = LineChart("Accuracy", "epoch", "fraction", {"a": [(0, 0.5)]})
    left, right = make_figure([[LINES, part]]).axes
    assert left.get_legend() is None
    legend = right.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_a_run_without_numbers_has_a_picture_too(tmp_path: Path) -> None:
    for history in ([], [{"epoch": 0, "train_loss": 1.0}]):
        draw_curves(history, tmp_path / "curves.png", "title")
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_draws_the_same_numbers() -> None:
    page = line_chart(LINES)
    assert "setting: " in page
    for words in ("a: 0.5 at epoch 1", "b: 40 at epoch 1", ">nats<"):
        assert words in page
    assert page.count('class="band ') == 1
    bars = bar_chart(BarChart("What matters", "share", {"a": 0.5, "b": 0.25}, ".3f"))
    assert "0.250" in bars


def test_points_are_not_joined_and_stairs_are() -> None:
    points = [(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)]
    assert 'class="line' not in line_chart(
        LineChart("t", "x", "y", {"a": points}, marks={"a": "."})
    )
    stairs = line_chart(LineChart("t", "x", "y", {"a": points}, steps=True))
    drawn = stairs[stairs.index('<path d="') + 9 :].partition('"')[0].removeprefix("M").split("L")
    corners = [tuple(map(float, each.split(","))) for each in drawn]
    assert len(corners) == 4  # what lies on one level is one line
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 13, [1, 2, 5, 10, 20]), (1, 588, [1, 3, 10, 30, 100, 300, 1000]), (1, 1, [1, 2]),
     (1, 1e8, [10.0**power for power in range(9)]), (0.4, 9, [0.2, 0.5, 1, 2, 5, 10])],
)  # fmt: skip
def test_logarithmic_ticks_cover_their_range(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)
    chart = LineChart("t", "x", "y", {"a": [(low, 1), (high, 2)]}, logarithmic="x")
    assert "nan" not in line_chart(chart)


def test_a_level_with_a_name_and_a_star_are_in_both_pictures(tmp_path: Path) -> None:
    chart = LineChart(
        "Fronts", "bits", "accuracy", {"a": [(1, 0.5), (100, 0.6)], "best": [(7, 0.55)]},
        marks={"a": "o-", "best": "*"}, named_levels={"float, 0.75": 0.75}, logarithmic="x",
        is_legend_above=True,
    )  # fmt: skip
    (panel,) = make_figure([[chart]]).axes
    assert [words.get_text() for words in panel.texts] == ["float, 0.75"]
    low, high = panel.get_ylim()
    assert low < 0.5
    assert high > 0.76  # room for the name
    (star,) = [line for line in panel.lines if line.get_marker() == "*"]
    assert list(star.get_xydata()[0]) == [7, 0.55]  # not beside its place
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "best"]
    page = line_chart(chart)
    assert ">float, 0.75<" in page
    assert page.count("stroke-dasharray") == 1
    assert page.count('r="6"') == 1
    assert page.count('r="3"') == 2
