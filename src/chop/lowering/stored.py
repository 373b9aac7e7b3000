"""An integer program as two files, of JSON and of arrays, and back.

A file is not trusted: exports write what a program holds into source code and run it. So every
field must be of its type, and what is said of a result must be what follows from its step.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch

from chop.errors import CheckpointError, ChopError
from chop.files import read_safetensors, writable_folder, write_safetensors, write_text
from chop.lowering.engine import input_format
from chop.lowering.formats import by_element, in_binary, input_limits, input_scale
from chop.lowering.program import (
    STEPS,
    Codes,
    Input,
    IntegerProgram,
    Shape,
    Step,
    Value,
    own_fields,
)
from chop.lowering.ranges import bounds, codes
from chop.lowering.shapes import (
    HAVE_OWN_SCALES,
    MOST_CODE,
    MOST_ELEMENTS,
    check_step,
    check_value,
    require,
    scale_after,
)

PROGRAM, ARRAYS = "program.json", "arrays.safetensors"
VERSION = 1
Arrays = dict[str, torch.Tensor]
MISFITS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)
"""What NumPy, PyTorch and Python raise where parts of a file do not fit together."""
__all__ = ["load_program", "save_program"]


def save_program(program: IntegerProgram, folder: str | Path) -> Path:
    """Write a program into a folder: its structure as JSON, its arrays as safetensors."""
    folder = writable_folder(Path(folder))
    arrays: Arrays = {}
    record = {
        "version": VERSION,
        "inputs": [
            {"placeholder": each.placeholder, "format": each.format}
            | {"value": _value_record(each.value, arrays)}
            for each in program.inputs
        ],
        "steps": [_step_record(step, arrays) for step in program.steps],
        "outputs": program.outputs,
        "tail": program.tail,
    }
    write_safetensors(folder / ARRAYS, arrays)
    write_text(folder / PROGRAM, json.dumps(record, indent=1) + "\n")
    return folder


def _value_record(value: Value, arrays: Arrays) -> dict[str, Any]:
    limits = {
        name: _packed(getattr(value, name), f"{value.name}/{name}", arrays)
        for name in ("frac", "low", "high")
    }
    if value.is_scaled:
        limits["scale"] = _packed(value.scale, f"{value.name}/scale", arrays)
    return {"name": value.name, "shape": value.shape} | limits


def _step_record(step: Step, arrays: Arrays) -> dict[str, Any]:
    own = {
        name: _packed(getattr(step, name), f"{step.out.name}//{name}", arrays)
        for name in own_fields(type(step))
    }
    out = _value_record(step.out, arrays)
    kind = type(step).__name__
    record = {"kind": kind, "node": step.node, "sources": step.sources, "out": out, "own": own}
    return record | ({"in_double": True} if step.in_double else {})


def _packed(value: Any, key: str, arrays: Arrays) -> Any:
    """A field as JSON; arrays are put aside under a name."""
    if isinstance(value, np.ndarray):
        arrays[key] = torch.from_numpy(np.array(value, order="C"))  # no two share memory
        return {"array": key}
    if isinstance(value, tuple):
        return [_packed(item, f"{key}/{place}", arrays) for place, item in enumerate(value)]
    return value


def load_program(folder: str | Path) -> IntegerProgram:
    """The program that `save_program` wrote into a folder."""
    from safetensors import SafetensorError

    folder = Path(folder)
    try:
        record = json.loads((folder / PROGRAM).read_text(encoding="utf-8"))
        arrays = read_safetensors(folder / ARRAYS)
        if record["version"] != VERSION:
            raise ValueError(f"version {record['version']!r} is not {VERSION}")
        return _program(record, arrays)
    except OSError as error:
        raise CheckpointError(f"{folder}: no integer program can be read: {error}") from None
    except (SafetensorError, ChopError, *MISFITS) as error:
        what = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: the integer program is damaged: {what}") from None


def _program(record: Mapping[str, Any], arrays: Arrays) -> IntegerProgram:
    inputs = tuple(
        Input(
            _value(each["value"], arrays),
            _typed(each["placeholder"], str, "placeholder"),
            _typed(each["format"], dict | None, "format"),
        )
        for each in record["inputs"]
    )
    steps = tuple(_step(each, arrays) for each in record["steps"])
    outputs, tail = (
        _typed(tuple(record[name]), tuple[str, ...], name) for name in ("outputs", "tail")
    )
    require(bool(inputs and outputs), "it has no inputs or no outputs")
    known: dict[str, Value] = {}
    for each in inputs:
        _add(each.value, known)
        _check_input(each)
    for step in steps:
        missing = set(step.sources) - known.keys()
        require(
            not missing, f"{step.out.name} reads {min(missing, default='')}, which nothing gives"
        )
        sources = [known[name] for name in step.sources]
        _add(step.out, known)
        check_step(step, *sources)
        _check_range(step, sources)
        _check_scale(step, sources)
    require(set(outputs) <= known.keys(), "an output is given by no step")
    return IntegerProgram(inputs, steps, outputs, tail)


def _add(value: Value, known: dict[str, Value]) -> None:
    """Add a value to those that are known, if it can be one of them."""
    require(value.name not in known, f"{value.name} is given twice")
    check_value(value)
    known[value.name] = value


def _check_input(each: Input) -> None:
    """Raise unless the codes of an input are those of its format."""
    value, fmt = each.value, input_format(each)
    stated = (value.frac, value.low, value.high)
    found: tuple[Codes, ...] = (codes(0), codes(0), value.high)
    if fmt is not None:
        plain = by_element(fmt) is None and in_binary(fmt) is fmt
        require(plain, f"{value.name} has a format that has no codes")
        found = input_limits(fmt, value.shape, value.name)
    same = (
        np.broadcast_to(side, value.shape) == end for side, end in zip(found, stated, strict=True)
    )
    require(all(part.all() for part in same), f"{value.name} has other codes than its format")
    scale = input_scale(fmt, value.shape, value.name)
    require(
        bool((np.broadcast_to(scale, value.shape) == value.scale).all()),
        f"{value.name} has another scale than its format",
    )


def _check_range(step: Step, sources: list[Value]) -> None:
    """Raise unless the range of a result is what its step makes of the ranges of its sources."""
    stated = (step.out.low, step.out.high)
    for found, end in zip(bounds(step, *sources), stated, strict=True):
        same = (np.broadcast_to(found, step.out.shape) == end).all()
        require(bool(same), f"the range of {step.out.name} does not follow from its step")


def _check_scale(step: Step, sources: list[Value]) -> None:
    """Raise unless the scale of a result follows from those of its sources, up to constants."""
    given = scale_after(step, *sources)
    if not isinstance(step, HAVE_OWN_SCALES):
        same = np.allclose(np.broadcast_to(given, step.out.shape), step.out.scale, rtol=1e-12)
        require(same, f"the scale of {step.out.name} does not follow from its step")


def _value(record: Mapping[str, Any], arrays: Arrays) -> Value:
    shape = _typed(tuple(record["shape"]), Shape, "shape")
    frac, low, high = (
        _typed(_unpacked(record[name], arrays), np.ndarray, name)
        for name in ("frac", "low", "high")
    )
    scale = np.ones(())
    if "scale" in record:
        scale = _typed(_unpacked(record["scale"], arrays, np.float64), np.ndarray, "scale")
    return Value(_typed(record["name"], str, "name"), shape, frac, low, high, scale)


def _step(record: Mapping[str, Any], arrays: Arrays) -> Step:
    kind = STEPS[record["kind"]]
    hints = get_type_hints(kind)
    own = {
        name: _typed(_unpacked(record["own"][name], arrays), hints[name], name)
        for name in own_fields(kind)
    }
    node = _typed(record["node"], str, "node")
    sources = _typed(_unpacked(record["sources"], {}), tuple[str, ...], "sources")
    in_double = _typed(record.get("in_double", False), bool, "in_double")
    return kind(node, sources, _value(record["out"], arrays), **own, in_double=in_double)


def _typed(value: Any, hint: Any, name: str) -> Any:
    """A value of a file, if it is what the hint says; a tuple of numbers is of sizes."""
    if not _fits(value, hint):
        raise ValueError(f"{name} cannot be {value!s:.60}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in inside
    if kind is tuple:  # sizes of arrays, windows and steps, or parts
        return type(value) is tuple and all(
            _fits(item, inside[0]) and (inside[0] is not int or 0 <= item <= MOST_ELEMENTS)
            for item in value
        )
    if inside and kind is not np.ndarray:
        return any(_fits(value, each) for each in inside)
    if type(value) is not kind:  # a bool is not a number here
        return False
    if kind is str:  # which names may be in comments and in messages
        return bool(value.isprintable())
    return kind is not int or abs(value) <= MOST_CODE


def _unpacked(value: Any, arrays: Arrays, dtype: Any = np.int64) -> Any:
    if isinstance(value, dict):
        array = arrays[value["array"]].numpy()
        if array.dtype != dtype:
            raise ValueError(f"{value['array']} is not {np.dtype(dtype)}")
        return array
    if isinstance(value, list):
        return tuple(_unpacked(item, arrays) for item in value)
    return value
