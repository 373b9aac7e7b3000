"""Rules of quantisation: which keys a number format has, for each operand."""

import contextlib
import itertools
from typing import Any

from pydantic import ValidationError

from chop.config.layers import NOTHING
from chop.config.schema import NONE, Schema
from chop.nn.quant_config import known_keys, required_fields
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.base import AUTO
from chop.ops.table import OPS
from chop.passes.graph.transforms.quantize.plan import QuantizeArgs, quantizable_operations
from chop.verbs.schema.tables import field_schema, one_or_several

CONFIG, RULE, DEFAULT_RULE = "quantize_config", "quantize_rule", "quantize_default"
SEED = "quantize_seed"
OPTIONS = "_options"
"""Added to the name of a shape: what a seed may choose from."""
EXAMPLES = (8, 4, 2)
"""Values among which the required fields of every format find theirs."""


def quantize_schema(table: Schema) -> Schema:
    """``[passes.quantize]``: a rule for each operation, node or pattern."""
    rules = dict.fromkeys(quantizable_operations(), reference(RULE))
    ignored = {
        key: shape for key, shape in table["properties"].items() if key in QuantizeArgs.ignored
    }
    by_type = {"properties": {"by": {"const": "type"}}}
    others = {key: table["properties"][key] for key in ("by", "calibrate", "outside_width")}
    known = [*others, "default", *sorted(OPS), *sorted(ignored)]
    return {
        "type": "object",
        "properties": {
            **others,
            **rules,
            "default": reference(DEFAULT_RULE),
            **ignored,
        },
        "additionalProperties": reference(RULE),
        "if": by_type,
        "then": {"propertyNames": {"enum": known}},
    }


def reference(name: str) -> Schema:
    """A part of the schema that stands elsewhere in it."""
    return {"$ref": f"#/definitions/{name}"}


def quantize_definitions() -> dict[str, Schema]:
    """A rule, which has a value for each key, and a seed, which lists values to choose from.

    Some hundred keys have a dozen shapes between them, which are stated once.
    """
    name: Schema = {
        "description": 'number format; "NA" leaves the operation in floating point',
        "enum": [*sorted(FORMATS), NOTHING],
    }
    shapes: dict[str, Schema] = {"name": name, "bypass": {"type": "boolean"}, **_shapes()}
    options = {
        f"{name}{OPTIONS}": one_or_several(_or_none(shape)) for name, shape in shapes.items()
    }
    rule, seed = _config(""), _config(OPTIONS)
    rule["allOf"] = [_keys_of(name) for name in sorted(FORMATS)]
    only: Schema = {
        "description": "the operations that the rule is for; without it, all others",
        "type": "array",
        "items": {"enum": quantizable_operations()},
    }
    return {
        CONFIG: rule,
        RULE: _block(reference(CONFIG)),
        DEFAULT_RULE: _block(reference(CONFIG), only=_or_none(only)),
        SEED: _block(seed),
        **shapes,
        **options,
    }


def _block(config: Schema, **more: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"config": config, **more},
        "required": ["config"],
        "additionalProperties": False,
    }


def _config(ending: str) -> Schema:
    """The flat configuration of an operation with the keys of all formats."""
    keys = {"name": "name", "bypass": "bypass"}
    for fmt in FORMATS.values():
        keys |= {key: field for key, (_, field) in known_keys(fmt, len(OPS)).items()}
    return {
        "type": "object",
        "properties": {key: reference(keys[key] + ending) for key in sorted(keys)},
        "required": ["name"],
        "additionalProperties": False,
    }


def _shapes() -> dict[str, Schema]:
    """Return what each field may hold in any format."""
    found: dict[str, list[Schema]] = {}
    for fmt in dict.fromkeys(FORMATS[name] for name in sorted(FORMATS)):
        for field, shape in format_fields(fmt).items():
            choices = found.setdefault(field, [])
            choices += [] if shape in choices else [shape]
    return {
        field: choices[0] if len(choices) == 1 else {"anyOf": choices}
        for field, choices in sorted(found.items())
    }


def _or_none(shape: Schema) -> Schema:
    return {"anyOf": [shape, NONE]}


def _keys_of(name: str) -> Schema:
    """With one format only its own keys make sense, within its own bounds."""
    fmt = FORMATS[name]
    roles = "|".join(sorted({role for role, _ in known_keys(fmt, len(OPS)).values()}))
    fields = {f"^({roles})_{field}$": shape for field, shape in format_fields(fmt).items()}
    return {
        "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
        "then": {
            "propertyNames": {"pattern": "|".join(["^(name|bypass)$", *fields])},
            "patternProperties": fields,
        },
    }


def format_fields(fmt: type[NumberFormat]) -> dict[str, Schema]:
    """The fields of a format: what their types say and what else the format turns into that."""
    found = {}
    for name, field in fmt.model_fields.items():
        shape = field_schema(field) or {}
        shape.pop("default", None)
        stated = shape.get("anyOf", [shape])
        if NONE not in stated and _accepts(fmt, name, None):
            stated = [*stated, NONE]
        if fmt.scale_field == name:
            stated = [*stated, {"const": AUTO}]
        if shape.get("type") == "integer" and _accepts(fmt, name, [2]):
            stated = [*stated, {"type": "array", "items": shape, "minItems": 1}]
        if shape.get("type") == "array" and _accepts(fmt, name, 2):
            stated = [*stated, shape["items"]]
        found[name] = stated[0] if len(stated) == 1 else {"anyOf": stated}
    return found


def _accepts(fmt: type[NumberFormat], name: str, value: Any) -> bool:
    needed = required_fields(fmt)
    for values in itertools.product(EXAMPLES, repeat=len(needed)):
        with contextlib.suppress(ValidationError):
            fmt.model_validate({**dict(zip(needed, values, strict=True)), name: value})
            return True
    return False
