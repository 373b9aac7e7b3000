"""Everything that can be wrong with what a user asked for.

A `ChopError` is a user's mistake or a fact of their machine: the command line prints its one line
and exits with 2. Anything else that escapes is a bug in chop and exits with 1.

    ChopError
    ├── ConfigError               settings, pass arguments, number formats
    │   └── UnknownNameError      a name that no registry knows; suggests the nearest
    ├── RegistrationError         a name that is taken, a file of the user's that fails to import
    ├── GraphError                tracing, metadata, a graph that does not fit a pass
    ├── DataError                 data sets: missing, damaged, of the wrong shape
    ├── CheckpointError           files of weights and graphs
    ├── OutputError               folders and files that cannot be written
    ├── TrainingError             a run that cannot continue, such as a loss that is not a number
    └── SearchError               search spaces, metrics and studies
"""

import difflib
import errno
from collections.abc import Iterable

from chop.masking import mask_passwords

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says when nothing more can be written."""


class ChopError(Exception):
    """The user can mend this; the message says how, in one line."""

    def __str__(self) -> str:
        return mask_passwords(" ".join(str(part) for part in self.args))


class ConfigError(ChopError):
    """A setting, pass argument or number format that makes no sense."""


class UnknownNameError(ConfigError, KeyError):
    """A name that is not among the known ones."""

    def __init__(self, kind: str, name: object, known: Iterable[str], where: str = "") -> None:
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}unknown {kind} {str(name)!r}: {suggestion(str(name), known)}")


class RegistrationError(ChopError):
    """A name that is taken, or a user's file that cannot be imported."""


class GraphError(ChopError):
    """A model that cannot be traced, or a graph that does not fit a pass."""


class DataError(ChopError):
    """A data set that is missing, damaged or of the wrong shape."""


class CheckpointError(ChopError):
    """A file of weights or a graph that cannot be read or does not fit."""


class OutputError(ChopError):
    """A folder or file that cannot be written."""


class TrainingError(ChopError):
    """A training run that cannot continue."""


class SearchError(ChopError):
    """A search space, metric or study that makes no sense."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return what to write in place of `name`: the nearest known name, else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(names)}" if names else "none is known"
