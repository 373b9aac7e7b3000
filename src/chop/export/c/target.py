"""The target ``c``: the files of a program in C, and their check by a compiler of this machine."""

import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chop.errors import ConfigError, GraphError, UnknownNameError
from chop.export.c.boards.devices import DEVICES, TooSmallDeviceError, run_on
from chop.export.c.boards.packages import PACKAGES, package_files
from chop.export.c.boards.report import device_costs, estimate_facts
from chop.export.c.entries import FloatEntries
from chop.export.c.source import c_program, header_text, row_program, source_text
from chop.export.c.steps import write_layer
from chop.export.checking import refuse_other_codes
from chop.export.rows import CheckedRows, side_by_side
from chop.export.targets import TargetOptions, WrittenFiles, export_target, program_checksum
from chop.export.tools import run_tool
from chop.files import write_text
from chop.lowering import Engine, IntegerProgram
from chop.preprocessing import Preprocessing

COMPILE = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address")
COMPILE_SAFE = (*COMPILE, "-fno-sanitize-recover=all")
DEVICE_ROWS, DEVICE_BYTES = 100, 2**21
"""Rows that a simulated device runs at most, and bytes that it has for them."""
OPTIMISE = ("speed", "size")
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")
RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while|main|run|word|usable|wrap"
)
"""Words of C, and names that the files use."""


@dataclass(frozen=True)
class COptions(TargetOptions):
    """The settings of C code."""

    title = "C code"

    name: str = "model"
    """The name of the files, and how functions and macros begin."""
    optimise: str = "speed"
    """``speed`` or ``size``: what the forms of weights are chosen for."""
    package: str = "plain"
    """The build system that the files are for: a name of `boards.packages.PACKAGES`."""
    qemu: bool = False
    """Whether to run rows on simulated devices, too, and to measure there."""
    report: bool = False
    """Whether the compilers that are there say what the code takes."""
    preprocessing: Preprocessing | None = None
    """The scaling of features; by default that of the graph."""

    def __post_init__(self) -> None:
        if not IDENTIFIER.fullmatch(self.name) or RESERVED.fullmatch(self.name):
            raise ConfigError(
                f"c: {self.name!r} is not a name for C: take a letter and at most 40 letters, "
                "digits and underscores, and no word of C"
            )

        if self.optimise not in OPTIMISE:
            raise UnknownNameError("optimise", self.optimise, OPTIMISE, "c")
        if self.package not in PACKAGES:
            raise UnknownNameError("package", self.package, PACKAGES, "c")

    def sources(self, folder: Path) -> Path:
        """The folder of the header and the source."""
        return folder / PACKAGES[self.package].sources.format(name=self.name)

    def tests(self, folder: Path) -> Path:
        """The folder of the program that runs rows of text."""
        return folder / PACKAGES[self.package].tests

    def for_graph(self, preprocessing: Preprocessing | None) -> "COptions":
        """The settings with the scaling of a graph, where none is given."""
        return self if self.preprocessing else replace(self, preprocessing=preprocessing)


@export_target("c", options=COptions, steps=write_layer)
def write_c(program: IntegerProgram, options: COptions, folder: Path) -> WrittenFiles:
    """C99: model.h and model.c, which need no library, and a program that runs rows of text."""
    made, name = c_program(program, options.optimise), options.name
    entries, checksum = FloatEntries(program, options.preprocessing), program_checksum(program)[:16]
    inside, tests = options.sources(folder), options.tests(folder)
    files = {
        inside / f"{name}.h": header_text(made, entries, name, checksum),
        inside / f"{name}.c": source_text(made, entries, name, checksum),
        tests / f"{name}_test.c": row_program(made, entries, name),
    }
    added = package_files(options.package, made, entries, name, checksum)
    for path, text in (files | {folder / place: text for place, text in added.items()}).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    guess, memory = estimate_facts(made)
    facts: dict[str, Any] = {
        "c": {
            "name": name,
            "scratch_bytes": made.scratch_bytes,
            "reentrant": True,
            "optimised_for": options.optimise,
            "package": options.package,
            "estimate": guess,
            "memory": memory,
            "numbers": entries.missing or "yes",
        }
    }
    if options.qemu or options.report:
        facts["c"]["devices"] = device_costs(made, inside, name, simulate=options.qemu)
    return WrittenFiles(facts)


