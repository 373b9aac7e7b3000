"""The target ``c``: the files of a program in C, and their check by a compiler of this machine."""

import shutil
import tempfile
from pathlib import Path

import numpy as np

from chop.errors import ConfigError
from chop.export.c.code import value_type
from chop.export.c.steps import c_source, predict_signature, write
from chop.export.checking import refuse_other_codes
from chop.export.rows import CheckedRows
from chop.export.targets import TargetOptions, WrittenFiles, export_target
from chop.export.tools import run_tool
from chop.files import write_text
from chop.lowering import IntegerProgram

COMPILE = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined")
COMPILE_SAFE = (*COMPILE, "-fno-sanitize-recover=all")


@export_target("c", steps=write)
def write_c(program: IntegerProgram, options: TargetOptions, folder: Path) -> WrittenFiles:
    """C99: one file that needs no library, and a program that runs it on rows of text."""
    file = c_source(program, "A quantised network")
    write_text(folder / "predict.c", file.text)
    write_text(folder / "predict_test.c", row_program(program))
    return WrittenFiles({"reentrant": file.reentrant, "buffer_bytes": file.buffer_bytes})


def row_program(program: IntegerProgram) -> str:
    """C that reads rows of codes as text, and prints the codes of the outputs, a row in a line."""
    values = program.values
    outputs = [values[name] for name in program.outputs]
    sides = [("input", each.value) for each in program.inputs]
    sides += [("output", value) for value in outputs]
    places = [*range(len(program.inputs)), *range(len(outputs))]
    names = [f"{side}{place}" for (side, _), place in zip(sides, places, strict=True)]
    buffers = "\n".join(
        f"static {value_type(value)} {name}[{value.size}];"
        for name, (_, value) in zip(names, sides, strict=True)
    )
    reads = "\n".join(
        f"        for (int i = 0; i < {each.value.size}; i++) {{\n"
        f'            if (scanf("%lld", &code) != 1) return 0;\n'
        f"            input{place}[i] = code;\n        }}"
        for place, each in enumerate(program.inputs)
    )
    prints = "\n".join(
        f"        for (int i = 0; i < {value.size}; i++) "
        f'printf("%lld ", (long long)output{place}[i]);'
        for place, value in enumerate(outputs)
    )
    return (
        f"#include <stdint.h>\n#include <stdio.h>\n\n{predict_signature(program)};\n\n{buffers}\n\n"
        f"int main(void) {{\n    long long code;\n    for (;;) {{\n{reads}\n"
        f'        predict({", ".join(names)});\n{prints}\n        printf("\\n");\n    }}\n}}\n'
    )


@write_c.check
def check_c(folder: Path, rows: CheckedRows) -> str:
    """Compile the files, run them on rows and compare with the engine; what compiled them."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise ConfigError("export: no C compiler 'cc' was found: install one, or give rows=0")
    with tempfile.TemporaryDirectory() as scratch:
        binary = str(Path(scratch) / "predict")
        files = [str(folder / name) for name in ("predict.c", "predict_test.c")]
        run_tool([compiler, *COMPILE_SAFE, *files, "-o", binary])
        text = "\n".join(" ".join(map(str, row)) for row in rows.flat_codes.tolist())
        printed = run_tool([binary], text)
    found = np.array([line.split() for line in printed.splitlines()], dtype=np.int64)
    refuse_other_codes(found, rows.flat_outputs)
    return " ".join(["cc", *COMPILE_SAFE])
