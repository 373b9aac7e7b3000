"""What each layer loses by itself, on the page."""

from pathlib import Path
from typing import Any

import pytest
from report_pages import HOSTILE, page_of, put

from chop.results.sensitivity import Sensitivity
from chop.verbs.report import report


def layer(name: str, width: int, lost: float, **changes: Any) -> dict[str, Any]:
    return {
        "layer": name, "operation": "linear", "parameters": 10, "width": width,
        "accuracy": 0.75 - lost, "lost": lost, "low": lost - 0.01, "high": lost + 0.01,
        "bits_saved": 280, "share_saved": 0.25,
    } | changes  # fmt: skip


def sensitivity(*layers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    start = {"accuracy": 0.75, "rows": 1000, "low": 0.72, "high": 0.78}
    return {"start": start, "tolerated": 0.005, "enough": {}, "layers": list(layers)} | changes


FOUND = sensitivity(
    layer("fc1", 2, 0.2), layer("fc1", 4, 0.001), layer("fc2", 2, 0.3), layer("fc2", 4, 0.02)
)


def test_a_row_for_each_layer_and_what_is_enough(tmp_path: Path) -> None:
    put(tmp_path / "p/software/sensitivity/layers.json", FOUND)
    newer = sensitivity(layer("head", 8, 0.0))
    put(tmp_path / "p/software/sensitivity-v1/layers.json", newer)
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["sensitivity"]
    words = " ".join(page.texts["sensitivity"].split())
    assert "head 0.0 ±1.0 8 25.0%" in words
    assert "Measured earlier and not shown: sensitivity." in words
    (tmp_path / "p/software/sensitivity-v1/layers.json").unlink()
    text = report(tmp_path / "p").read_text(encoding="utf-8")
    words = " ".join(page_of(tmp_path / "p/report.html").texts["sensitivity"].split())
    assert "Points of accuracy lost (of 75.0)" in words
    assert "fc1 20.0 ±1.0 0.1 ±1.0 4 25.0%" in words
    assert "fc2 30.0 ±1.0 2.0 ±1.0 none -" in words
    assert "1 of 2 layers" in text[text.index("<header>") : text.index("</header>")]


def test_what_is_saved_is_read_by_the_same_class(tmp_path: Path) -> None:
    found = Sensitivity.model_validate(FOUND)
    (tmp_path / "layers").mkdir()
    assert found.save(tmp_path / "layers").folder == tmp_path / "layers"
    again = Sensitivity.load(tmp_path / "layers")
    assert again == found
    assert again.rows() == found.rows()
    assert (again.enough("fc1"), again.enough("fc2")) == (4, None)


def test_a_layer_may_be_called_anything(tmp_path: Path) -> None:
    put(tmp_path / "p/software/sensitivity/layers.json", sensitivity(layer(HOSTILE, 2, 0.2)))
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["sensitivity"]
    assert page.count("img") == 0


@pytest.mark.parametrize(
    "content",
    ["[]", "{", sensitivity(), sensitivity(layer("a", 2, 0.1), layer("a", 2, 0.1)),
     sensitivity(layer("a", 2, 0.1), layer("b", 4, 0.1)), sensitivity(layer("a", 10**400, 0.1)),
     sensitivity(layer("a", 2, 1e80)), sensitivity(layer("a", 2, 0.1), start={"rows": 3})],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, content: Any) -> None:
    put(tmp_path / "p/software/sensitivity/layers.json", content)
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["problems"]
    assert "layers.json" in page.texts["problems"]
