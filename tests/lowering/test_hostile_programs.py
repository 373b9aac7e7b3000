"""A program from a file is data: nothing in it reaches the C that an export writes and runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lowering_nets import example
from safetensors.torch import load_file
from torch import Tensor

from chop.errors import CheckpointError
from chop.files import write_safetensors
from chop.lowering import load_program, lower, save_program
from chop.lowering.stored import ARRAYS, PROGRAM

Change = Callable[[Any, dict[str, Tensor]], None]
CODE = "system(0)), half_up("


def step(record: dict[str, Any], kind: str) -> Any:
    return next(each for each in record["steps"] if each["kind"] == kind)


FIELDS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "rounding": ("branches", lambda r: step(r, "Requantise")["own"].update(rounding=CODE)),
    "overflow": ("branches", lambda r: step(r, "Requantise")["own"].update(overflow=CODE)),
    "kind": ("pools", lambda r: step(r, "Pool")["own"].update(kind=CODE)),
    "stride": ("pools", lambda r: step(r, "Pool")["own"].update(stride=[CODE, 1])),
    "groups": ("pools", lambda r: step(r, "Convolution")["own"].update(groups="1; " + CODE)),
    "shape": ("jsc-tiny", lambda r: step(r, "Product")["out"].update(shape=[CODE])),
    "negative": ("jsc-tiny", lambda r: step(r, "Product")["out"].update(shape=[-5])),
    "switch": ("pools", lambda r: step(r, "Pool")["own"].update(padding=[True, 0])),
    "array": ("jsc-tiny", lambda r: step(r, "Product")["own"].update(weight=CODE)),
    "node": ("jsc-tiny", lambda r: step(r, "Product").update(node=[CODE])),
    "sources": ("jsc-tiny", lambda r: step(r, "Product").update(sources=CODE)),
    "output": ("jsc-tiny", lambda r: r.update(outputs=[[CODE]])),
    "placeholder": ("jsc-tiny", lambda r: r["inputs"][0].update(placeholder=[CODE])),
    "beyond a table": ("branches", lambda r: step(r, "Table")["own"].update(start=-999)),
    "format": ("jsc-tiny", lambda r: r["inputs"][0].update(format=[CODE])),
}


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_holds_anything_but_what_belongs_there(name: str, tmp_path: Path) -> None:
    network, change = FIELDS[name]
    path = save_program(lower(example(network)[0]), tmp_path) / PROGRAM
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the integer program is damaged") as caught:
        load_program(tmp_path)
    assert "\n" not in str(caught.value)


def enlarged(record: Any, arrays: dict[str, Tensor]) -> None:
    """Windows would read what is not there."""
    out = step(record, "Pool")["out"]
    out["shape"] = [out["shape"][0], *(2 * size for size in out["shape"][1:])]
    record["steps"] = record["steps"][: record["steps"].index(step(record, "Pool")) + 1]
    record["outputs"] = [out["name"]]


def replaced(kind: str, field: str, change: Callable[[Tensor], Tensor]) -> Change:
    def changed(record: Any, arrays: dict[str, Tensor]) -> None:
        own = next(each["own"] for each in record["steps"] if each["kind"] == kind)
        arrays[own[field]["array"]] = change(arrays[own[field]["array"]])

    return changed


def same_name(record: Any, arrays: dict[str, Tensor]) -> None:
    """What comes later would be thought to have the range of what comes first."""
    record["steps"].append(record["steps"][0])


def moved_point(record: Any, arrays: dict[str, Tensor]) -> None:
    arrays[step(record, "Requantise")["out"]["frac"]["array"]] += 1


def no_elements(record: Any, arrays: dict[str, Tensor]) -> None:
    record["inputs"][0]["value"]["shape"] = [0]


def other_limits(record: Any, arrays: dict[str, Tensor]) -> None:
    arrays[record["inputs"][0]["value"]["low"]["array"]] -= 1


def pool_beyond(record: Any, arrays: dict[str, Tensor]) -> None:
    """Windows that lie in nothing but padding have no largest code."""
    pool = step(record, "Pool")
    pool["own"]["padding"] = [40, 40]


FAR = 10**6
CHANGES: dict[str, tuple[str, Change]] = {
    "rows before a table": ("branches", replaced("Table", "rows", lambda rows: rows - 1)),
    "larger results": ("pools", enlarged),
    "a shift to the left": ("branches", replaced("Requantise", "shift", lambda s: s * 0 - FAR)),
    "a shift to the right": ("branches", replaced("Requantise", "shift", lambda s: s * 0 + FAR)),
    "two values of a name": ("jsc-tiny", same_name),
    "another binary point": ("branches", moved_point),
    "no elements": ("jsc-tiny", no_elements),
    "codes that the format lacks": ("jsc-tiny", other_limits),
    "a pool of nothing": ("pools", pool_beyond),
    "a bias of other size": ("jsc-tiny", replaced("Product", "bias", lambda bias: bias[:1])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_said_of_a_step_must_follow_from_it(name: str, tmp_path: Path) -> None:
    network, change = CHANGES[name]
    save_program(lower(example(network)[0]), tmp_path)
    path = tmp_path / PROGRAM
    record = json.loads(path.read_text(encoding="utf-8"))
    arrays = load_file(tmp_path / ARRAYS)
    change(record, arrays)
    path.write_text(json.dumps(record), encoding="utf-8")
    write_safetensors(tmp_path / ARRAYS, arrays)
    with pytest.raises(CheckpointError, match="the integer program is damaged") as caught:
        load_program(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("end", ["low", "high"])
def test_ranges_must_follow_from_the_steps(end: str, tmp_path: Path) -> None:
    """Types of C, tables and float arithmetic are chosen by them."""
    program = lower(example("jsc-tiny")[0])
    save_program(program, tmp_path)
    arrays = load_file(tmp_path / ARRAYS)
    name = f"{program.steps[0].out.name}/{end}"
    arrays[name] = arrays[name] + 1
    write_safetensors(tmp_path / ARRAYS, arrays)
    with pytest.raises(CheckpointError, match="range"):
        load_program(tmp_path)
