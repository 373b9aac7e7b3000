"""The reference pages are what the code says, and leave nothing out."""

import re
from pathlib import Path

import pytest

from chop.catalogue import read_catalogue
from chop.config.command_line import build_parser
from chop.config.schema import stored_schema, values_of
from chop.config.verb import settings, verbs
from scripts.settings_pages import cli_page, toml_page

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    assert (PAGES / "cli.md").read_text() == cli_page(), "run: make generate"


def test_the_page_of_the_file_is_up_to_date() -> None:
    assert (PAGES / "toml.md").read_text() == toml_page(stored_schema()), "run: make generate"


def test_every_flag_of_the_parser_and_every_command_is_on_the_page() -> None:
    page = cli_page()
    flags = [flag for action in build_parser()._actions for flag in action.option_strings]
    assert len(flags) > 40
    assert [flag for flag in flags if f"`{flag}" not in page and f", {flag}" not in page] == []
    assert [name for name in verbs() if f"### `ch {name}" not in page] == []


def keys_of(schema: object) -> set[str]:
    """Every key that a schema names, however deep."""
    if isinstance(schema, list):
        return {key for each in schema for key in keys_of(each)}
    if not isinstance(schema, dict):
        return set()
    own = set(schema.get("properties", {}))
    return own | {key for each in schema.values() for key in keys_of(each)}


def test_every_key_of_the_schema_is_on_the_page() -> None:
    schema, page = stored_schema(), toml_page(stored_schema())
    tables = schema["properties"]
    rules = {"quantize": tables["passes"]["properties"].pop("quantize")}
    keys = keys_of(tables) | set(tables)
    assert len(keys) > 100
    missing = [key for key in keys if f"`{key}`" not in page and f".{key}" not in page]
    assert [key for key in missing if f"[{key}" not in page] == []
    assert set(settings()) <= keys
    assert rules["quantize"]["properties"]["by"]["description"] in page


def test_every_key_of_a_rule_is_an_operand_and_a_field_of_the_page() -> None:
    page = toml_page(stored_schema()).partition("## `config` of a quantisation rule")[2]
    named = set(re.findall(r"`(\w+)`", page))
    rule = stored_schema()["definitions"]["quantize_config"]["properties"]
    stated = {f"{operand}_{field}" for operand in named for field in named}
    assert set(rule) - stated == {"name", "bypass"}
    assert set(read_catalogue()["formats"]) <= named


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, "integer > 0"),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, "integer ≥ 0 and < 9"),
        ({"anyOf": [{"type": "string"}, {"const": "NA"}]}, 'text or "NA"'),
        ({"enum": ["a", 1]}, '"a", 1'),
        ({"type": "array", "items": {"type": "number"}}, "list of: number"),
        ({}, "anything"),
    ],
)  # fmt: skip
def test_schemas_in_words(schema: dict[str, object], words: str) -> None:
    assert values_of(schema) == words
