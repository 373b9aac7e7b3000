"""Tables of a file from the pydantic classes that check them."""

import inspect
import re
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import AliasChoices, BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from chop.config.schema import NONE, NOT_NONE, Schema
from chop.registry import description
from chop.verbs.transform.passes import OFFERED_PATHS

GIVEN_BY_THE_RUN = ("dummy_in", "input_generator")
"""Arguments that are tensors: a file cannot state them, the action hands them over."""


def table_schema(model: type[BaseModel]) -> Schema:
    """The schema of a table whose keys are the fields of `model`."""
    text = inspect.cleandoc(vars(model).get("__doc__") or "")  # its own, not an inherited one
    texts = texts_of(model)
    properties: dict[str, Schema] = {}
    required = []
    for name, field in model.model_fields.items():
        found = field_schema(field)
        if found is None or name in GIVEN_BY_THE_RUN:
            continue
        shape = found | ({"description": plain_line(texts[name])} if name in texts else {})
        properties |= dict.fromkeys(spellings(name, field), shape)
        required += [name] if field.is_required() and name not in OFFERED_PATHS else []
    table: Schema = {
        "description": plain_line(text.partition("\n")[0]),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return table | ({"required": required} if required else {})


def texts_of(schema: type) -> dict[str, str]:
    """The description of each argument in the docstrings of a class and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(schema.__mro__):
        text = inspect.cleandoc(vars(each).get("__doc__") or "")
        found |= argument_texts(text.replace("Attributes:", "Args:"))
    return found


def argument_texts(docstring: str) -> dict[str, str]:
    """The description of each argument in the `Args:` section of a docstring."""
    section = docstring.partition("Args:\n")[2]
    found = re.findall(r"^    (\w+): ((?:.+\n?)(?:        .+\n?)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def plain_line(text: str) -> str:
    """A line of a docstring as editors and pages show it."""
    return text.replace("``", "`").removesuffix(".")


def described_table(entry: object, args: type[BaseModel] | None) -> Schema:
    """The table of a registered function: what it does, then what its arguments say."""
    table = table_schema(args) if args else {"type": "object"}
    own = table.get("description", "") if table.get("properties") else ""
    return table | {"description": ". ".join(filter(None, [plain_line(description(entry)), own]))}


def field_schema(field: FieldInfo) -> Schema | None:
    """Return what a file may say of a field; None for what cannot be said in one."""
    inner = next(_models_in(field.annotation), None)
    if inner is not None:
        return _nest(field, table_schema(inner))
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    try:
        found = TypeAdapter(annotation).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return None
    if not field.is_required() and field.default is not None and _is_plain(field.default):
        found["default"] = field.default
    shape: Schema = as_toml(found)
    is_text = shape.get("type") == "string" and not {"enum", "const"} & shape.keys()
    return shape | NOT_NONE if is_text else shape


def spellings(name: str, field: FieldInfo) -> list[str]:
    """The keys that stand for a field."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [name]


def as_toml(found: Any) -> Any:
    """A schema in which none is "NA", as TOML has no null, and without titles of no use."""
    if isinstance(found, list):
        return [as_toml(item) for item in found]
    if not isinstance(found, dict):
        return found
    if found.get("type") == "null":
        return NONE
    return {key: as_toml(item) for key, item in found.items() if key not in ("title", "format")}


def one_or_several(one: Schema) -> Schema:
    """A value, or a list of those to choose from."""
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _nest(field: FieldInfo, table: Schema) -> Schema:
    """A table, or what a container of tables holds."""
    if get_origin(field.annotation) is dict:
        return {"type": "object", "additionalProperties": table}
    is_optional = NoneType in get_args(field.annotation)
    return {"anyOf": [table, NONE]} if is_optional else table


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
