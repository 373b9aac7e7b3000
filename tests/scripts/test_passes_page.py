"""The page of passes is what the registry says."""

from pathlib import Path

import chop.passes.graph
from chop.verbs.schema.tables import argument_texts
from scripts.passes_page import passes_page

PAGE = Path(__file__).parents[2] / "docs" / "passes.md"


def test_the_page_is_up_to_date() -> None:
    assert chop.passes.graph.PASSES
    same = PAGE.read_text(encoding="utf-8") == passes_page()
    assert same, "run: make generate"


def test_argument_texts_span_lines() -> None:
    text = "What.\n\nArgs:\n    one: the first\n        of two.\n    two: the other."
    assert argument_texts(text) == {"one": "the first of two.", "two": "the other."}
