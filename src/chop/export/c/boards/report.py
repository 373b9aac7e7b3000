"""C before it is flashed: estimates for each layer, and the sizes that compilers tell."""

from pathlib import Path
from typing import Any

import numpy as np

from chop.export.c.boards.devices import (
    DEVICES,
    HOST,
    LONG_RUN,
    TooSmallDeviceError,
    compile_model,
    run_on,
)
from chop.export.c.boards.estimate import CCost, estimate_cost
from chop.export.c.plan import Buffer
from chop.export.c.source import CProgram

ESTIMATED_FOR = "cortex-m4"


def memory_plan(made: CProgram, cost: CCost) -> dict[str, Any]:
    """The places of buffers in the arena, and the layers that need each, with what these take."""
    layers = [
        {"layer": place, "nodes": list(dict.fromkeys(step.node for step in layer.steps)),
         "steps": [type(step).__name__ for step in layer.steps],
         "weights": made.writer.forms.get(layer.head.out.name),
         "constant_bytes": cost.layers[place].constant_bytes,
         "scratch_bytes": live_bytes(made, place),
         "instructions": cost.layers[place].instructions}
        for place, layer in enumerate(made.layers)
    ]  # fmt: skip
    buffers = [
        {"for": each.label, "offset": each.offset, "bytes": each.size,
         "from": each.first, "to": each.last}
        for each in made.buffers
    ]  # fmt: skip
    return {"layers": layers, "buffers": buffers}


def live_bytes(made: CProgram, layer: int) -> int:
    """Bytes of the buffers that are needed while a layer runs."""
    shared: dict[int, Buffer] = {}
    for each in made.buffers:
        if each.first <= layer <= each.last:
            shared[each.offset] = max(shared.get(each.offset, each), each, key=lambda b: b.size)
    return sum(each.size for each in shared.values())


def estimate_facts(made: CProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """The estimate of a program and its plan of memory, for the manifest."""
    cost = estimate_cost(made)
    facts = {
        "device": ESTIMATED_FOR, "flash_bytes": cost.flash_bytes, "code_bytes": cost.code_bytes,
        "ram_bytes": cost.ram_bytes, "instructions": cost.instructions,
    }  # fmt: skip
    return facts, memory_plan(made, cost)


def device_costs(made: CProgram, folder: Path, name: str, simulate: bool) -> dict[str, Any]:
    """Flash and stack by each compiler that is there, and by simulators instructions of layers."""
    found: dict[str, Any] = {}
    for label, device in (HOST | DEVICES).items():
        try:
            if device.lacking(simulate):
                found[label] = f"{device.lacking(simulate)} is not installed"
            elif simulate and device.simulator:
                found[label] = simulated_cost(made, folder, name, label)
            else:
                flash, stack = compile_model(device, folder, name)
                found[label] = {"flash_bytes": flash, "stack_bytes": stack}
        except TooSmallDeviceError as error:
            found[label] = f"{error}; {largest_layer(made, error.what)}"
    return found


def simulated_cost(made: CProgram, folder: Path, name: str, label: str) -> dict[str, Any]:
    """Flash, stack and instructions on a simulated device, of a row and of each layer."""
    device, zeros = DEVICES[label], [0] * sum(value.size for value in made.inputs)
    row = np.clip(zeros, *limits_of_row(made)).tolist()
    long = estimate_cost(made).instructions > LONG_RUN
    ran = run_on(device, folder, name, made.program, [row], long=long)
    found: dict[str, Any] = {
        "flash_bytes": ran.flash_bytes, "stack_bytes": ran.stack_bytes,
        device.counts: ran.instructions,
    }  # fmt: skip
    try:
        by_layer = run_on(device, folder, name, made.program, [row] * 3, long=long,
                          layers=len(made.layers) + 1)  # fmt: skip
        found["layers"] = list(by_layer.layers[: len(made.layers)])
    except TooSmallDeviceError:  # with what measures layers
        found["layers"] = None
    return found


def limits_of_row(made: CProgram) -> tuple[Any, Any]:
    """The smallest and the largest code of each element of the inputs."""
    sides = ((value.low, value.high) for value in made.inputs)
    flat = [
        [np.broadcast_to(side, value.shape).reshape(-1) for side in pair]
        for value, pair in zip(made.inputs, sides, strict=True)
    ]
    low, high = (np.concatenate(each) for each in zip(*flat, strict=True))
    return low, high


def largest_layer(made: CProgram, what: str) -> str:
    """The layer that takes most flash or memory, in words."""
    cost = estimate_cost(made)
    sizes = {
        "flash": [each.constant_bytes for each in cost.layers[: len(made.layers)]],
        "memory": [live_bytes(made, place) for place in range(len(made.layers))],
    }[what]
    place = int(np.argmax(sizes))
    nodes = ", ".join(dict.fromkeys(step.node for step in made.layers[place].steps))
    return f"layer {place} ({nodes}) takes most, {sizes[place]:,} bytes"
