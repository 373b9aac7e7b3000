"""The page of operations is the table."""

from pathlib import Path

from chop.ops.listing import markdown, write_listing
from chop.ops.table import OPS

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown()
    write_listing(str(tmp_path / "page.md"))
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == markdown()


def test_the_page_names_every_operation_once() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(OPS)
