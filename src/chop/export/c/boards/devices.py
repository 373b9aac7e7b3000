"""Small devices: what C takes on them, and the same rows run on simulated ones.

Instructions are counted by a simulator that gives each one the same time, so that a timer of the
device counts them.
"""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop.errors import ConfigError, GraphError
from chop.export.c.boards.starts import LINKER, NUMBERS, START_ARM, START_AVR, START_RISCV
from chop.export.c.code import value_type
from chop.export.tools import run_tool
from chop.files import write_text
from chop.lowering.program import IntegerProgram, Value

MEMORY = "4M"
STACK = 128
"""Bytes of memory that are kept for the stack where memory is small."""
OPTIMISE = "-O2"
TABLE = re.compile(r"^static const MODEL_FLASH [iu](\d+) \w+\[(\d+)\]", re.MULTILINE)
"""A table of constants in a source: bits of an element, and elements."""
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-ffunction-sections", "-fdata-sections")


@dataclass(frozen=True)
class Device:
    """A processor: its compiler, and a machine that simulates it."""

    compiler: str
    flags: tuple[str, ...]
    simulator: tuple[str, ...]
    origin: str
    per_tick: float
    """Instructions of a tick of its timer, each of which takes a nanosecond."""
    start: str = START_ARM
    tick_bits: int = 24
    """Bits of the timer that are read."""
    counts: str = "instructions"
    """The unit of the timer."""
    memory: tuple[int, int] | None = None
    """Bytes of flash and of memory, where they are known."""

    @property
    def missing(self) -> str | None:
        """The program that is not installed, if any."""
        return self.lacking(simulate=True)

    def lacking(self, simulate: bool) -> str | None:
        """The program that is not installed, if any, to compile or also to simulate."""
        tools = (self.compiler, *(self.simulator[:1] if simulate else ()))
        return next((tool for tool in tools if shutil.which(tool) is None), None)

    @property
    def size_tool(self) -> str:
        """The program that tells the sizes of sections."""
        return f"{self.compiler.removesuffix('gcc').removesuffix('cc')}size"


def _arm(core: str, board: str, origin: str, per_tick: int) -> Device:
    flags = (f"-mcpu={core}", "-mthumb", "-mfloat-abi=soft")
    return Device("arm-none-eabi-gcc", flags, ("qemu-system-arm", "-M", board), origin, per_tick)


SLOW, LONG_RUN = 3, 20_000_000
"""Simulated time of an instruction, as a power of two of nanoseconds, so that a timer of 24 bits
counts finely; and instructions from which on it would overflow, where it is one."""

DEVICES = {
    "cortex-m0plus": _arm("cortex-m0plus", "mps2-an385", "0x00000000", 40),
    "cortex-m3": _arm("cortex-m3", "mps2-an385", "0x00000000", 40),
    "cortex-m4": _arm("cortex-m4", "mps2-an386", "0x00000000", 40),
    "cortex-m33": _arm("cortex-m33", "mps2-an505", "0x10000000", 50),
    "rv32": Device(
        "riscv64-unknown-elf-gcc", ("-march=rv32imac", "-mabi=ilp32", "-mcmodel=medany",
         "-specs=picolibc.specs"),
        ("qemu-system-riscv32", "-M", "virt", "-bios", "none"), "0x80000000", 1, START_RISCV,
        tick_bits=32,
    ),
    "atmega328": Device(
        "avr-gcc", ("-mmcu=atmega328p", "-DF_CPU=16000000UL", "-std=gnu99",
         "-Wno-strict-overflow"),
        ("simavr", "-m", "atmega328p", "-f", "16000000"), "", 8, START_AVR, 16, "cycles",
        (32768, 2048),
    ),
}  # fmt: skip
"""Processors by name. The code of a Cortex-M0+ runs on a Cortex-M3, which knows it, too."""
HOST = {"host": Device("cc", (), (), "", 1)}
"""This machine, whose compiler tells sizes."""


@dataclass(frozen=True)
class OnDevice:
    """Codes and instructions of rows that ran on a device, and the bytes of the program."""

    codes: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    instructions: int
    """Of a row, on average."""
    flash_bytes: int
    stack_bytes: int
    """At most, of the functions that take codes."""
    scores: list[str]
    """Bits of scores and the class of each row of features."""
    layers: tuple[int, ...] = ()
    """Instructions of each layer, if they were measured."""


