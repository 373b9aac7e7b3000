"""Small devices: what C takes on them, and the same rows run on simulated ones.

Instructions are counted by a simulator that gives each one the same time, so that a timer of the
device counts them.
"""

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop.errors import ConfigError, GraphError
from chop.export.c.code import value_type
from chop.export.tools import run_tool
from chop.files import write_text
from chop.lowering.program import IntegerProgram, Value

MEMORY = "4M"
OPTIMISE = "-O2"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-ffunction-sections", "-fdata-sections")

START_ARM = """\
extern unsigned char _stack[];
int main(void);
void show(const char *text);
uint32_t ticks(void);
void reset(void);
static int call(int what, const void *with) {
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
void show(const char *text) { call(4, text); }
#define TICK ((volatile uint32_t *)0xe000e010)
void reset(void) {
    TICK[1] = 0xffffff;
    TICK[2] = 0;
    TICK[0] = 5;
    main();
    call(0x18, (const void *)0x20026);
    for (;;) {}
}
uint32_t ticks(void) { return 0xffffff - TICK[2]; }
__attribute__((section(".first"), used)) static const void *const vectors[] = {_stack, reset};
"""

START_RISCV = """\
int main(void);
void show(const char *text);
uint32_t ticks(void);
static int call(int what, const void *with) {
    register int a0 __asm__("a0") = what;
    register const void *a1 __asm__("a1") = with;
    __asm__ volatile(".option push\\n.option norvc\\n.balign 16\\nslli x0, x0, 0x1f\\nebreak\\n"
                     "srai x0, x0, 7\\n.option pop" : "+r"(a0) : "r"(a1) : "memory");
    return a0;
}
void show(const char *text) { call(4, text); }
void begin(void);
void begin(void) {
    main();
    call(0x18, (const void *)0x20026);
    for (;;) {}
}
uint32_t ticks(void) {
    register uint32_t count __asm__("a0");
    __asm__ volatile(".word 0xb0202573" : "=r"(count)); /* csrr a0, minstret */
    return count & 0xffffff;
}
__asm__(".section .first,\\"ax\\"\\n.globl _start\\n_start:\\nla sp, _stack\\ntail begin\\n.text");
"""

LINKER = """\
MEMORY {{ all (rwx) : ORIGIN = {origin}, LENGTH = {memory} }}
SECTIONS {{
    .text : {{ KEEP(*(.first)) *(.text*) *(.rodata* .srodata*) }} > all
    .data : {{ *(.data* .sdata*) }} > all
    .bss : {{ *(.bss* .sbss* COMMON) }} > all
    _stack = ORIGIN(all) + LENGTH(all);
}}
"""

NUMBERS = """\
static void show_hex(uint32_t x) {
    char text[10];
    for (int i = 0; i < 8; i++) text[i] = "0123456789abcdef"[(x >> (28 - 4 * i)) & 15];
    text[8] = ' ';
    text[9] = 0;
    show(text);
}
"""


@dataclass(frozen=True)
class Device:
    """A processor: its compiler, and a machine that simulates it."""

    compiler: str
    flags: tuple[str, ...]
    simulator: tuple[str, ...]
    origin: str
    per_tick: int
    """Instructions of a tick of its timer."""
    start: str = START_ARM

    @property
    def missing(self) -> str | None:
        """The program that is not installed, if any."""
        tools = (self.compiler, *self.simulator[:1])
        return next((tool for tool in tools if shutil.which(tool) is None), None)


def _arm(core: str, board: str, origin: str, per_tick: int) -> Device:
    flags = (f"-mcpu={core}", "-mthumb", "-mfloat-abi=soft")
    return Device("arm-none-eabi-gcc", flags, ("qemu-system-arm", "-M", board), origin, per_tick)


DEVICES = {
    "cortex-m0plus": _arm("cortex-m0plus", "mps2-an385", "0x00000000", 40),
    "cortex-m3": _arm("cortex-m3", "mps2-an385", "0x00000000", 40),
    "cortex-m4": _arm("cortex-m4", "mps2-an386", "0x00000000", 40),
    "cortex-m33": _arm("cortex-m33", "mps2-an505", "0x10000000", 50),
    "rv32": Device(
        "riscv64-unknown-elf-gcc", ("-march=rv32imac", "-mabi=ilp32", "-mcmodel=medany",
         "-specs=picolibc.specs"),
        ("qemu-system-riscv32", "-M", "virt", "-bios", "none"), "0x80000000", 1, START_RISCV,
    ),
}  # fmt: skip
"""Processors by name. The code of a Cortex-M0+ runs on a Cortex-M3, which knows it, too."""


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


def edges(program: IntegerProgram) -> tuple[list[Value], list[Value]]:
    """The values that a caller gives and gets."""
    values = program.values
    return [each.value for each in program.inputs], [values[name] for name in program.outputs]


def c_array(kind: str, name: str, numbers: Sequence[int]) -> str:
    """An array of constants."""
    return f"static const {kind} {name}[] = {{{', '.join(map(str, numbers))}}};\n"


