"""Everything that is generated is what the code says, and one command writes all of it."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from warm import python

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "generate.py"


def test_nothing_generated_is_out_of_date() -> None:
    # In a process of its own: other tests add to the registries of this one.
    done = python(SCRIPT, "--check")
    assert (done.returncode, done.stdout) == (0, ""), "run: make generate"


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_what_is_out_of_date_is_named_and_written(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    main = script["main"]
    main.__globals__["generated"] = lambda: {page: "as the code says"}
    assert main(check=True) == 1
    assert not page.exists()
    assert main(check=False) == 0
    assert page.read_text() == "as the code says"
    assert main(check=True) == 0
    assert capsys.readouterr().out == f"out of date: {page}\nwritten: {page}\n"


def test_a_page_that_says_it_is_generated_is_among_them(script: dict[str, Any]) -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if says_so(page)]
    assert len(pages) == 4
    assert set(pages) <= {path.resolve() for path in script["generated"]()}


def says_so(page: Path) -> bool:
    return "This page is generated" in page.read_text("utf-8")