def edges(program: IntegerProgram) -> tuple[list[Value], list[Value]]:
    """The values that a caller gives and gets."""
    values = program.values
    return [each.value for each in program.inputs], [values[name] for name in program.outputs]


def c_array(kind: str, name: str, numbers: Sequence[int]) -> str:
    """An array of constants."""
    return f"static const {kind} {name}[] GIVEN = {{{', '.join(map(str, numbers))}}};\n"


MARKS = """\
static uint32_t spent[{count} + 1], since;
static int marked = {count};
void mark_layer(int number) {{
    spent[marked] += (ticks() - since) & {mask:#x}u;
    marked = number;
    since = ticks();
}}
static void show_layers(int rows) {{
    marked = {count};
    spent[{count}] = 0;
    since = ticks();
    for (int i = 0; i < rows; i++) mark_layer({count}); /* what marking takes by itself */
    for (int i = 0; i <= {count}; i++) show_hex(spent[i]);
}}
"""


def row_main(
    name: str, program: IntegerProgram, rows: Sequence[Sequence[int]], features: Sequence[str],
    device: Device, layers: int,
) -> str:  # fmt: skip
    """A program that runs rows, shows the codes of outputs, and then the ticks of all rows."""
    upper, text, start, reads = name.upper(), "", 0, ""
    inputs, outputs = edges(program)
    for place, value in enumerate(inputs):
        numbers = [code for row in rows for code in row[start : start + value.size]]
        text += c_array(value_type(value), f"rows{place}", numbers)
        text += f"static {value_type(value)} input{place}[{value.size}];\n"
        at = f"rows{place} + (uint32_t)row * {value.size}"
        reads += f"        READ(input{place}, {at}, sizeof input{place});\n"
        start += value.size
    text += "".join(
        f"static {value_type(value)} output{place}[{value.size}];\n"
        for place, value in enumerate(outputs)
    )
    sides = (("input", inputs), ("output", outputs))
    taken = ", ".join(f"{side}{place}" for side, all_of in sides for place in range(len(all_of)))
    shows = "".join(
        f"        for (int i = 0; i < {value.size}; i++) show_hex((uint32_t)output{place}[i]);\n"
        for place, value in enumerate(outputs)
    )
    floats, mask = feature_main(name, program, features), 2**device.tick_bits - 1
    marks = MARKS.format(count=layers, mask=mask) if layers else ""
    return f"""{text}static uint64_t scratch[({upper}_SCRATCH_BYTES + 7) / 8];
{marks}{floats}int main(void) {{
    uint32_t all = 0;
    show("");
    for (int row = 0; row < {len(rows)}; row++) {{
{reads}        const uint32_t before = ticks();
        {name}_predict({taken}, scratch);
        all += (ticks() - before) & {mask:#x}u;
{shows}    }}
    show_hex(all);
    {f"show_layers({len(rows)});" if layers else ""}
    {"feature_rows();" if features else ""}
    show(" ");
    stop();
    return 0;
}}
"""


def feature_main(name: str, program: IntegerProgram, features: Sequence[str]) -> str:
    """A function that runs rows of features, and shows the bits of scores and the class."""
    if not features:
        return ""
    bits = [f"0x{word}u" for row in features for word in row.split()]
    names: list[str] = []
    sizes: dict[str, int] = {}
    for each in program.inputs:
        sizes.setdefault(each.placeholder, each.value.size)
    offset, width = 0, sum(sizes.values())
    for size in sizes.values():
        names.append(f"features + {offset}")
        offset += size
    outs = [value.size for value in edges(program)[1]]
    scores = [f"scores + {sum(outs[:place])}" for place in range(len(outs))]
    numbers = f"static const uint32_t given[] GIVEN = {{{', '.join(bits)}}};\n"
    return f"""{numbers}static float features[{width}], scores[{sum(outs)}];
static void feature_rows(void) {{
    for (int row = 0; row < {len(features)}; row++) {{
        READ(features, given + (uint32_t)row * {width}, sizeof features);
        {name}_predict_float({", ".join([*names, *scores])}, scratch);
        for (int i = 0; i < {sum(outs)}; i++) {{
            uint32_t word;
            memcpy(&word, scores + i, 4);
            show_hex(word);
        }}
        show_hex((uint32_t){name}_predict_class({", ".join(names)}, scratch));
    }}
}}
"""


