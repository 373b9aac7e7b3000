"""Tables of things known by name, filled by decorators beside the code they name."""

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Generic, TypeVar, cast

from chop.errors import RegistrationError, UnknownNameError

T = TypeVar("T")
Registered = TypeVar("Registered")


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name; several names may stand for the same thing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._interactive: set[str] = set()

    def register(self, *names: str) -> Callable[[Registered], Registered]:
        """Decorator that adds what it decorates under each of `names`."""

        def add(entry: Registered) -> Registered:
            for name in names:
                self.add(name, cast(T, entry))  # the decorator keeps the narrower type
            return entry

        return add

    def add(self, name: str, entry: T) -> None:
        """Add one entry; a name that is taken is an error, so nothing is replaced in silence.

        What a notebook registered it may register anew: cells are run more than once.
        """
        interactive = _registering_module() == "__main__"
        if name in self._entries and not (interactive and name in self._interactive):
            raise RegistrationError(f"{self.kind} {name!r} is already registered")
        self._entries[name] = entry
        if interactive:
            self._interactive.add(name)

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


def _registering_module() -> str:
    """The name of the module, outside of chop, whose code is adding an entry."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "chop":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame else ""
