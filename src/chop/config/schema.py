"""The JSON Schema of configuration files, for editors, and what it says of each key in words.

``chop.schema.json`` lies in the package, so that ``ch schema`` prints it without importing torch;
``make generate`` writes it, and a test fails when it is out of date. Here is what follows from the
settings alone; `chop.verbs.schema.document` adds passes and searches.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from chop.config.layers import NOTHING
from chop.config.option import Setting
from chop.config.verb import settings

FILE = Path(__file__).with_name("chop.schema.json")
NONE = {"const": NOTHING, "description": "none"}
NOT_NONE = {"not": {"const": NOTHING}}
"""Where a text is needed."""
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
LIMITS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum"}

Schema = dict[str, Any]

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


def read_schema() -> str:
    """The schema that comes with the package, as text."""
    return FILE.read_text(encoding="utf-8")


def settings_schema(known: dict[str, list[str]]) -> dict[str, Schema]:
    """The schema of each setting.

    Args:
        known: names that are suggested for a value, by topic of ``ch info``.
    """
    return {name: setting_schema(setting, known) for name, setting in settings().items()}


def setting_schema(setting: Setting, known: dict[str, list[str]]) -> Schema:
    """Return what a file may say of one setting."""
    option = setting.option
    said: Schema = {"description": option.help}
    if setting.default_text and not option.default_words:
        said["default"] = setting.default
    values: list[Schema] = [{"enum": known[option.names]}] if option.names in known else []
    values.append(_value_schema(setting))
    values += [NONE] if setting.optional else []
    return said | (values[0] if len(values) == 1 else {"anyOf": values})


def _value_schema(setting: Setting) -> Schema:
    if setting.choices:
        return {"enum": [*setting.choices, *setting.option.spellings]}
    kind = next(each for each in setting.type_members if each is not type(None))
    if get_origin(kind) is list:
        return {"type": "array", "items": {"type": TYPES[get_args(kind)[0]]}}
    if get_origin(kind) is dict:
        return {"type": "object"}
    bounds = {LIMITS[name]: bound for name, bound in setting.option.bounds.items()}
    refused = {} if setting.optional or kind is not str else NOT_NONE
    return {"type": TYPES[kind], **bounds, **refused}


def stored_schema() -> Schema:
    """The schema that comes with the package."""
    schema: Schema = json.loads(read_schema())
    return schema


def key_rows(table: Schema) -> Iterator[Row]:
    """The keys of a table that hold values; tables within it are no rows."""
    required = table.get("required", ())
    for key, schema in table.get("properties", {}).items():
        if schema.get("type") == "object" or "$ref" in schema:
            continue
        default = "required" if key in required else default_of(schema)
        yield key, values_of(schema), default, schema.get("description", "")


def nested_key_rows(table: Schema, within: str = "") -> Iterator[Row]:
    """The keys of a table and, with dots, of the tables within it."""
    for key, values, default, meaning in key_rows(table):
        yield within + key, values, default, meaning
    for key, schema in table.get("properties", {}).items():
        yield from nested_key_rows(table_in(schema), f"{within}{key}.")


def table_in(schema: Schema) -> Schema:
    """The table that a key holds, if it may hold one; else a table without keys."""
    found = [each for each in schema.get("anyOf", [schema]) if each.get("type") == "object"]
    return found[0] if found else {}


def default_of(schema: Schema) -> str:
    """The default as it would stand in a file; empty where there is none."""
    return json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else ""


def values_of(schema: Schema) -> str:
    """Return what a key may hold, in words."""
    if "const" in schema:
        return json.dumps(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(values_of(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"])
    return _type_words(schema)


def _type_words(schema: Schema) -> str:
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
