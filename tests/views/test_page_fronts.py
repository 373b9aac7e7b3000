"""Several searches on one picture: what each is called, where they began, what was exported."""

from pathlib import Path
from typing import Any

import pytest
from report_pages import logged, page_of, put

from chop.errors import ConfigError
from chop.verbs.compare import compare_fronts, fronts_table
from chop.verbs.report import report

OBJECTIVES = {"accuracy": {"direction": "maximize"}, "average_bitwidth": {"direction": "minimize"}}


def start(accuracy: float, **changes: Any) -> dict[str, Any]:
    measured = {"accuracy": accuracy, "rows": 100, "low": accuracy - 0.1, "high": accuracy + 0.1}
    return {"chosen_by": measured, "test": None, "is_float": True} | changes


def a_search(folder: Path, sampler: str, begin: dict[str, Any] | None = None) -> Path:
    """A search with a front of two and one trial that both beat."""
    rows = [logged(0, 0.7, 8), logged(1, 0.6, 2), logged(2, 0.5, 8)]
    for epoch, row in enumerate(rows):
        if sampler == "learned widths":
            row["user_attrs_sampled_config"] = {"epoch": epoch}
    put(folder / "log.json", {str(n): row for n, row in enumerate(rows)})
    put(folder / "best.json", {"0": {"number": 0}, "1": {"number": 1}})
    facts = {"sampler": sampler, "metrics": OBJECTIVES, "directions": ["maximize", "minimize"]}
    put(folder / "search.json", facts | {"start": begin})
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a sampler's front and a learned one."""
    software = tmp_path / "p/software"
    a_search(software / "search_ckpts", "tpe", start(0.75))
    a_search(software / "search_ckpts-v1", "learned widths", start(0.75))
    return tmp_path / "p"


def test_searches_are_called_by_their_samplers_if_those_differ(project: Path) -> None:
    _, fronts = compare_fronts([project])
    assert set(fronts.trials) == {"tpe", "learned widths"}
    assert "| tpe " in fronts_table(fronts)
    a_search(project / "software/search_ckpts-v2", "tpe")
    _, fronts = compare_fronts([project])
    assert set(fronts.trials) == {
        "tpe (search_ckpts)", "tpe (search_ckpts-v2)", "learned widths",
    }  # fmt: skip


def test_the_network_at_the_start_is_a_line_with_its_name(project: Path) -> None:
    picture, fronts = compare_fronts([project])
    assert picture == project / "fronts.png"
    assert fronts.chart().named_levels == {"float network, 0.7500": 0.75}
    page = page_of(report(project))
    assert "float network, 0.7500" in page.texts["fronts"]
    dashed = [attrs for name, attrs in page.tags if name == "line" and "stroke-dasharray" in attrs]
    assert len(dashed) == 1


def test_networks_at_the_start_that_differ_are_told_apart(project: Path) -> None:
    a_search(project / "software/search_ckpts", "tpe", start(0.625, is_float=False))
    _, fronts = compare_fronts([project])
    assert fronts.baselines == {
        "float network of learned widths, 0.7500": 0.75,
        "network at the start of tpe, 0.6250": 0.625,
    }


def test_a_search_that_does_not_know_its_start_has_no_line(project: Path) -> None:
    for name in ("search_ckpts", "search_ckpts-v1"):
        a_search(project / "software" / name, name)
    assert compare_fronts([project])[1].baselines == {}


@pytest.mark.parametrize(
    ("folder", "source", "point"),
    [
        ("search_ckpts", "best_1.toml", (2.0, 0.6)),
        ("search_ckpts-v1", "graphs/epoch_0", (8.0, 0.7)),
    ],
)
def test_what_was_exported_is_a_star(
    project: Path, folder: str, source: str, point: tuple[float, float]
) -> None:
    search = project / "software" / folder
    for form in ("verilog", "c"):
        manifest = {"form": form, "source": f"/elsewhere/{source}", "verified": {"rows": 10}}
        put(search / f"export_{form}_x/manifest.json", manifest)
    manifest = {"form": "onnx", "source": "/elsewhere/of_no_front", "verified": {"rows": 10}}
    put(search / "export_onnx/manifest.json", manifest)
    chart = compare_fronts([project])[1].chart()
    assert chart.series["exported: c, verilog"] == [point]
    assert chart.marks["exported: c, verilog"] == "*"
    assert [name for name in chart.series if name.startswith("exported")] == [
        "exported: c, verilog"
    ]
    page = page_of(report(project))
    assert "exported: c, verilog" in page.texts["fronts"]


def test_the_title_names_network_and_data_if_all_searches_had_the_same(project: Path) -> None:
    def searched(folder: str, data: str) -> None:
        settings = [{"name": "model", "effective": "net"}, {"name": "dataset", "effective": data}]
        record = {"action": "search", "settings": settings}
        put(project / "software" / folder / "run_search.json", record)

    assert compare_fronts([project])[1].subject == ""
    searched("search_ckpts", "jets")
    searched("search_ckpts-v1", "jets")
    assert compare_fronts([project])[1].chart().title == "Fronts of the searches: net on jets"
    searched("search_ckpts-v1", "others")
    assert compare_fronts([project])[1].chart().title == "Fronts of the searches"


def test_searches_with_nothing_in_common_are_not_compared(project: Path) -> None:
    folder = project / "software/search_ckpts"
    facts = {"sampler": "tpe", "metrics": {"accuracy": {"direction": "maximize"}}}
    put(folder / "search.json", facts | {"directions": ["maximize"]})
    with pytest.raises(ConfigError, match="no two searches there have the same two objectives"):
        compare_fronts([project])
