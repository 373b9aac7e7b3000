"""An integer program as two files, of JSON and of arrays, and back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chop.errors import CheckpointError
from chop.files import read_safetensors, writable_folder, write_safetensors, write_text
from chop.lowering.program import STEPS, Input, IntegerProgram, Step, Value, own_fields

PROGRAM, ARRAYS = "program.json", "arrays.safetensors"
VERSION = 1
Arrays = dict[str, torch.Tensor]
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
    return {"name": value.name, "shape": value.shape} | limits


def _step_record(step: Step, arrays: Arrays) -> dict[str, Any]:
    own = {
        name: _packed(getattr(step, name), f"{step.out.name}//{name}", arrays)
        for name in own_fields(type(step))
    }
    out = _value_record(step.out, arrays)
    kind = type(step).__name__
    return {"kind": kind, "node": step.node, "sources": step.sources, "out": out} | {"own": own}


def _packed(value: Any, key: str, arrays: Arrays) -> Any:
    """A field as JSON; arrays are put aside under a name."""
    if isinstance(value, np.ndarray):
        arrays[key] = torch.from_numpy(np.array(value))  # no two may share memory
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
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: the integer program is damaged: {what}") from None


def _program(record: Mapping[str, Any], arrays: Arrays) -> IntegerProgram:
    inputs = tuple(
        Input(_value(each["value"], arrays), each["placeholder"], each["format"])
        for each in record["inputs"]
    )
    steps = tuple(_step(each, arrays) for each in record["steps"])
    program = IntegerProgram(inputs, steps, tuple(record["outputs"]), tuple(record["tail"]))
    known = {each.value.name for each in inputs}
    for step in steps:
        missing = set(step.sources) - known
        if missing:
            raise ValueError(f"{step.out.name} reads {min(missing)}, which no step gives")
        known.add(step.out.name)
    if not set(program.outputs) <= known:
        raise ValueError("an output is given by no step")
    return program


def _value(record: Mapping[str, Any], arrays: Arrays) -> Value:
    limits = (_unpacked(record[name], arrays) for name in ("frac", "low", "high"))
    value = Value(record["name"], tuple(record["shape"]), *limits)
    for array in (value.frac, value.low, value.high):
        np.broadcast_to(array, value.shape)
    return value


def _step(record: Mapping[str, Any], arrays: Arrays) -> Step:
    kind = STEPS[record["kind"]]
    own = {name: _unpacked(record["own"][name], arrays) for name in own_fields(kind)}
    return kind(record["node"], tuple(record["sources"]), _value(record["out"], arrays), **own)


def _unpacked(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, dict):
        array = arrays[value["array"]].numpy()
        if array.dtype != np.int64:
            raise ValueError(f"{value['array']} is not int64")
        return array
    if isinstance(value, list):
        return tuple(_unpacked(item, arrays) for item in value)
    return value