def check_on_devices(folder: Path, rows: CheckedRows, options: COptions) -> str:
    """Run rows on every simulated device there is, and compare bit for bit; say on which."""
    usable = {name: device for name, device in DEVICES.items() if device.missing is None}
    if not usable:
        missing = sorted({str(device.missing) for device in DEVICES.values()})
        raise ConfigError(f"c: no device can be simulated: install {' and '.join(missing)}")
    codes = rows.flat_codes
    width = 8 * codes.shape[1]
    count = max(1, min(len(rows), DEVICE_ROWS, DEVICE_BYTES // width))
    entries = FloatEntries(rows.program, options.preprocessing)
    features = ""
    wanted: list[str] = []
    if entries.missing is None:
        features, wanted = float_rows(rows, entries)
    lines = features.splitlines()[:count]
    place, small = options.sources(folder), []
    for name, device in usable.items():
        few = count if device.memory is None else max(1, min(count, device.memory[0] // 8 // width))
        try:
            ran = run_on(
                device, place, options.name, rows.program, codes[:few].tolist(), lines[:few]
            )
        except TooSmallDeviceError as error:
            small.append(f"{name} {error}")
            continue
        refuse_other_codes(ran.codes, rows.flat_outputs[:few])
        refuse_other_scores(ran.scores, wanted[: len(lines[:few])])
    absent = sorted({str(device.missing) for device in DEVICES.values()} - {"None"})
    rest = f" (not installed: {', '.join(absent)})" if absent else ""
    ran_on = [name for name in usable if not any(each.startswith(name) for each in small)]
    return "; ".join([f"{count} rows on simulated {', '.join(ran_on)}{rest}", *small])


@write_c.check
def check_c(folder: Path, rows: CheckedRows, options: COptions) -> str:
    """Compile the files, run them on rows and compare with the engine; what compiled them."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise ConfigError(
            "export: no C compiler 'cc' was found, and the check needs it: install gcc or clang, "
            "or check nothing with --rows 0"
        )
    with tempfile.TemporaryDirectory() as scratch:
        binary = str(Path(scratch) / "predict")
        inside = options.sources(folder)
        files = [f"-I{inside}", str(inside / f"{options.name}.c"),
                 str(options.tests(folder) / f"{options.name}_test.c")]  # fmt: skip
        run_tool([compiler, *COMPILE_SAFE, *files, "-o", binary])
        refuse_other_codes(printed_codes(run_tool([binary], codes_text(rows))), rows.flat_outputs)
        entries = FloatEntries(rows.program, options.preprocessing)
        if entries.missing is None:
            text, wanted = float_rows(rows, entries)
            found = run_tool([binary, "float"], text)
            refuse_other_scores(found.splitlines(), wanted)
    host = " ".join(["cc", *COMPILE_SAFE])
    return f"{host}; {check_on_devices(folder, rows, options)}" if options.qemu else host


def codes_text(rows: CheckedRows) -> str:
    """The codes of inputs, a row in a line."""
    return "\n".join(" ".join(map(str, row)) for row in rows.flat_codes.tolist())


def printed_codes(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Codes that a program has printed."""
    return np.array([line.split() for line in text.splitlines()], dtype=np.int64)


def float_rows(rows: CheckedRows, entries: FloatEntries) -> tuple[str, list[str]]:
    """Rows of features as bits, and the bits of scores and the class that the engine gives."""
    features = {name: each.float() for name, each in rows.numbers.items()}
    scaling = entries.scaling
    scaled = {
        name: each if scaling is None else scaled_rows(each, scaling)
        for name, each in features.items()
    }
    known = torch.stack([~each.reshape(len(each), -1).isnan().any(1) for each in scaled.values()])
    kept = known.all(0)
    engine = Engine(rows.program)
    outputs = engine.run(engine.quantise({name: each[kept] for name, each in scaled.items()}))
    numbers = [each.float() for each in engine.numbers(outputs)]
    classes = numbers[0].reshape(len(numbers[0]), -1).argmax(1)
    targets = None if entries.preprocessing is None else entries.preprocessing.targets
    if targets is not None and len(targets.mean) == numbers[0][0].numel():
        numbers = [targets.restore(each) for each in numbers]
    bits = np.ascontiguousarray(_side_by_side(features.values(), kept)).view(np.uint32)
    text = "\n".join(" ".join(f"{bit:x}" for bit in row) for row in bits.tolist())
    found = np.ascontiguousarray(_side_by_side(numbers)).view(np.uint32)
    wanted = [
        " ".join([*(f"{bit:x}" for bit in row), str(best)])
        for row, best in zip(found.tolist(), classes.tolist(), strict=True)
    ]
    return text, wanted


def scaled_rows(rows: torch.Tensor, scaling: Preprocessing) -> torch.Tensor:
    """Rows scaled as for training, each step in float32."""
    sizes = [-1, *[1] * (rows.dim() - 2)] if scaling.kind == "channels" else [-1]
    mean, scale = (rows.new_tensor(each).reshape(sizes) for each in (scaling.mean, scaling.scale))
    return (rows / rows.new_tensor(scaling.divisor) - mean) / scale


def _side_by_side(tensors: Any, kept: Any = slice(None)) -> Any:
    return side_by_side([each[kept] for each in tensors]).astype(np.float32)


def refuse_other_scores(found: list[str], wanted: list[str]) -> None:
    """Refuse scores or classes that are not those of the engine, bit for bit."""
    wrong = [n for n, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
    if wrong:
        raise GraphError(
            f"export: the functions for numbers differ from the engine on {len(wrong)} of "
            f"{len(wanted)} rows, the first is row {wrong[0]}"
        )