def row_main(
    name: str, program: IntegerProgram, rows: Sequence[Sequence[int]], features: Sequence[str]
) -> str:
    """A program that runs rows, shows the codes of outputs, and then the ticks of all rows."""
    upper, text, start = name.upper(), "", 0
    inputs, outputs = edges(program)
    given = []
    for place, value in enumerate(inputs):
        numbers = [code for row in rows for code in row[start : start + value.size]]
        text += c_array(value_type(value), f"rows{place}", numbers)
        given.append(f"rows{place} + (uint32_t)row * {value.size}")
        start += value.size
    text += "".join(
        f"static {value_type(value)} output{place}[{value.size}];\n"
        for place, value in enumerate(outputs)
    )
    taken = ", ".join([*given, *(f"output{place}" for place in range(len(outputs)))])
    shows = "".join(
        f"        for (int i = 0; i < {value.size}; i++) show_hex((uint32_t)output{place}[i]);\n"
        for place, value in enumerate(outputs)
    )
    floats = feature_main(name, program, features)
    return f"""{text}static uint64_t scratch[({upper}_SCRATCH_BYTES + 7) / 8];
{floats}int main(void) {{
    uint32_t all = 0;
    for (int row = 0; row < {len(rows)}; row++) {{
        const uint32_t before = ticks();
        {name}_predict({taken}, scratch);
        all += (ticks() - before) & 0xffffff;
{shows}        show("\\n");
    }}
    show_hex(all);
    show("\\n");
    {"feature_rows();" if features else ""}
    return 0;
}}
"""


def feature_main(name: str, program: IntegerProgram, features: Sequence[str]) -> str:
    """A function that runs rows of features, and shows the bits of scores and the class."""
    if not features:
        return ""
    bits = [f"0x{word}" for row in features for word in row.split()]
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
    numbers = f"static const uint32_t given[] = {{{', '.join(bits)}}};\n"
    return f"""{numbers}static float features[{width}], scores[{sum(outs)}];
static void feature_rows(void) {{
    for (int row = 0; row < {len(features)}; row++) {{
        memcpy(features, given + (uint32_t)row * {width}, sizeof features);
        {name}_predict_float({", ".join([*names, *scores])}, scratch);
        for (int i = 0; i < {sum(outs)}; i++) {{
            uint32_t word;
            memcpy(&word, scores + i, 4);
            show_hex(word);
        }}
        show_hex((uint32_t){name}_predict_class({", ".join(names)}, scratch));
        show("\\n");
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
) -> OnDevice:
    """Compile the files of a folder for a device, and run rows of codes on its simulator.

    Args:
        features: rows of numbers as hexadecimal bits, for the functions that take numbers.
        defines: macros, such as MODEL_PORTABLE for code without DSP instructions.
    """
    if device.missing:
        raise ConfigError(f"export: {device.missing} is not installed, and the check needs it")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        text = f'#include "{name}.h"\n#include <string.h>\n{device.start}{NUMBERS}'
        write_text(place / "main.c", text + row_main(name, program, rows, features))
        write_text(place / "all.ld", LINKER.format(origin=device.origin, memory=MEMORY))
        macros = [f"-D{each}" for each in defines]
        common = [device.compiler, *device.flags, OPTIMISE, *WARNINGS, f"-I{folder}", *macros]
        model = [str(folder / f"{name}.c"), "-o", str(place / "model.o")]
        run_tool([*common, "-fstack-usage", "-c", *model])
        run_tool([*common, "-c", str(place / "main.c"), "-o", str(place / "main.o")])
        image = str(place / "image")
        objects = [str(place / each) for each in ("main.o", "model.o")]
        link = ["-nostartfiles", "-Wl,--gc-sections", "-T", str(place / "all.ld")]
        run_tool([device.compiler, *device.flags, *link, *objects, "-o", image])
        flash = _section_bytes(device, place / "model.o")
        stack = _stack_bytes((place / "model.su").read_text(), name)
        shown = run_tool([
            *device.simulator, "-display", "none", "-monitor", "none", "-serial", "none",
            "-semihosting-config", "enable=on,target=native", "-icount", "shift=0",
            "-kernel", image,
        ], folder=place)  # fmt: skip
    return _results(shown.splitlines(), len(rows), device, program, (flash, stack))


def _results(
    shown: list[str], count: int, device: Device, program: IntegerProgram, size: tuple[int, int]
) -> OnDevice:
    """What a simulated device has shown: codes of rows, ticks, and scores."""
    lines, scores = shown[:count], shown[count + 1 :]
    words = np.array([[int(word, 16) for word in line.split()] for line in lines], np.int64)
    if len(words) != count or len(shown) <= count:
        raise GraphError(f"export: {len(words)} of {count} rows came back from the simulator")
    parts = [np.full(value.size, value.limits[0] >= 0) for value in edges(program)[1]]
    signed = np.where(words >= 2**31, words - 2**32, words)
    codes = np.where(np.concatenate(parts), words, signed)
    instructions = int(shown[count], 16) * device.per_tick // count
    return OnDevice(codes, instructions, *size, [_plain(line) for line in scores])


def _plain(line: str) -> str:
    """Bits of scores and a class as the test program on a host prints them."""
    *bits, best = (int(word, 16) for word in line.split())
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
    tool = device.compiler.removesuffix("gcc") + "size"
    shown = run_tool([tool, "-A", str(image)])
    total = 0
    for line in shown.splitlines():
        found = re.match(r"\.(text|rodata|data|srodata|sdata)(\S*)\s+(\d+)", line)
        if found and not re.search(r"_float|_class|run_numbers|_code\b", found[2]):
            total += int(found[3])
    return total
