"""The JSON Schema of a configuration file, read off the settings and the registries.

``make generate`` writes the copy that ``ch schema`` prints.
"""

import json

from chop.actions.schema.passes import passes_schema
from chop.actions.schema.quantize import quantize_definitions
from chop.actions.schema.search import search_definitions, search_schema
from chop.catalogue import live
from chop.config.schema import Schema, settings_schema

__all__ = ["schema", "schema_text"]


def schema() -> Schema:
    """The schema of a whole file, with what a user's files have registered."""
    known = {topic: list(entries) for topic, entries in live().items()}
    settings = settings_schema(known)
    settings["passes"] |= passes_schema()
    settings["search"] |= search_schema()
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