def run_on(  # noqa: PLR0913  (each is another thing)
    device: Device,
    folder: Path,
    name: str,
    program: IntegerProgram,
    rows: Sequence[Sequence[int]],
    features: Sequence[str] = (),
    *,
    defines: Sequence[str] = (),
    layers: int = 0,
    long: bool = False,
) -> OnDevice:
    """Compile the files of a folder for a device, and run rows of codes on its simulator.

    Args:
        features: rows of numbers as hexadecimal bits, for the functions that take numbers.
        defines: macros, such as MODEL_PORTABLE for code without DSP instructions.
        layers: how many numbers of layers there are, to measure each layer by itself.
        long: whether a row may take more than `LONG_RUN` instructions.
    """
    if device.missing:
        raise ConfigError(f"export: {device.missing} is not installed, and the check needs it")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        text = f'#include "{name}.h"\n#include <string.h>\n{device.start}{NUMBERS}'
        if layers:
            write_text(place / "marks.h", "void mark_layer(int number);\n")
            text = f'#include "marks.h"\n{text}'
        write_text(place / "main.c", text + row_main(name, program, rows, features, device, layers))
        macros = [f"-D{each}" for each in defines]
        if layers:
            macros += ["-include", str(place / "marks.h"), "-DMODEL_LAYER=mark_layer"]
        flash, stack = compiled_sizes(device, folder, name, place, macros)
        run_tool([*compiler_call(device, folder), *macros, "-c", str(place / "main.c"),
                  "-o", str(place / "main.o")])  # fmt: skip
        slow = 0 if long or device.memory is not None else SLOW
        shown = run_tool(_linked(device, place, slow), folder=place)
    return _results(shown, len(rows), (device.per_tick / 2**slow, layers), program, (flash, stack))


def compiler_call(device: Device, folder: Path) -> list[str]:
    """The compiler of a device with its flags."""
    return [device.compiler, *WARNINGS, *device.flags, OPTIMISE, f"-I{folder}"]


def compiled_sizes(
    device: Device, folder: Path, name: str, place: Path, macros: Sequence[str] = ()
) -> tuple[int, int]:
    """Compile the source of a folder to ``model.o`` in a place; return bytes of flash and stack."""
    known = _known_bytes(folder, name)
    if device.memory and max(known) >= 2**15:  # its compiler has sizes of 16 bits
        _refuse_short(known, device.memory, "at least ")
    model = [str(folder / f"{name}.c"), "-o", str(place / "model.o")]
    run_tool([*compiler_call(device, folder), *macros, "-fstack-usage", "-c", *model])
    stack = _stack_bytes((place / "model.su").read_text(), name)
    return _section_bytes(device, place / "model.o"), stack


def compile_model(device: Device, folder: Path, name: str) -> tuple[int, int]:
    """Return bytes of flash and stack of a source, by the compiler of a device alone."""
    with tempfile.TemporaryDirectory() as scratch:
        return compiled_sizes(device, folder, name, Path(scratch))


def _linked(device: Device, place: Path, slow: int) -> list[str]:
    """Link a program for a device; return the command that simulates it."""
    image, link = str(place / "image.elf"), ["-Wl,--gc-sections"]
    objects = [str(place / each) for each in ("main.o", "model.o")]
    if device.origin:
        write_text(place / "all.ld", LINKER.format(origin=device.origin, memory=MEMORY))
        link += ["-nostartfiles", "-T", str(place / "all.ld")]
    if device.memory:
        _refuse_short(_linked_bytes(device, objects), device.memory)
    run_tool([device.compiler, *device.flags, *link, *objects, "-o", image])
    if device.memory is not None:
        return ["sh", "-c", 'exec "$0" "$@" 2>&1', *device.simulator, image]
    return [
        *device.simulator, "-display", "none", "-monitor", "none", "-serial", "none",
        "-semihosting-config", "enable=on,target=native", "-icount", f"shift={slow}",
        "-kernel", image,
    ]  # fmt: skip


