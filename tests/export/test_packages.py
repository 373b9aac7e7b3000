"""The packages of C build where their tools are, and their examples print a class."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from circuits import needs
from lowering_nets import example

from chop.errors import UnknownNameError
from chop.export import EXPORT_TARGETS, export
from chop.export.c.boards.packages import PACKAGES
from chop.export.c.target import COptions
from chop.lowering import Engine, IntegerProgram, lower
from chop.preprocessing import Preprocessing

ARDUINO = """#pragma once
#include <stddef.h>
#include <stdint.h>
struct Port {
    void begin(long); void setTimeout(long); int available(); float parseFloat(); long parseInt();
    void println(const char *); void println(int);
};
extern Port Serial;
"""


@pytest.fixture(scope="module")
def network() -> IntegerProgram:
    return lower(example("jsc-tiny")[0])


def names() -> Preprocessing:
    ones = (1.0,) * 16
    return Preprocessing("features", (0.0,) * 16, ones, classes=("a", "b", "c", "d", "e"))


@needs("cmake")
def test_cmake_builds_an_example_that_prints_classes(
    network: IntegerProgram, tmp_path: Path
) -> None:
    done = export(
        network, "c", tmp_path / "c", rows=20, options=COptions(package="cmake", name="jets")
    )
    build = done.folder / "build"
    for command in (["-S", str(done.folder), "-B", str(build)], ["--build", str(build)]):
        subprocess.run(["cmake", *command], check=True, capture_output=True)
    rows = torch.randn(5, 16)
    text = "\n".join(" ".join(f"{each:.9g}" for each in row.tolist()) for row in rows)
    shown = subprocess.run([build / "jets_example"], input=text, text=True, capture_output=True)
    engine = Engine(network)
    wanted = engine.numbers(engine.run(engine.quantise({"x": rows})))[0].argmax(1)
    assert shown.stdout.split() == [str(each) for each in wanted.tolist()]
    assert set(done.manifest["files"]) == {
        "CMakeLists.txt", "jets.c", "jets.h", "jets_example.c", "jets_test.c"
    }  # fmt: skip


@pytest.mark.parametrize("package", ["arduino", "platformio"])
def test_sketches_compile(package: str, network: IntegerProgram, tmp_path: Path) -> None:
    options = COptions(package=package, preprocessing=names())
    EXPORT_TARGETS["c"](network, tmp_path, options)
    (tmp_path / "Arduino.h").write_text(ARDUINO)
    place = {"arduino": "examples/predict/predict.ino", "platformio": "src/main.cpp"}[package]
    head = ["-include", str(tmp_path / "Arduino.h"), f"-I{tmp_path}", "-Wall", "-Werror"]
    sources = options.sources(tmp_path)
    subprocess.run(
        ["g++", "-fsyntax-only", *head, f"-I{sources}", "-x", "c++", str(tmp_path / place)],
        check=True,
    )
    assert "model_class_names[best]" in (tmp_path / place).read_text()
    if shutil.which("avr-gcc"):
        flags = ["-mmcu=atmega328p", "-std=gnu11", "-Os", "-Wall", "-Werror", "-c", "-o"]
        subprocess.run(
            ["avr-gcc", *flags, str(tmp_path / "a.o"), str(sources / "model.c")], check=True
        )


@pytest.mark.parametrize(
    ("package", "files"),
    [
        ("arduino", {"library.properties", "src/model.c", "src/model.h", "extras/model_test.c"}),
        ("zephyr", {"CMakeLists.txt", "prj.conf", "src/main.c", "src/model.c", "src/model.h"}),
        ("platformio", {"platformio.ini", "src/main.cpp", "lib/model/library.json",
                        "lib/model/model.c", "lib/model/model.h"}),
    ],
)  # fmt: skip
def test_files_are_where_tools_look_for_them(
    package: str, files: set[str], network: IntegerProgram, tmp_path: Path
) -> None:
    EXPORT_TARGETS["c"](network, tmp_path, COptions(package=package))
    found = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert files <= found
    assert not any("{" in (tmp_path / each).read_text().split("\n")[0] for each in files
                   if not each.endswith(".json"))  # fmt: skip


def test_an_unknown_package() -> None:
    with pytest.raises(UnknownNameError, match="unknown package 'ardiuno': did you mean 'arduino'"):
        COptions(package="ardiuno")


def test_the_option_names_all_packages() -> None:
    from chop.verbs.export import ExportRequest

    option = ExportRequest.__annotations__["package"].__metadata__[0]
    assert option.values == tuple(PACKAGES)
