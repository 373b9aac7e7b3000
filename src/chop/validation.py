"""Dictionaries to typed values, with one clear line for the first thing that does not fit."""

import dataclasses
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from chop.errors import ConfigError, suggestion
from chop.masking import masked_values

T = TypeVar("T")
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's names for it


def parse(schema: type[T], data: Mapping[str, object], where: str) -> T:
    """`data` as a `schema` (a pydantic model or a dataclass); `data` itself is not changed.

    Args:
        where: what the dictionary is, for the error message: ``pass 'prune'``, ``run.toml``.
    """
    try:
        parsed: T = adapter(schema).validate_python(dict(data))  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_problem(error, schema)}") from None
    return parsed


@cache
def adapter(schema: Any) -> TypeAdapter[Any]:
    """The validator of a schema, built once: building costs far more than using."""
    return TypeAdapter(schema)


def first_problem(error: ValidationError, schema: type) -> str:
    """One line for the first problem: the key, what is wrong with it, what would be right."""
    problems = error.errors(include_url=False)
    # A misspelt key is also a missing one; the misspelling is what the user can see.
    problem = next((found for found in problems if found["type"] in UNKNOWN_KEY), problems[0])
    path = problem["loc"]
    if problem["type"] in UNKNOWN_KEY:
        inside = f"{toml_path(path[:-1])}: " if path[:-1] else ""
        known = field_names(schema, path[:-1])
        return f"{inside}unknown key {path[-1]!r}: {suggestion(str(path[-1]), known)}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    for bound in problem.get("ctx", {}).values():
        if isinstance(bound, float):  # pydantic writes out all digits
            message = message.replace(f" {Decimal(str(bound)):f}", f" {bound:g}")
    if not path:
        return message
    given = problem["input"]
    # Masked before it is cut: half a URL no longer tells that it holds a password.
    shown = "" if problem["type"] == "missing" else f" (got {masked_values(given)!r:.60})"
    return f"{toml_path(path)}: {message}{shown}"


def toml_path(path: Iterable[int | str]) -> str:
    """The place of a value as it is written in TOML: ``weight.sparsity``."""
    return ".".join(str(step) for step in path)


def field_names(schema: Any, path: tuple[int | str, ...] = ()) -> list[str]:
    """The keys a schema takes, `path` steps inside it."""
    for step in path:
        hints = _fields(schema)
        schema = _model_in(hints.get(str(step)))
    return list(_fields(schema))


def _fields(schema: Any) -> dict[str, Any]:
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return {name: field.annotation for name, field in schema.model_fields.items()}
    if dataclasses.is_dataclass(schema):
        return {field.name: field.type for field in dataclasses.fields(schema)}
    return {}


def _model_in(annotation: Any) -> Any:
    """The model inside `Model | None`, `list[Model]` and similar types."""
    if _fields(annotation):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
