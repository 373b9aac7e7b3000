"""The part of JSON Schema that our schema uses; an unknown keyword is an error, not a pass."""

import re
from typing import Any

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
REMARKS = {"$schema", "title", "description", "default", "definitions"}


def problems(schema: Any, value: Any, root: Any) -> list[str]:
    """Everything in `value` that does not fit."""
    if schema is True or schema is False:
        return [] if schema else [f"{value!r} is not expected"]
    found: list[str] = []
    for keyword, rule in schema.items():
        if keyword in REMARKS or keyword == "then":
            continue
        found += CHECKS[keyword](rule, value, schema, root)
    return found


def fits(schema: Any, value: Any, root: Any) -> bool:
    return not problems(schema, value, root)


def _type(rule: str, value: Any, schema: Any, root: Any) -> list[str]:
    is_truth = isinstance(value, bool) and rule != "boolean"  # Python counts True as a number
    right = isinstance(value, KINDS[rule]) and not is_truth
    return [] if right else [f"{value!r} is no {rule}"]


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _enum(rule: list[Any], value: Any, schema: Any, root: Any) -> list[str]:
    return [] if any(_same(value, each) for each in rule) else [f"{value!r} is not in {rule}"]


def _number(compare: Any) -> Any:
    def check(rule: float, value: Any, schema: Any, root: Any) -> list[str]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return [f"{value!r} against {rule}"] if is_number and not compare(value, rule) else []

    return check


def _properties(rule: dict[str, Any], value: Any, schema: Any, root: Any) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [f"{key}: {problem}" for key, inner in rule.items() if key in value
            for problem in problems(inner, value[key], root)]  # fmt: skip


def _additional(rule: Any, value: Any, schema: Any, root: Any) -> list[str]:
    if not isinstance(value, dict):
        return []
    others = value.keys() - schema.get("properties", {}).keys()
    return [f"{key}: {p}" for key in sorted(others) for p in problems(rule, value[key], root)]


def _patterns(rule: dict[str, Any], value: Any, schema: Any, root: Any) -> list[str]:
    matching = [
        (key, rule[pattern]) for pattern in rule for key in value if re.search(pattern, key)
    ]
    return [f"{key}: {p}" for key, inner in matching for p in problems(inner, value[key], root)]


def _required(rule: list[str], value: Any, schema: Any, root: Any) -> list[str]:
    missing = [key for key in rule if isinstance(value, dict) and key not in value]
    return [f"{key} is missing" for key in missing]


def _items(rule: Any, value: Any, schema: Any, root: Any) -> list[str]:
    items = value if isinstance(value, list) else []
    return [problem for item in items for problem in problems(rule, item, root)]


def _if(rule: Any, value: Any, schema: Any, root: Any) -> list[str]:
    return problems(schema["then"], value, root) if fits(rule, value, root) else []


def _ref(rule: str, value: Any, schema: Any, root: Any) -> list[str]:
    assert set(schema) == {"$ref"}  # draft 7 ignores what stands beside it
    return problems(root["definitions"][rule.removeprefix("#/definitions/")], value, root)


CHECKS: dict[str, Any] = {
    "type": _type,
    "enum": _enum,
    "const": lambda rule, value, schema, root: _enum([rule], value, schema, root),
    "minimum": _number(lambda value, rule: value >= rule),
    "maximum": _number(lambda value, rule: value <= rule),
    "exclusiveMinimum": _number(lambda value, rule: value > rule),
    "exclusiveMaximum": _number(lambda value, rule: value < rule),
    "properties": _properties,
    "patternProperties": _patterns,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "minItems": lambda rule, value, schema, root: (
        ["empty"] if isinstance(value, list) and len(value) < rule else []
    ),
    "maxItems": lambda rule, value, schema, root: (
        ["too many"] if isinstance(value, list) and len(value) > rule else []
    ),
    "minProperties": lambda rule, value, schema, root: ["empty"] if len(value) < rule else [],
    "pattern": lambda rule, value, schema, root: (
        [] if re.search(rule, value) else [f"{value!r} does not match"]
    ),
    "propertyNames": lambda rule, value, schema, root: [
        problem for key in value for problem in problems(rule, key, root)
    ],
    "anyOf": lambda rule, value, schema, root: (
        []
        if any(fits(each, value, root) for each in rule)
        else [f"{value!r} fits nothing of anyOf"]
    ),
    "allOf": lambda rule, value, schema, root: [
        problem for each in rule for problem in problems(each, value, root)
    ],
    "not": lambda rule, value, schema, root: (
        [f"{value!r} is excluded"] if fits(rule, value, root) else []
    ),
    "if": _if,
    "$ref": _ref,
}
