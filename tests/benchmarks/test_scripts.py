"""The smallest case of every benchmark: a script that crashes on the present code fails here.

A benchmark is run as its user runs it, with options and without ``--save``, but with constants that
make it small. It runs in a forked process, and so do the Pythons that it starts.
"""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from warm import Done, WarmRun, be_python

FOLDER = Path(__file__).parents[2] / "benchmarks"
RESULTS = FOLDER / "results"


class Small(NamedTuple):
    """How to run a script in a moment.

    Attributes:
        row: an expression for what it prints last, with figures that only a whole run has.
        arguments: options; ``{folder}`` is an empty folder.
        constants: values for names of the script, or of another module if that is given.
        needs: programs without which there is nothing to run.
    """

    row: str
    arguments: str = "--quick"
    constants: Mapping[str, Any] = MappingProxyType({})
    needs: tuple[str, ...] = ()


SMALLEST = {
    "bench_card": Small(
        r"jsc-tiny on jsc-sim +\| 1 +\| 4-bit weights +\| 0\.\d+ .*\| yes +\| 2000 ", needs=("cc",)
    ),
    "bench_c": Small(
        r"jsc-mlp +cortex-m4 +portable +\d",
        "",
        {"NETWORKS": ("jsc-mlp",), "BOARDS": ("cortex-m4",)},
        ("arm-none-eabi-gcc", "qemu-system-arm"),
    ),
    "bench_networks": Small(
        r"jsc-tiny +20 +100 % +yes +yes +yes +yes .*\n1 of 1 leave",
        "--quick --only jsc-tiny",
        needs=("cc",),
    ),
    "bench_few_bits": Small(
        r"jsc-tiny on jsc-sim +4-bit weights, as by default +0\.\d+ ",
        "--quick --rows 500 --calibration 64",
    ),
    "bench_format_lab": Small(r"mxint8 \w+ rotate: loses .*calibration passes"),
    "bench_pictures": Small(
        r"median ratio \d\.\d+ of 1 turns of 2 batches", constants={"BATCH": 4, "AUGMENT": "flip"}
    ),
    "bench_pitch": Small(r"8 bits, whole +\d|not run: torchcrepe"),
    "bench_engines": Small(
        r"lost: trials after half of 4 workers were killed +\| +16 ",
        constants={"QUICK_TRIALS": (20, 8)},
    ),
    "bench_compiled": Small(
        r"training, encoder of 1 layers, \(1, 4, 16\) +\d.*\n.*\"ratios\"",
        "--rounds 1",
        {
            "COMPILER": "eager", "BATCHES": (8,), "ENOUGH": 1e-4,
            "IMAGES": (2, 3, 16, 16), "SEQUENCES": (1, 4, 16), "LAYERS": 1,
        },
    ),
    "bench_counts": Small(
        r"attention fused .*\n\n.*Unexplained differences: 0\.", constants={"BLOCKS": ((64, 8, 2),)}
    ),
    "bench_data": Small(r"ratio +\d", constants={"ROWS": 80_000}),
    "bench_formats": Small(r"block_log +\d"),
    "bench_growth": Small(
        r"report .*\d MB .*\n(.*\n)*load average",
        constants={"QUICK_SIZES": (1, 2, 4), "BARE": "sum(range(9))"},
    ),
    "bench_large": Small(
        r"saved +\| +\d(.*\n)*.*trials in passes",
        constants={
            "ROWS": 4, "TRIALS": 4, "WIDTHS": (8,),
            "SMALL": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "intermediate_size": 16, "vocab_size": 50},
        },
    ),
    "bench_learned": Small(
        r"chop normal +0 .*\n(.*\n)*load average",
        constants={
            "QUICK": {
                "cycles": 1, "snapshots": 1, "first_epochs": 1, "epochs": 1, "float_epochs": 1,
                "plots": False, "teacher": {"epochs": 1, "hidden": [8]},
                "polish": {"points": 1, "rounds": 1, "epochs": 1, "rows": 64},
            },
            "ROUNDS": 2, "STEPS": 2, "TIMED_EPOCHS": 1,
        },
    ),
    "bench_learned_cnn": Small(
        r"jsc-tiny +\| 1 +\| 9000 +\| 2 +\| uniform 4 +\| \d",
        "--quick --cycles 2 --epochs 1 --widths 4 --rows 9000",
    ),
    "bench_lowering": Small(
        r"C / engine, jsc-mlp, 64 rows +\d",
        constants={
            "CHAINS": (4,), "ROWS": 64, "IMAGES": (1, 3, 8, 8),
            "chop.models.vision.vgg7.STAGES": (4, 4, 4),
        },
        needs=("cc",),
    ),
    "bench_passes": Small(r"deepcopy_mase_graph +\d", constants={"SIZES": (10, 100, 120)}),
    "bench_quantized_ops": Small(r"evaluation +chop integer +best +\d", constants={"BATCH": 16}),
    "bench_repeats": Small(
        r"jsc-tiny-588 .* nsgaii .*\n2 seeds",
        constants={"LAYERS": {"widths-25": (2, 12)}, "JSC_TRIALS": 12},
    ),
    "bench_rivals": Small(
        r"hgq2, seed 0, rate 0\.02: 0\.\d",
        "--hgq-python {python} --nets {folder} --seeds 0",
        {"MODULES": {"hgq2": "numpy", "pquant": "pquant"}},
    ),
    "bench_stream": Small(
        r"tiny +4 +3 \(2 real\) +\d", needs=("yosys", "verilator"),
    ),
    "bench_rtl": Small(
        r"\"rows\": \d.* \"estimate / xcup\": \d",
        "--quick --only estimate",
        {
            "SIMULATED": ("estimate",),
            "rtl_networks.FLOAT_EPOCHS": 1, "rtl_networks.QUANTISED_EPOCHS": 1,
        },
        needs=("yosys", "verilator"),
    ),
    "bench_search": Small(
        r"d: two separate processes / one +\d",
        constants={
            "WIDTHS": [8], "ROWS": 64, "IMAGES": 4, "QUICK_TRIALS": (12, 2, 4), "QUICK_WINDOW": 0.1,
            "SETTLE": (0.0, 0.0),
        },
    ),
    "bench_startup": Small(r"a mistake +\d", constants={"QUICK_ROUNDS": 1}),
    "bench_studies": Small(r"8192 \| .*\d", constants={"SETTINGS": ((8192, 1),)}),
    "bench_text": Small(
        r"the grammar itself, perplexity +\| \d",
        constants={
            name: {"batch_size": 512, "learning_rate": 1e-2, "max_epochs": 1}
            for name in ("ENCODER", "DECODER")
        },
    ),
    "bench_training": Small(
        r"jsc-tiny +\d.*\npeak memory",
        constants={"ROWS": 5_120, "VALIDATION_ROWS": 2_560, "MODELS": ("jsc-tiny",)},
    ),
    "bench_zoo": Small(r"gradients reach all +\| 1 of 1", "--quick --only mlp"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("bench_*.py")))
