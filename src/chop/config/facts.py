"""What a schema says of each key, in words: for the reference pages and ``ch info``."""

import json
from collections.abc import Iterator
from typing import Any

from chop.config.schema import Schema, stored

WORDS = {
    "boolean": "true or false",
    "integer": "integer",
    "number": "number",
    "string": "text",
    "array": "list",
    "object": "table",
}
MARKS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
Row = tuple[str, str, str, str]
"""Key, values, default and meaning."""


def stored_schema() -> Schema:
    """The schema that comes with the package."""
    schema: Schema = json.loads(stored())
    return schema


def key_rows(table: Schema) -> Iterator[Row]:
    """The keys of a table that hold values; tables within it are no rows."""
    required = table.get("required", ())
    for key, schema in table.get("properties", {}).items():
        if schema.get("type") == "object" or "$ref" in schema:
            continue
        default = "required" if key in required else default_of(schema)
        yield key, values_of(schema), default, schema.get("description", "")


def all_rows(table: Schema, within: str = "") -> Iterator[Row]:
    """The keys of a table and, with dots, of the tables within it."""
    for key, values, default, meaning in key_rows(table):
        yield within + key, values, default, meaning
    for key, schema in table.get("properties", {}).items():
        yield from all_rows(table_in(schema), f"{within}{key}.")


def table_in(schema: Schema) -> Schema:
    """The table that a key holds, if it may hold one; else a table without keys."""
    found = [each for each in schema.get("anyOf", [schema]) if each.get("type") == "object"]
    return found[0] if found else {}


def default_of(schema: Schema) -> str:
    """The default as it would stand in a file; empty where there is none."""
    return json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else ""


def values_of(schema: Schema) -> str:
    """What a key may hold, in words."""
    if "const" in schema:
        return json.dumps(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(values_of(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"])
    return _typed(schema)


def _typed(schema: Schema) -> str:
    kind = schema.get("type", "")
    words = WORDS.get(kind, "anything")
    if kind == "array" and schema.get("items"):
        words = f"list of: {values_of(schema['items'])}"
    bounds = [f"{mark} {_number(schema[name])}" for name, mark in MARKS.items() if name in schema]
    return " ".join([words, " and ".join(bounds)]).strip()


def _number(value: Any) -> str:
    return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}"


def pass_table(name: str) -> Schema:
    """The table of a pass that comes with the package."""
    table: Schema = stored_schema()["properties"]["passes"]["properties"][name]
    return table
