"""Help, version and lists answer at once: nothing heavy is imported for them."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "lightning", "optuna", "matplotlib", "numpy", "pydantic")
ASK = """
import contextlib, io, sys
from chop.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    try:
        code = main(sys.argv[1:])
    except SystemExit as end:
        code = end.code
print(code, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported_by(*arguments: str) -> tuple[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], capture_output=True, text=True, check=True
    )
    code, *modules = done.stdout.split()
    return code, set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"], ["-V"], ["info"], ["info", "formats"], ["info", "passes", "prune"],
        ["schema"], ["completion", "bash"],
    ],
)  # fmt: skip
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    code, modules = imported_by(*arguments)
    assert code in ("0", "None")
    assert modules.isdisjoint(HEAVY)


def test_a_mistake_is_told_before_torch_is_imported() -> None:
    code, modules = imported_by("train", "jsc-tniy", "jsc")
    assert code == "2"
    assert "torch" not in modules


def test_importing_the_package_imports_nothing_heavy() -> None:
    ask = "import sys, chop; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint(HEAVY)


def test_testing_does_without_what_only_training_needs(tmp_path: Path) -> None:
    place = ["--project-dir", str(tmp_path), "--project", "p"]
    code, modules = imported_by("test", "jsc-tiny", "jsc-sim", *place)
    assert code == "0"
    assert "torch" in modules
    assert modules.isdisjoint({"lightning", "optuna", "matplotlib"})
    assert len(list(tmp_path.rglob("events*"))) == 1  # for TensorBoard
