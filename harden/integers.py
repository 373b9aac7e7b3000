"""Random networks as integer programs: simulation, engine and exports give the same bits."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from chop.errors import ChopError, ConfigError, GraphError
from chop.export import export
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, IntegerProgram, LoweringError, analyse, lower
from harden.common import Row, share
from harden.integer_examples import compared
from harden.integer_networks import integer_network
from harden.integer_programs import RAN, REFUSED, fuzz_programs
from harden.networks import quiet

NETWORKS, PROGRAMS = 2000, 500
EXPORTED_EVERY = 1
"""Of so many networks one is written in every form, compiled and run."""
PROCESSES, FEW = 2, 50
"""So many at a time, unless there are few networks to try."""
Found = tuple[Counter[str], list[str], list[str]]
"""What was seen of networks, which of them differ, and which of their exports fail."""
BATCHES = (1, 7, 9)
NO_FORM = ("which ONNX has no operator for", "which this form has no")
"""What an export may say of a program that its form cannot hold."""


def run(scale: float) -> Iterator[Row]:
    """So many networks that have integers; those that have none are counted beside them."""
    torch.set_num_threads(1)
    seen, wrong, bad_exports = networks(share(NETWORKS, scale))
    figure = f"{seen['exact']} exact in float32, {seen['refused']} more refused"
    yield Row("integers", "networks, simulated and in integers", seen["lowered"], len(wrong),
              tuple(wrong), figure)  # fmt: skip
    results = list(compared(scale))
    failures = tuple(failure for _, found in results for failure in found)
    yield Row("integers", "test rows of example networks", sum(count for count, _ in results),
              len(failures), failures, f"{len(results)} networks and modes")  # fmt: skip
    yield Row("integers", "exports of them, run", seen["exported"], len(bad_exports),
              tuple(bad_exports), f"{seen['no form']} more refused")  # fmt: skip

    yield fuzz_row(share(PROGRAMS, scale))


def fuzz_row(count: int) -> Row:
    """Stored programs with changes, loaded, run and compiled with sanitisers."""
    ends, lost = fuzz_programs(count)
    figure = f"{ends[REFUSED]} refused, {ends[RAN]} ran as C with sanitisers"
    return Row("integers", "stored programs, changed", count, len(lost), tuple(lost), figure)


def networks(wanted: int) -> Found:
    """What is found of so many networks that have integers."""
    seen, wrong, bad_exports, seed = Counter[str](), list[str](), list[str](), 0
    with ProcessPoolExecutor(PROCESSES, get_context("fork")) as pool:
        at_once = map if wanted < FEW else pool.map
        while missing := wanted - seen["lowered"]:
            for some, differ, fail in at_once(one_network, range(seed, seed + missing)):
                seen += some
                wrong += differ
                bad_exports += fail
            seed += missing
    return seen, wrong, bad_exports


def one_network(seed: int) -> Found:
    """What is found of the network of a seed."""
    seen, wrong, bad_exports = Counter[str](), list[str](), list[str]()
    with quiet(), tempfile.TemporaryDirectory() as folder:
        program = tried(seed, seen, wrong)
        if program is not None and seed % EXPORTED_EVERY == 0:
            bad_exports += exported(program, seed, Path(folder), seen)
    return seen, wrong, bad_exports


def tried(seed: int, seen: Counter[str], wrong: list[str]) -> IntegerProgram | None:
    """The program of a network, compared with the simulation; None if it has none."""
    try:
        graph, x = integer_network(seed)
    except ConfigError:  # nothing in it can be rounded
        return None
    try:
        program = lower(graph)
    except LoweringError:
        seen["refused"] += 1
        return None
    seen["lowered"] += 1
    exact = analyse(program).exact("float32")
    seen["exact"] += exact
    wrong += differences(graph, program, x, seed, exact)
    return program


def differences(
    graph: MaseGraph, program: IntegerProgram, x: Tensor, seed: int, exact: bool
) -> list[str]:
    """What does not compute the integers of a program."""
    integers = Engine(program, "int64")(x)[0]
    found = [] if torch.equal(Engine(program)(x)[0], integers) else [f"seed {seed}: fast engine"]
    for size in BATCHES if exact else ():
        with torch.no_grad():
            parts = [graph.model(part.clone()) for part in torch.split(x, size)]
        if not torch.equal(torch.cat(parts).double(), integers):
            found.append(f"seed {seed}: simulation in batches of {size}")
            break
    return found


def forms() -> list[str]:
    """The forms that can be checked on this machine."""
    there = {"c": shutil.which("cc"), "onnx": find_spec("onnxruntime"), "qonnx": find_spec("qonnx")}
    return ["integer", *(form for form, found in there.items() if found)]


def exported(program: IntegerProgram, seed: int, folder: Path, seen: Counter[str]) -> list[str]:
    """Exports of a program that differ from the engine, which each of them finds out itself."""
    failures = []
    for form in forms():
        try:
            export(program, form, folder / form, rows=20)
            seen["exported"] += 1
        except ChopError as error:
            if isinstance(error, GraphError) and any(words in str(error) for words in NO_FORM):
                seen["no form"] += 1
            else:
                failures.append(f"seed {seed}: {form}: {error}")
        except Exception as error:  # noqa: BLE001  # a raw error is a loss, and the rest is tried
            failures.append(f"seed {seed}: {form}: {type(error).__name__}: {error}")
    seen["exported"] += len(failures)
    return failures
