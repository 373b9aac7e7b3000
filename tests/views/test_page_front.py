"""The answer of a search: the front beside the float network, what was verified, the circuits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from report_pages import logged, page_of, put
from torch import nn

from chop import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    save_mase_graph_interface_pass,
)
from chop.verbs.report import report
from chop.views.page import distinct
from chop.views.section import Tile


def measured(accuracy: float) -> dict[str, float]:
    return {"accuracy": accuracy, "rows": 400, "low": accuracy - 0.04, "high": accuracy + 0.04}


def manifest(source: str, rows: int) -> dict[str, Any]:
    circuit = {"latency_cycles": 3, "estimated_luts": 1234}
    return {"form": "verilog", "source": source, "verified": {"rows": rows}, "circuit": circuit}


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """Two networks on a front, from 10 to 1,000 EBOPs, and a third that is worse."""
    folder = tmp_path / "p/software/search_ckpts"
    points = [(0.75, 1000.0), (0.5, 10.0), (0.5, 500.0)]
    put(
        folder / "log.json",
        {
            str(n): logged(
                n, accuracy, 1, values_1=ebops, user_attrs_hardware_metrics={"ebops": ebops},
                user_attrs_software_metrics={"loss": 0.1, "accuracy": accuracy},
                user_attrs_sampled_config={"cycle": 0, "epoch": n},
            )
            for n, (accuracy, ebops) in enumerate(points)
        },
    )  # fmt: skip
    marks = [{"equal": True, "rows": 50, "promised": True}, {"reason": "no integers for gelu"}]
    best = {
        str(n): {
            "number": n,
            "verified": marks[n],
            "accuracies": {"chosen_by": measured(points[n][0]), "test": measured(0.625)},
            "sampled_config": {"epoch": n},
        }
        for n in (0, 1)
    }
    put(folder / "best.json", best)
    better = {"accuracy": {"direction": "maximize"}, "ebops": {"direction": "minimize"}}
    start = {"chosen_by": measured(0.875), "test": measured(0.8125)}
    directions = ["maximize", "minimize"]
    put(
        folder / "search.json",
        {"sampler": "learned widths", "directions": directions, "metrics": better, "start": start},
    )
    return folder


def words_of(folder: Path, section: str) -> str:
    return " ".join(page_of(report(folder.parents[1])).texts[section].split())


def test_the_front_says_accuracy_cost_and_what_was_verified(search: Path) -> None:
    text = report(search.parents[1]).read_text(encoding="utf-8")
    assert "1 of 2" in text
    assert "of the front, bit for bit, on 50 rows each; of 3 configurations tried" in text
    words = words_of(search, "search-0")
    assert "float network 0.8750 ±0.0400 0.8125 ±0.0400" in words
    assert "0.7500 ±0.0400 1,000 0.1 0.6250 ±0.0400 50 rows 0" in words
    assert "0.5000 ±0.0400 10 0.1 0.6250 ±0.0400 no 1" in words
    assert "Not verified: 1 trial: no integers for gelu." in words


def test_columns_in_which_nothing_stands_are_left_out(search: Path) -> None:
    words = words_of(search, "search-0")
    assert "Verified in RTL" not in words
    assert "LUTs" not in words
    assert "Network accuracy" in words


@pytest.mark.parametrize("source", ["graphs/epoch_1", "best_1.toml"])
def test_a_circuit_stands_at_its_network(search: Path, source: str) -> None:
    put(search / "export_verilog_x/manifest.json", manifest(str(search / source), 70))
    words = words_of(search, "search-0")
    assert "Verified in RTL Latency, cycles LUTs of xcup, estimate Trial" in words
    assert "±0.0400 no 70 rows 3 1,234 1" in words
    assert "Clock" not in words  # nobody has synthesised it


def test_circuits_have_a_section_and_a_tile_that_names_the_network(search: Path) -> None:
    put(search / "export_verilog_epoch_1/manifest.json", manifest("graphs/epoch_1", 70))
    put(search / "export_verilog_best_0/manifest.json", manifest("best_0.toml", 0))
    page = page_of(report(search.parents[1]))
    words = page.texts["hardware"]
    assert "LUTs are estimated, as Yosys counts them for UltraScale+ (xcup), without" in words
    assert "not checked" in words
    text = (search.parents[1] / "report.html").read_text(encoding="utf-8")
    head = text[text.index("<header>") : text.index("</header>")]
    assert "Circuit of epoch_1" in head
    assert "estimated; 3 cycles; RTL equal on 70 rows" in head
    assert "estimated; 3 cycles; RTL not checked" in head


def test_a_folded_circuit_is_shown_by_its_cycles_an_image(search: Path) -> None:
    found = manifest("graphs/epoch_1", 50)
    found["circuit"] = {
        "cycles_per_image": 1728,
        "estimated_luts": 6423,
        "estimated_block_rams": 1.5,
    }
    put(search / "export_verilog_epoch_1/manifest.json", found)
    page = page_of(report(search.parents[1]))
    assert "Cycles an image LUTs of xcup, estimate RAMB36, estimate" in page.texts["hardware"]
    text = (search.parents[1] / "report.html").read_text(encoding="utf-8")
    assert "estimated; 1,728 cycles an image; RTL equal on 50 rows" in text


def test_the_float_network_is_a_line_on_the_plot(search: Path) -> None:
    data = page_of(report(search.parents[1])).json["search-0-data"]
    assert data["baseline"] == {"name": "float network", "metrics": {"accuracy": 0.875}}


def test_the_first_network_of_a_learned_front_is_drawn(search: Path) -> None:
    graph, _ = init_metadata_analysis_pass(MaseGraph(nn.Sequential(nn.Linear(2, 3))))
    rows = {"dummy_in": {"input": torch.zeros(1, 2)}}
    graph, _ = add_common_metadata_analysis_pass(graph, rows)
    for epoch in (0, 1):
        save_mase_graph_interface_pass(graph, search / f"graphs/epoch_{epoch}")
    assert "graphs/epoch_0: 3 nodes" in words_of(search, "graph")


def test_tiles_of_several_searches_say_which_but_for_what_they_share() -> None:
    start = Tile("Float network", "0.73", "before the search")
    one, other = Tile("Best", "0.72", "", "tpe"), Tile("Best", "0.71", "", "random")
    starts = [replace(start, search=name) for name in ("tpe", "random")]
    found = distinct([one, starts[0], other, starts[1]])
    assert [tile.title for tile in found] == ["Best, tpe", "Float network", "Best, random"]
    changed = replace(starts[1], value="0.74")
    titles = [tile.title for tile in distinct([starts[0], changed])]
    assert titles == ["Float network, tpe", "Float network, random"]
