"""Everything that is generated is what the code says, and one command writes all of it."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nothing_generated_is_out_of_date() -> None:
    generated = runpy.run_path(str(ROOT / "scripts" / "generate.py"))["generated"]()
    assert len(generated) == 6
    stale = [path for path, text in generated.items() if path.read_text("utf-8") != text]
    assert stale == [], "run: make generate"


def test_a_page_that_says_it_is_generated_is_among_them() -> None:
    generated = runpy.run_path(str(ROOT / "scripts" / "generate.py"))["generated"]()
    pages = [page for page in (ROOT / "docs").rglob("*.md") if says_so(page)]
    assert len(pages) == 4
    assert set(pages) <= {path.resolve() for path in generated}


def says_so(page: Path) -> bool:
    return "This page is generated" in page.read_text("utf-8")
