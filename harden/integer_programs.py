"""Stored integer programs, changed at random: refused in one line, or run without a report.

What is loaded runs in the engine and as C that is built with sanitisers, and both give the same.
"""

import copy
import json
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chop.errors import ChopError, ConfigError
from chop.export import export
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import (
    Engine,
    IntegerProgram,
    LoweringError,
    load_program,
    lower,
    save_program,
)
from chop.lowering.program import STEPS, Step, Value, own_fields
from chop.lowering.ranges import bounds
from chop.lowering.shapes import check_value, shape_after
from chop.lowering.stored import ARRAYS, PROGRAM
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from harden.integer_networks import integer_network
from harden.networks import quiet

Dice = random.Random
ROWS = 5
SANITISED = ("-std=c99", "-O0", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
NUMBERS = (-(2**63), -(2**62), -(2**31), -9, -1, 0, 1, 2, 5, 64, 2**16, 2**31, 2**62, 2**63 - 1)
OTHERS: tuple[Any, ...] = (None, True, 0.5, "", "x", "*/ 0", "\ud800", [], {}, 10**30, [1], [[1]])
NETWORKS = 12
REFUSED, RAN = "refused", "ran"


class Embedded(nn.Module):
    """Words that are looked up, and a matrix product of two values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(7, 4), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.words(x)
        result: Tensor = self.last(torch.matmul(y, y.transpose(1, 2)))
        return result


def embedded() -> IntegerProgram:
    """The program of a network that looks words up."""
    torch.manual_seed(0)
    config = {"name": "integer"} | {
        f"{role}_{field}": bits
        for role in ("data_in", "weight", "bias")
        for field, bits in (("width", 6), ("frac_width", 3))
    }
    words = {"name": "integer", "weight_width": 6, "weight_frac_width": 3}
    rules = {"by": "type", "linear": {"config": config}, "embedding": {"config": words}}
    graph, _ = init_metadata_analysis_pass(MaseGraph(Embedded().eval()))
    words_in = {"x": torch.zeros((2, 3), dtype=torch.int64)}
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": words_in})
    return lower(quantize_transform_pass(graph, rules)[0])


@cache
def programs(count: int) -> list[IntegerProgram]:
    """So many programs, of different kinds of steps first."""
    found, seed = [embedded()], 0
    kinds = {type(step) for step in found[0].steps}
    while len(found) < count:
        try:
            program = lower(integer_network(seed)[0])
        except (ConfigError, LoweringError):
            program = None
        seed += 1
        new = set() if program is None else {type(step) for step in program.steps} - kinds
        if program is not None and (new or len(kinds) == len(STEPS)):
            found.append(program)
            kinds |= new
    return found


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a record with a key or index of it."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


def change_record(dice: Dice, record: Any, arrays: dict[str, Tensor]) -> None:
    """One thing in the JSON of a program becomes another."""
    where, key = dice.choice(list(places(record)))
    old = where[key]
    if type(old) is int and dice.random() < 0.7:
        where[key] = dice.choice([old + 1, old - 1, -old, 2 * old, 8 * old, *NUMBERS])
    elif isinstance(old, str) and dice.random() < 0.7:
        texts = [holder[at] for holder, at in places(record) if isinstance(holder[at], str)]
        where[key] = dice.choice(texts)
    elif isinstance(old, list) and old and dice.random() < 0.7:
        some = dice.choice([old[1:], old[:-1], old * 2, old[::-1], [*old, copy.deepcopy(old[0])]])
        where[key] = some
    else:
        where[key] = dice.choice(OTHERS)


def change_array(dice: Dice, record: Any, arrays: dict[str, Tensor]) -> None:
    """One array has other numbers, or another shape or type."""
    key = dice.choice(sorted(arrays))
    arrays[key] = other_array(dice, arrays[key])


def other_array(dice: Dice, array: Tensor) -> Tensor:
    """An array with other numbers, or of another shape or type."""
    array = array.clone()
    how = dice.randrange(8)
    if how < 4 and array.numel():
        flat, place = array.reshape(-1), dice.randrange(array.numel())
        old = int(flat[place])
        flat[place] = dice.choice([max(old - 1, -(2**63)), min(old + 1, 2**62), ~old, *NUMBERS])
        return flat.reshape(array.shape)
    if how == 4:
        return array + dice.choice([-1, 1, 100])
    if how == 5:
        return array.to(dice.choice([torch.int32, torch.float64, torch.uint8]))
    shapes = (array.reshape(-1), array[None], array.T.contiguous(), torch.cat([array[None]] * 2))
    parts = (array[:0], array[:-1]) if array.dim() else (array[None],)
    other: Tensor = dice.choice([*shapes, *parts])
    return other.clone()


def change_step(dice: Dice, program: IntegerProgram) -> IntegerProgram:
    """A step or an input is otherwise, and ranges are made to follow from it, as liars would."""
    chosen = dice.randrange(len(program.steps) + len(program.inputs)) - len(program.inputs)
    if chosen < 0:
        inputs = list(program.inputs)
        each = inputs[chosen]
        inputs[chosen] = replace(each, value=other_value(dice, each.value))
        return repaired(replace(program, inputs=tuple(inputs)), dice)
    steps = list(program.steps)
    step = steps[chosen]
    names = [*own_fields(type(step)), "sources", "out", "out"]
    name = dice.choice(names)
    old = getattr(step, name)
    steps[chosen] = replace(step, **{name: other_field(dice, old, list(program.values))})
    return repaired(replace(program, steps=tuple(steps)), dice)


def other_value(dice: Dice, value: Value) -> Value:
    """A value that is otherwise in one field."""
    name = dice.choice([field.name for field in fields(Value)])
    return replace(value, **{name: other_field(dice, getattr(value, name), [])})


def other_field(dice: Dice, old: Any, names: list[str]) -> Any:
    """A field of a step that may be of the right type."""
    match old:
        case np.ndarray():
            return other_array(dice, torch.from_numpy(np.array(old))).numpy()
        case Value():
            return other_value(dice, old)
        case int():
            return dice.choice([old + 1, old - 1, -old, *NUMBERS])
        case tuple() if old:
            items = list(old)
            place = dice.randrange(len(items))
            items[place] = other_field(dice, items[place], names)
            return tuple(dice.choice([items, items, items, items[1:], items * 2]))
        case str() if names:
            return dice.choice([*names, "half_up", "half_even", "wrap", "saturate", "max", "sum"])
    return dice.choice(OTHERS)


def repaired(program: IntegerProgram, dice: Dice) -> IntegerProgram:
    """The program with the ranges, and perhaps the shapes, that follow from its steps."""
    values = {each.value.name: each.value for each in program.inputs}
    steps: list[Step] = []
    shapes_too = dice.random() < 0.5
    for step in program.steps:
        try:
            sources = [values[name] for name in step.sources]
            if shapes_too:
                shape = tuple(map(int, shape_after(step, *sources)))
                step = replace(step, out=replace(step.out, shape=shape))
            check_value(step.out)  # before anything of its size is made
            low, high = (np.asarray(side, np.int64) for side in bounds(step, *sources))
            step = replace(step, out=replace(step.out, low=low, high=high))
        except Exception:  # noqa: BLE001  (what cannot be made to follow stays as it is)
            pass
        steps.append(step)
        values[step.out.name] = step.out
    return replace(program, steps=tuple(steps))


CHANGES: tuple[Callable[[Dice, Any, dict[str, Tensor]], None], ...] = (change_record, change_array)


def write_changed(program: IntegerProgram, seed: int, folder: Path) -> None:
    """A program with one to three changes, as a folder."""
    dice = random.Random(seed)
    if dice.random() < 0.5:
        try:
            save_program(change_step(dice, program), folder)
            return
        except Exception:  # noqa: BLE001  (a change that cannot be written at all)
            pass
    save_program(program, folder)
    record = json.loads((folder / PROGRAM).read_text(encoding="utf-8"))
    arrays = load_file(folder / ARRAYS)
    for _ in range(dice.randint(1, 3)):
        dice.choice(CHANGES)(dice, record, arrays)
    save_file({key: each.contiguous() for key, each in arrays.items()}, folder / ARRAYS)
    (folder / PROGRAM).write_text(json.dumps(record), encoding="utf-8")


def outcome(folder: Path) -> str:
    """What becomes of a stored program: it is refused, it ran, or what went wrong."""
    try:
        program = load_program(folder)
    except ChopError as error:
        return REFUSED if "\n" not in str(error) else f"several lines: {error!s:.80}"
    engine = Engine(program)
    codes = codes_of(program)
    outputs = engine.run(codes)
    for fast, plain in zip(outputs, Engine(program, "int64").run(codes), strict=True):
        if not torch.equal(fast, plain):
            return "the engines differ"
    try:
        written = export(program, "c", folder / "c", rows=0).folder
    except ChopError as error:
        return REFUSED if "\n" not in str(error) else f"several lines: {error!s:.80}"
    return compiled(written, codes, outputs)


def codes_of(program: IntegerProgram) -> dict[str, Tensor]:
    """Return rows of codes over the whole range of each input, the first two at its ends."""
    generator, found = np.random.default_rng(0), {}
    for value in (each.value for each in program.inputs):
        shape = (ROWS, *value.shape)
        rows = generator.integers(value.low, value.high, shape, endpoint=True)
        rows[0], rows[1] = value.low, value.high
        found[value.name] = torch.from_numpy(rows)
    return found


def compiled(folder: Path, codes: dict[str, Tensor], outputs: tuple[Tensor, ...]) -> str:
    """What becomes of C that is built with sanitisers and run."""
    if shutil.which("cc") is None:
        return RAN
    command = ["cc", *SANITISED, "model.c", "model_test.c", "-o", "run"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode:
        return f"not compiled: {built.stderr[-200:]}"
    rows, wanted = (
        torch.cat([each.reshape(ROWS, -1) for each in side], 1).tolist()
        for side in (codes.values(), outputs)
    )
    text = "\n".join(" ".join(map(str, row)) for row in rows)
    done = subprocess.run(
        [str(folder / "run")], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"the sanitisers say: {done.stderr[:300]}"
    found = [[int(code) for code in line.split()] for line in done.stdout.splitlines()]
    return RAN if found == wanted else "the C differs from the engine"


def fuzz_programs(count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """How many changed programs were refused and how many ran; what went wrong with the others."""
    seen, failures = Counter[str](), list[str]()
    with quiet():
        originals = programs(min(NETWORKS, count))
    for seed in range(first, first + count):
        with quiet(), tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_changed(originals[seed % len(originals)], seed, folder)
            try:
                end = outcome(folder)
            except Exception as error:  # noqa: BLE001  (any is a loss)
                end = f"{type(error).__name__}: {error!s:.200}"
        if end in (REFUSED, RAN):
            seen[end] += 1
        else:
            failures.append(f"program {seed}: {end}")
    return seen, failures