class TooSmallDeviceError(GraphError):
    """A network that does not fit on a device.

    Args:
        what: ``flash`` or ``memory``.
    """

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


def _linked_bytes(device: Device, objects: Sequence[str]) -> tuple[int, int]:
    """Bytes of flash and memory of a program."""
    kinds: Counter[str] = Counter()
    for each in objects:
        for section, size in _sections(device, Path(each)).items():
            kinds[section.split(".")[1]] += size
    data = kinds["data"] + kinds["rodata"]
    return kinds["text"] + kinds["progmem"] + data, data + kinds["bss"] + STACK


def _refuse_short(needs: tuple[int, int], memory: tuple[int, int], least: str = "") -> None:
    """Refuse to need more flash or memory than there is."""
    for word, need, there in zip(("flash", "memory"), needs, memory, strict=True):
        if need > there:
            raise TooSmallDeviceError(
                word,
                f"does not fit: it needs {least}{need:,} bytes of {word}, {need - there:,} more "
                f"than the {there:,} that there are",
            )


def _known_bytes(folder: Path, name: str) -> tuple[int, int]:
    """Bytes of the tables of a source, and of its scratch memory."""
    tables = TABLE.findall((folder / f"{name}.c").read_text())
    scratch = (folder / f"{name}.h").read_text().partition("_SCRATCH_BYTES ")[2].split()[0]
    return sum(int(bits) // 8 * int(count) for bits, count in tables), int(scratch)


def _results(
    shown: str, count: int, ticks: tuple[float, int], program: IntegerProgram, size: tuple[int, int]
) -> OnDevice:
    """Return what a simulated device has shown: codes of rows, ticks, layers, and scores."""
    width, (per_tick, layers) = sum(value.size for value in edges(program)[1]), ticks
    found = [int(word, 16) for word in re.findall(r"[0-9a-f]{8}", shown)]
    if len(found) <= count * width:
        back = len(found) // width
        raise GraphError(f"export: {back} of {count} rows came back from the simulator")
    words = np.array(found[: count * width], np.int64).reshape(count, width)
    (all_ticks, *rest) = found[count * width :]
    own, marking = rest[:layers], rest[layers : layers + 1]
    spent = tuple(max(0, int((each - marking[0]) * per_tick / count)) for each in own)
    scores = rest[layers + 1 if layers else 0 :]
    parts = [np.full(value.size, value.limits[0] >= 0) for value in edges(program)[1]]
    signed = np.where(words >= 2**31, words - 2**32, words)
    codes = np.where(np.concatenate(parts), words, signed)
    lines = [_plain(scores[at : at + width + 1]) for at in range(0, len(scores), width + 1)]
    return OnDevice(codes, int(all_ticks * per_tick / count), *size, lines, spent)


def _plain(row: Sequence[int]) -> str:
    """Bits of scores and a class as the test program on a host prints them."""
    *bits, best = row
    return " ".join([*(f"{bit:x}" for bit in bits), str(best - 2**32 * (best >= 2**31))])


def _stack_bytes(text: str, name: str) -> int:
    """The stack of the deepest calls: entry, layers, the largest of them, and what it calls."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        function = line.split("\t")[0].rpartition(":")[2].partition(".")[0]
        sizes[function] = max(sizes.get(function, 0), int(line.split("\t")[1]))

    def most(start: str) -> int:
        return max((size for each, size in sizes.items() if each.startswith(start)), default=0)

    called = max(most("window_") + most("run_i") + most("run_u"), most("dot"))
    return sizes.get(f"{name}_predict", 0) + sizes.get("run", 0) + most("layer") + called


def _section_bytes(device: Device, image: Path) -> int:
    """Bytes of code and constants of the functions that take codes."""
    return sum(
        size
        for section, size in _sections(device, image).items()
        if re.match(r"\.(text|rodata|data|srodata|sdata|progmem)", section)
        and not re.search(r"_float|_class|run_numbers|_code\b", section)
    )


def _sections(device: Device, image: Path) -> dict[str, int]:
    """Bytes of the sections of a file."""
    shown = run_tool([device.size_tool, "-A", str(image)])
    found = re.findall(r"^(\.\S+)\s+(\d+)", shown, re.MULTILINE)
    return {section: int(size) for section, size in found}
