"""Export targets by name: what writes the files of a form, what checks them, and its settings.

@export_target("c", options=COptions)
def write_c(program, options, folder):
    '''C99 …'''

@write_c.check
def check_c(folder, rows): ...
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from chop.errors import ConfigError, UnknownNameError
from chop.export.rows import CheckedRows
from chop.lowering import IntegerProgram
from chop.lowering.program import STEPS, own_fields
from chop.preprocessing import Preprocessing
from chop.registry import Registry


@dataclass(frozen=True)
class TargetOptions:
    """The settings of a target; this one is for targets without any."""

    title: ClassVar[str] = ""
    """The word for these settings in messages."""

    @property
    def usual_rows(self) -> int:
        """Rows that files are checked with if nothing else is said."""
        return 2000

    def rows_of(self, asked: int | None) -> int:
        """Return on how many rows to check, the usual number if none was asked for."""
        return self.usual_rows if asked is None else asked

    def for_graph(self, preprocessing: Preprocessing | None) -> Self:
        """Return the settings for a graph that was trained on rows scaled like this."""
        return self


@dataclass(frozen=True)
class WrittenFiles:
    """Facts about files for their manifest, and parts of them that a check does not run."""

    facts: dict[str, Any] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    """Names of files, with the reason."""


Write = Callable[[IntegerProgram, Any, Path], WrittenFiles]
FileCheck = Callable[[Path, CheckedRows, Any], str]
"""Runs files that were written with some options on rows and compares; returns what ran them."""
Missing = Callable[[], str | None]
"""Returns why files cannot be checked on this machine, None if they can."""


class StepWriter(Protocol):
    """A function with an implementation for each kind of step (`functools.singledispatch`)."""

    def dispatch(self, cls: Any) -> Callable[..., Any]:
        """Return the implementation for a class."""


class ExportTarget:
    """A form that programs are exported to; calling it writes the files."""

    def __init__(
        self,
        write: Write,
        extra: str | None,
        options: type[TargetOptions],
        steps: StepWriter | None,
        missing: Missing,
    ) -> None:
        self.write, self.extra, self.options = write, extra, options
        self.steps, self.missing = steps, missing
        self.run_check: FileCheck

    @property
    def description(self) -> str:
        """The first line of the docstring: what is written."""
        return (self.write.__doc__ or "").strip().partition("\n")[0]

    @property
    def traits(self) -> dict[str, Any]:
        """The extra that must be installed and the names of the settings, for ``ch info``."""
        names = ", ".join(each.name for each in fields(self.options))
        return {"needs": self.extra or "", "options": names}

    @property
    def lacking_steps(self) -> list[str]:
        """Names of the kinds of steps that the form cannot be written for."""
        if self.steps is None:  # it stores steps by their fields
            return []
        unknown = self.steps.dispatch(object)
        return [name for name, kind in STEPS.items() if self.steps.dispatch(kind) is unknown]

    def __call__(
        self, program: IntegerProgram, folder: Path, options: TargetOptions | None = None
    ) -> WrittenFiles:
        """Write the files of a program."""
        return self.write(program, self.options() if options is None else options, folder)

    def check(self, function: FileCheck) -> FileCheck:
        """Decorator for the function that runs the files and compares them with the engine."""
        self.run_check = function
        return function


EXPORT_TARGETS: Registry[ExportTarget] = Registry("export")


def export_target(
    name: str,
    *,
    extra: str | None = None,
    options: type[TargetOptions] = TargetOptions,
    steps: StepWriter | None = None,
    missing: Missing = lambda: None,
) -> Callable[[Write], ExportTarget]:
    """Decorator that makes a target of the function that writes its files.

    Args:
        extra: the optional dependencies of this package that it needs.
        options: a dataclass of its settings.
        steps: the function with an implementation for each kind of step, if it has one.
        missing: returns why files cannot be checked on this machine, None if they can.
    """

    def register(write: Write) -> ExportTarget:
        target = ExportTarget(write, extra, options, steps, missing)
        EXPORT_TARGETS.add(name, target)
        return target

    return register


def target_options(
    to: str, given: TargetOptions | None, settings: Mapping[str, Any]
) -> TargetOptions:
    """Return the settings of a target, given as its dataclass or by name.

    Settings that only another target has are refused by the name of that target.
    """
    if given is not None and settings:
        raise ConfigError("export: give options or settings by name, not both")
    kinds = {name: target.options for name, target in EXPORT_TARGETS.items()}
    names = {kind: {each.name for each in fields(kind)} for kind in kinds.values()}
    known = sorted(set().union(*names.values()))
    for name in settings:
        if name not in known:
            raise UnknownNameError("setting", name, known, "export")
    for other, kind in kinds.items():
        foreign = any(name in names[kind] - names[kinds[to]] for name in settings)
        if foreign or (type(given) is kind is not kinds[to]):
            raise ConfigError(f"export: settings of {kind.title} are for {other}, not for {to}")
    return kinds[to](**settings) if given is None else given


def program_checksum(program: IntegerProgram) -> str:
    """Return a digest of everything that a program computes."""
    digest = hashlib.sha256(str(program).encode())
    for step in program.steps:
        for name in own_fields(type(step)):
            value = getattr(step, name)
            for each in value if isinstance(value, tuple) else (value,):
                digest.update(np.asarray(each).tobytes() if each is not None else b"-")
    return digest.hexdigest()
