"""``[passes.<name>]``: the arguments of each pass."""

from chop.actions.schema.quantize import quantize_schema
from chop.actions.schema.tables import GIVEN_BY_THE_RUN, described
from chop.config.schema import Schema
from chop.passes import PASSES, Pass, PassArgs


def passes_schema() -> Schema:
    """The tables of all passes; a pass that is not known is a mistake."""
    properties = {name: pass_schema(PASSES[name]) for name in sorted(PASSES)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def pass_schema(entry: Pass) -> Schema:
    """The table of one pass."""
    table = described(entry, entry.schema)
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
