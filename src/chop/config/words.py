"""What a command of ``ch`` is: the words and options that it takes."""

from dataclasses import dataclass

EVERYWHERE = ("quiet", "to_debug")


@dataclass(frozen=True)
class Name:
    """A word that a command takes by position."""

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
class Command:
    """One command of ``ch``."""

    help: str
    names: tuple[Name, ...] = ()
    options: tuple[str, ...] = EVERYWHERE
    quiet: str = ""
    """What is shown with ``--quiet``."""

    @property
    def usage(self) -> str:
        """What to write after ``ch`` and the command, the options left aside."""
        return " ".join(name.usage for name in self.names)
