"""``[passes.<name>]``: the arguments of each pass."""

from chop.actions.schema.quantize import quantize_schema
from chop.actions.schema.tables import described
from chop.config.schema import Schema
from chop.passes import PASSES, Pass


def passes_schema() -> Schema:
    """The tables of all passes; a pass that is not known is a mistake."""
    properties = {name: pass_schema(PASSES[name]) for name in sorted(PASSES)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def pass_schema(entry: Pass) -> Schema:
    """The table of one pass."""
    table = described(entry, entry.schema)
    return table | quantize_schema(table) if entry.name == "quantize" else table