def test_the_smallest_case_of_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    assert name in SMALLEST, f"{name}.py has no smallest case in {Path(__file__).name}"
    row, stated, constants, needs = SMALLEST[name]
    missing = [program for program in needs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    stored = {path.name: path.stat().st_size for path in RESULTS.iterdir()}
    if name == "bench_rivals":
        write_rival(tmp_path)
    arguments = stated.format(folder=tmp_path, python=sys.executable).split()
    patch = f"from test_scripts import be_script; be_script({name!r}, {dict(constants)!r})"
    done = Done(WarmRun(*arguments, cwd=tmp_path, patch=patch))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(row, done.stdout), done.stdout
    assert stored == {path.name: path.stat().st_size for path in RESULTS.iterdir()}


def test_every_smallest_case_is_that_of_a_benchmark() -> None:
    assert {f"{name}.py" for name in SMALLEST} == {path.name for path in FOLDER.glob("bench_*.py")}


def write_rival(folder: Path) -> None:
    """Writes a network as another tool would: its scores are its biases."""
    sys.path.insert(0, str(FOLDER))
    try:
        from rivals_io import Exported, layer_of, write_nets
    finally:
        sys.path.remove(str(FOLDER))
    bias = np.arange(5.0)
    bits = (np.ones(16), np.ones(16), np.ones(16))
    layer = layer_of(np.eye(5, 16), bias, bits)
    write_nets(folder / "hgq2_0_0.02.npz", [Exported("net", [layer], bias[None])], {"seconds": 1.0})


def be_script(name: str, constants: dict[str, Any]) -> None:
    """Be a benchmark with these constants, in a forked process."""
    multiprocessing.set_start_method("fork", force=True)  # else its workers import everything anew
    subprocess.Popen = ForkedPython  # type: ignore[misc]
    sys.path.insert(0, str(FOLDER))
    script = import_module(name)
    for path, value in constants.items():
        module, _, constant = path.rpartition(".")
        owner = import_module(module or name)
        assert hasattr(owner, constant), f"{path} is not a constant of {name}"
        setattr(owner, constant, value)
    script.main()
    sys.exit()


class ForkedPython(subprocess.Popen[Any]):
    """A Python that a script starts: forked here, since imports take seconds."""

    def __init__(self, command: list[str], **options: Any) -> None:
        if command[0] == sys.executable:
            sys.stdout.flush()
            options["preexec_fn"] = partial(be_child, command[1:])
        super().__init__(command, **options)


def be_child(arguments: list[str]) -> None:
    """Be a Python in the process that would otherwise start it."""
    os.closerange(3, 1024)  # one of them is what the parent waits for until the start is over
    be_python(arguments)
