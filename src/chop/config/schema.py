"""The JSON Schema of configuration files, for editors.

``chop.schema.json`` lies in the package, so that ``ch schema`` prints it without importing torch;
``make generate`` writes it, and a test fails when it is out of date. Here is what
follows from the settings alone; `chop.actions.schema` adds passes and searches.
"""

from pathlib import Path
from typing import Any, get_args, get_origin

from chop.config.command_line import SETTINGS
from chop.config.layers import NOTHING
from chop.config.run import Setting

FILE = Path(__file__).with_name("chop.schema.json")
NONE = {"const": NOTHING, "description": "none"}
NOT_NONE = {"not": {"const": NOTHING}}
"""Where a text is needed."""
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
LIMITS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum"}

Schema = dict[str, Any]


def stored() -> str:
    """The schema that comes with the package, as text."""
    return FILE.read_text(encoding="utf-8")


def settings_schema(known: dict[str, list[str]]) -> dict[str, Schema]:
    """The schema of each setting.

    Args:
        known: names that are suggested for a value, by topic of ``ch info``.
    """
    return {name: setting_schema(setting, known) for name, setting in SETTINGS.items()}


def setting_schema(setting: Setting, known: dict[str, list[str]]) -> Schema:
    """What a file may say of one setting."""
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
