"""What passes between this project's interpreter and those of other tools: NumPy archives only.

Rows go out (training and validation rows; test rows stay here), networks come back as plain
numbers. Only NumPy is imported, since the other tools live in environments without chop.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FIELDS = ("weight", "bias", "frac", "low", "high")
"""A layer: weights (outputs, inputs) and biases on their grids; bits after the point, smallest and
largest code of each input channel."""


@dataclass(frozen=True)
class Exported:
    """A network as its tool sees it: layers, and its scores of the validation rows."""

    name: str
    layers: list[dict[str, Array]]
    scores: Array


def layer_of(weight: Array, bias: Array, bits: tuple[Array, Array, Array]) -> dict[str, Array]:
    """A layer whose inputs have (sign bit, integer bits, fractional bits) for each channel."""
    sign, whole, frac = (np.broadcast_to(np.ravel(each), weight.shape[1]) for each in bits)
    steps = np.exp2(np.maximum(whole + frac, 0))
    return {"weight": weight, "bias": bias, "frac": frac, "low": -sign * steps, "high": steps - 1}


def write_nets(path: Path, nets: list[Exported], facts: dict[str, float]) -> None:
    """All networks and what it took to make them, in one archive."""
    arrays = {f"fact/{name}": np.float64(value) for name, value in facts.items()}
    for place, net in enumerate(nets):
        arrays[f"net/{place}/name"] = np.array(net.name)
        arrays[f"net/{place}/scores"] = net.scores
        for depth, layer in enumerate(net.layers):
            for field in FIELDS:
                arrays[f"net/{place}/{depth}/{field}"] = np.asarray(layer[field], np.float64)
    np.savez(path, **arrays)


def read_nets(path: Path) -> tuple[list[Exported], dict[str, float]]:
    """What `write_nets` wrote."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    facts = {name[5:]: float(value) for name, value in arrays.items() if name.startswith("fact/")}
    count = sum(name.endswith("/name") for name in arrays)
    nets = []
    for place in range(count):
        depths = sum(n.startswith(f"net/{place}/") and n.endswith("/weight") for n in arrays)
        layers = [
            {field: arrays[f"net/{place}/{depth}/{field}"] for field in FIELDS}
            for depth in range(depths)
        ]
        name, scores = (arrays[f"net/{place}/{each}"] for each in ("name", "scores"))
        nets.append(Exported(str(name), layers, scores))
    return nets, facts
