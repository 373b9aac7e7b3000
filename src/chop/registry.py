"""Tables of things known by name, filled by decorators beside the code they name."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Generic, TypeVar, cast

from chop.errors import RegistrationError, UnknownNameError

logger = logging.getLogger("chop")
BUILT_IN = ""
INTERACTIVE = "__main__"
T = TypeVar("T")
Registered = TypeVar("Registered")


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name; several names may stand for the same thing.

    Args:
        users_win: whether a user's code may take the name of something built in, with a warning.
    """

    def __init__(self, kind: str, *, users_win: bool = False) -> None:
        self.kind = kind
        self.users_win = users_win
        self._entries: dict[str, T] = {}
        self._owners: dict[str, str] = {}

    def register(self, *names: str) -> Callable[[Registered], Registered]:
        """Decorator that adds what it decorates under each of `names`."""

        def add(entry: Registered) -> Registered:
            for name in names:
                self.add(name, cast(T, entry))  # the decorator keeps the narrower type
            return entry

        return add

    def add(self, name: str, entry: T) -> None:
        """Add one entry; a name that is taken is an error, so nothing is replaced in silence.

        What a notebook registered it may register again: cells are run more than once.
        """
        owner = _owner()
        before = self._owners[name] if name in self._entries else None
        if before == BUILT_IN != owner and self.users_win:
            logger.warning("%s takes the place of the built-in %s '%s'", owner, self.kind, name)
        elif before is not None and not owner == before == INTERACTIVE:
            by = f" by {before}" if before else ""
            raise RegistrationError(
                f"{self.kind} {name!r} is already registered{by}: take another name"
            )
        self._entries[name] = entry
        self._owners[name] = owner

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except (KeyError, TypeError):  # a file may say a list where a name belongs
            raise UnknownNameError(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}, {sorted(self._entries)})"

    def descriptions(self) -> dict[str, str]:
        """One line for each name, sorted: what `ch info` prints."""
        return {name: description(self._entries[name]) for name in sorted(self._entries)}


def description(entry: object) -> str:
    """The line that describes an entry: its `description`, else the first line of its docstring."""
    own = getattr(entry, "description", None)
    text = own if isinstance(own, str) else (entry.__doc__ or "")
    return text.strip().partition("\n")[0]


def _owner() -> str:
    """Whose code is adding an entry: a file or module outside of chop, or what is built in."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "chop":
        frame = frame.f_back
    if frame is None:
        return BUILT_IN
    name = str(frame.f_globals.get("__name__"))
    if name.partition(".")[0] == "importlib":  # which is importing a module of ours
        return BUILT_IN
    return name if name == INTERACTIVE else str(frame.f_globals.get("__file__", name))
