"""The same files for build systems of small devices, each with an example.

The example reads the numbers of a row, or its codes where the functions take no numbers, and
prints the class: its name, where that is known.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chop import __version__
from chop.export.c.code import value_type
from chop.export.c.entries import FloatEntries

if TYPE_CHECKING:
    from chop.export.c.source import CProgram


@dataclass(frozen=True)
class Package:
    """The places of the files of a package, and the files that it adds."""

    sources: str = "."
    """The folder of the header and the source."""
    tests: str = "."
    """The folder of the program that runs rows of text."""
    files: tuple[tuple[str, str], ...] = ()
    """Files with NAME, the sizes of a row and the like in braces."""


READ_STDIN = """\
#include <stdio.h>

#include "{name}.h"

static uint64_t scratch[({upper}_SCRATCH_BYTES + 7) / 8];

int main(void) {{
    static {kind} row[{size}];
    for (;;) {{
        for (int i = 0; i < {size}; i++) {{
            {parsed} number;
            if (scanf("{scan}", &number) != 1) return 0;
            row[i] = ({kind})number;
        }}
{predict}
        printf("{print}\\n", {result});
    }}
}}
"""
READ_SERIAL = """\
/* Send the {size} numbers of a row, with spaces or commas between them, at 115,200 baud. */
{head}#include <{name}.h>

static uint64_t scratch[({upper}_SCRATCH_BYTES + 7) / 8];
static {kind} row[{size}];

void setup() {{
    Serial.begin(115200);
    Serial.setTimeout(60000);
}}

void loop() {{
    if (!Serial.available()) return;
    for (int i = 0; i < {size}; i++) row[i] = ({kind})Serial.{serial}();
{predict}
    Serial.println({result});
}}
"""
READ_CONSOLE = """\
#include <stdlib.h>
#include <zephyr/console/console.h>
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include "{name}.h"

static uint64_t scratch[({upper}_SCRATCH_BYTES + 7) / 8];

int main(void) {{
    static {kind} row[{size}];
    console_getline_init();
    for (;;) {{
        char *text = console_getline();
        for (int i = 0; i < {size}; i++) row[i] = ({kind}){strto};
{predict}
        printk("{print}\\n", {result});
    }}
}}
"""
CMAKE = """\
cmake_minimum_required(VERSION 3.13)
project({name} VERSION {version} LANGUAGES C)

add_library({name} STATIC {name}.c)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({name} PROPERTIES C_STANDARD 99)

add_executable({name}_example {name}_example.c)
target_link_libraries({name}_example PRIVATE {name})
add_executable({name}_test {name}_test.c)
target_link_libraries({name}_test PRIVATE {name})
"""
ZEPHYR = """\
cmake_minimum_required(VERSION 3.20)
find_package(Zephyr REQUIRED HINTS $ENV{{ZEPHYR_BASE}})
project({name})
target_sources(app PRIVATE src/main.c src/{name}.c)
"""
PROPERTIES = """\
name={name}
version={version}
author=chop
maintainer=chop
sentence=A quantised network.
paragraph=Codes or numbers in, codes, scores or a class out; program {checksum}.
category=Data Processing
url=
architectures=*
includes={name}.h
"""
PLATFORMIO = """\
; Other boards: pio boards
[platformio]
default_envs = uno

[env]
framework = arduino
monitor_speed = 115200

[env:uno]
platform = atmelavr
board = uno

[env:pico]
platform = raspberrypi
board = pico
"""
LIBRARY = """\
{{
    "name": "{name}",
    "version": "{version}",
    "description": "A quantised network, program {checksum}"
}}
"""

PACKAGES = {
    "plain": Package(),
    "cmake": Package(files=(("CMakeLists.txt", CMAKE), ("{name}_example.c", READ_STDIN))),
    "arduino": Package(
        "src", "extras",
        (("library.properties", PROPERTIES), ("examples/predict/predict.ino", READ_SERIAL)),
    ),
    "zephyr": Package(
        "src", "tests",
        (("CMakeLists.txt", ZEPHYR), ("src/main.c", READ_CONSOLE),
         ("prj.conf", "CONFIG_CONSOLE_SUBSYS=y\nCONFIG_CONSOLE_GETLINE=y\nCONFIG_FPU=y\n")),
    ),
    "platformio": Package(
        "lib/{name}", "extras",
        (("platformio.ini", PLATFORMIO), ("src/main.cpp", READ_SERIAL),
         ("lib/{name}/library.json", LIBRARY)),
    ),
}  # fmt: skip
"""Packages by name; the first is the default."""


def package_files(
    package: str, made: "CProgram", entries: FloatEntries, name: str, checksum: str
) -> dict[str, str]:
    """Return the texts of the files that a package adds, by their places."""
    words = example_words(made, entries, name) | {
        "name": name, "upper": name.upper(), "version": __version__.partition("+")[0],
        "checksum": checksum,
    }  # fmt: skip
    found = {}
    for place, text in PACKAGES[package].files:
        head = "#include <Arduino.h>\n" if place.endswith(".cpp") else ""
        found[place.format(name=name)] = text.format(**words, head=head)
    return found


def example_words(made: "CProgram", entries: FloatEntries, name: str) -> dict[str, str]:
    """Types and statements of an example: one input of numbers, or of codes."""
    kind = value_type(made.inputs[0]) if entries.missing else "float"
    wide = entries.missing is not None
    scores = made.outputs[0].size
    code = value_type(made.outputs[0])
    if entries.missing:
        call = f"static {code} codes[{scores}];\n{name}_predict(row, codes, scratch);"
        largest = "if (codes[i] > codes[best]) best = i;"
        text = f"{call}\nint best = 0;\nfor (int i = 1; i < {scores}; i++) {largest}"
    else:
        text = f"const int best = {name}_predict_class(row, scratch);"
    result, shown = ("best", "%d")
    if entries.missing is None and entries.classes:
        result, shown = f"{name}_class_names[best]", "%s"
    return {
        "kind": kind, "size": str(made.inputs[0].size), "parsed": "long" if wide else "float",
        "scan": "%ld" if wide else "%f", "serial": "parseInt" if wide else "parseFloat",
        "strto": "strtol(text, &text, 10)" if wide else "strtof(text, &text)",
        "predict": "\n".join(f"        {line}" for line in text.splitlines()),
        "result": result, "print": shown,
    }  # fmt: skip
