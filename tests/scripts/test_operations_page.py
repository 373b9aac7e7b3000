"""The page of operations is the table."""

from pathlib import Path

from chop.ops.table import OPS
from scripts.operations_page import operations_page

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == operations_page()


def test_the_page_names_every_operation_once() -> None:
    rows = [line for line in operations_page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(OPS)
