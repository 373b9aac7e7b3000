"""Samplers compared on the page."""

from pathlib import Path
from typing import Any

import pytest
from report_pages import page_of, put

from chop.verbs.report import report


def sampler(median: int | None, most: int | None, runs: int = 2) -> dict[str, Any]:
    level = {"median": median, "least": 3 if runs else None, "most": most, "runs": runs}
    curve = [0.2, 0.5, 0.9]
    return {"reached": {"0.9": level}, "runs": [{}] * 2, "median": curve, "low": curve,
            "high": curve}  # fmt: skip


def comparison(**samplers: dict[str, Any]) -> dict[str, Any]:
    return {"space_size": 588, "normalised_by": "the true front", "samplers": samplers}


def test_a_comparison_is_a_table_and_curves_with_bands(tmp_path: Path) -> None:
    folder = tmp_path / "p/software/comparison"
    found = comparison(tpe=sampler(4, 7), random=sampler(5, None), grid=sampler(None, None, 0))
    put(folder / "comparison.json", found)
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["comparison"]
    words = " ".join(page.texts["comparison"].split())
    assert "hypervolume of the true front" in words
    assert "evaluations to 90 %" in words
    assert "tpe 2 4 (3 to 7) random 2 5 (3 to never) grid 2 never" in words
    assert sum(str(attrs.get("class")).startswith("band ") for _, attrs in page.tags) == 3


@pytest.mark.parametrize(
    "content",
    ["[]", "{", comparison(), comparison(tpe=sampler(4, 7) | {"median": []}),
     comparison(tpe=sampler(4, 7) | {"low": [1e80]}), comparison(tpe=sampler(4, 10**400))],
)  # fmt: skip
def test_a_damaged_comparison_is_named(tmp_path: Path, content: Any) -> None:
    put(tmp_path / "p/software/comparison/comparison.json", content)
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["problems"]
    assert "comparison.json" in page.texts["problems"]
