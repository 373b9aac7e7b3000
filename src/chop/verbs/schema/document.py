"""The JSON Schema of a configuration file, read off the settings and the registries.

``make generate`` writes the copy that ``ch schema`` prints.
"""

import json

from chop.catalogue import live
from chop.config.schema import Schema, settings_schema
from chop.passes import PASSES, Pass, PassArgs
from chop.training.settings import TrainTable
from chop.verbs.schema.quantize import quantize_definitions, quantize_schema
from chop.verbs.schema.search import search_definitions, search_schema
from chop.verbs.schema.tables import GIVEN_BY_THE_RUN, described_table, table_schema

__all__ = ["schema", "schema_text"]


def schema() -> Schema:
    """The schema of a whole file, with what a user's files have registered."""
    known = {topic: list(entries) for topic, entries in live().items()}
    settings = settings_schema(known)
    passes = {name: pass_schema(PASSES[name]) for name in sorted(PASSES)}
    settings["passes"] |= {
        "type": "object", "properties": passes, "additionalProperties": False,
    }  # fmt: skip
    settings["search"] |= search_schema()
    settings["train"] |= table_schema(TrainTable)
    return {
        # Taplo, on which the common TOML extensions of editors stand, reads drafts up to this one.
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Machop configuration",
        "description": 'Settings of ch train, test, transform and search. "NA" means none.',
        "type": "object",
        "properties": settings,
        "additionalProperties": False,
        "definitions": quantize_definitions() | search_definitions(),
    }


def schema_text() -> str:
    """The schema as text."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def pass_schema(entry: Pass) -> Schema:
    """The table of one pass."""
    table = described_table(entry, entry.schema)
    if entry.schema is not None:
        table["properties"] = without_effect(entry.schema) | table["properties"]
    return table | quantize_schema(table) if entry.name == "quantize" else table


def without_effect(schema: type[PassArgs]) -> dict[str, Schema]:
    """Keys that a file may have and that do nothing here."""
    return {
        key: {"description": f"no effect here: {reason}"}
        for key, reason in schema.ignored.items()
        if key not in GIVEN_BY_THE_RUN
    }
