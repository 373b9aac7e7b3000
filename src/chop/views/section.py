"""The parts of the page: sections, and the numbers that a reader should see first."""

from dataclasses import dataclass, field

from chop.markup import Markup


@dataclass(frozen=True)
class Tile:
    """One number that a reader should see first."""

    label: str
    value: str
    detail: str = ""
    search: str = ""
    """Which of several searches it is about."""
    rank: int = 1
    """Which tiles give way where there are too many: those of the highest rank."""

    @property
    def title(self) -> str:
        return f"{self.label}, {self.search}" if self.search else self.label


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    anchor: str
    title: str
    body: Markup
    tiles: tuple[Tile, ...] = field(default=())
    comes_first: bool = False
    """Whether its tiles stand before those of all others."""
    is_folded: bool = False
    """Whether the body opens only when a reader asks for it."""
    note: Markup | None = None
    """What a reader must not miss, for the top of the page."""
