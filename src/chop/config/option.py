"""Options: fields of a request, whose annotations say what they take and where.

Standard library only, so that ``ch --help`` starts at once; pydantic joins when values are checked.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Word:
    """A value that a verb takes by position."""

    metavar: str
    help: str
    values: tuple[str, ...] = ()
    names: str = ""
    """As `Option.names`."""
    needed: bool = False
    repeats: bool = False
    """Whether any number of such words may follow."""

    @property
    def usage(self) -> str:
        if self.repeats:
            return f"[{self.metavar} …]"
        return self.metavar if self.needed else f"[{self.metavar}]"


@dataclass(frozen=True)
class Option:
    """The command-line side of a setting."""

    help: str
    group: str
    flags: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    """Which verbs take it on the command line, if not all that have it; a file may set it for any
    of them."""
    listed: bool = True
    """Whether the table of settings shows it."""
    spellings: Mapping[Any, str] = field(default_factory=dict)
    """Other spellings of values, and the one that is meant by each."""
    repeatable: bool = False
    values: tuple[str, ...] = ()
    """The values it is limited to, where its type does not say so."""
    names: str = ""
    """What a value names: ``file``, ``folder``, or a topic of ``ch info`` such as ``models``."""
    word: Word | None = None
    """How it stands on a command line without a flag."""
    bare: str = ""
    """The value of a flag that stands alone, if it may."""
    default_words: str = ""
    """The default in words, where it depends on the machine."""
    above: float | None = None
    at_least: float | None = None
    below: float | None = None

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds that are set, by the names pydantic has for them."""
        named = {"gt": self.above, "ge": self.at_least, "lt": self.below}
        return {name: bound for name, bound in named.items() if bound is not None}

    def usual(self, value: Any) -> Any:
        """`value` in its usual spelling."""
        is_word = isinstance(value, str | int) and not isinstance(value, bool)
        return self.spellings.get(value, value) if is_word else value


@dataclass(frozen=True)
class Setting:
    """One field of a request: its name, type, default and option."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def optional(self) -> bool:
        """Return whether none is a value of the setting."""
        return NoneType in self.type_members

    @property
    def type_members(self) -> tuple[Any, ...]:
        """`int` and `None` of ``int | None``; the type itself where it is not a union."""
        if get_origin(self.type) in (Union, UnionType):
            return get_args(self.type)
        return (self.type,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it is limited to; empty when it is not."""
        if self.option.values:
            return self.option.values
        for member in self.type_members:
            if get_origin(member) is Literal:
                return get_args(member)
        return ()

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty where there is none."""
        if self.option.default_words or self.default in (None, [], {}):
            return self.option.default_words
        return str(self.default).lower() if self.is_flag else str(self.default)


def declared_settings(owner: type[Any]) -> dict[str, Setting]:
    """The settings a class declares as ``name: Annotated[type, Option(...)] = default``."""
    known: Any = owner  # a class is hashable, whatever mypy thinks of its instances
    return _settings_of(known)


@cache
def _settings_of(owner: Any) -> dict[str, Setting]:
    hints = get_type_hints(owner, include_extras=True)
    return {field.name: _setting(field, hints[field.name]) for field in fields(owner)}


def _setting(field: Field[Any], hint: Any) -> Setting:
    value_type, option = get_args(hint)
    if isinstance(option, Word):
        option = Option(option.help, "", names=option.names, word=option)
    default = field.default_factory() if callable(field.default_factory) else field.default
    return Setting(field.name, value_type, default, option)
