"""Files of rows for the part `numbers`: ordinary ones with one thing out of the ordinary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.rows import seeded_split

ROWS, FEATURES, CLASSES = 40, 4, 3
Floats = NDArray[np.float64]
Spoil = Callable[[Floats, list[str]], None]
Source = Callable[[Path], list[str]]
"""Writes a file into a folder and gives the arguments of ``ch`` that name the data set."""


def rows(count: int = ROWS) -> tuple[Floats, list[str]]:
    """Features and classes that can be told apart."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % CLASSES
    features = random.normal(size=(count, FEATURES)) + labels[:, None]
    return features, [f"class {label}" for label in labels]


def nothing(features: Floats, labels: list[str]) -> None:
    """Leave the rows as they are."""


def csv(spoil: Spoil = nothing, count: int = ROWS, missing: str | None = None) -> Source:
    """A CSV file of rows that `spoil` has changed.

    Args:
        missing: what stands in place of the first number.
    """

    def write(folder: Path) -> list[str]:
        features, labels = rows(count)
        spoil(features, labels)
        table = [[repr(float(value)) for value in row] for row in features]
        if missing is not None:
            table[0][0] = missing
        lines = [",".join([*row, label]) for row, label in zip(table, labels, strict=True)]
        path = folder / "rows.csv"
        path.write_text("\n".join(["f0,f1,f2,f3,label", *lines, ""]), encoding="utf-8")
        return ["csv", "--dataset-path", str(path)]

    return write


def text(content: str) -> Source:
    """A CSV file of this content."""

    def write(folder: Path) -> list[str]:
        path = folder / "rows.csv"
        path.write_text(content, encoding="utf-8")
        return ["csv", "--dataset-path", str(path)]

    return write


def npz(change: Callable[[dict[str, Any]], None], image: bool = False) -> Source:
    """A NumPy archive whose arrays `change` has changed."""

    def write(folder: Path) -> list[str]:
        features, _ = rows()
        labels = np.arange(ROWS) % CLASSES
        arrays: dict[str, Any] = {"x": features.astype(np.float32), "y": labels}
        if image:
            arrays["x"] = np.repeat(arrays["x"], 4, axis=1).reshape(ROWS, 1, 4, 4)
        change(arrays)
        path = folder / "rows.npz"
        np.savez(path, **arrays)
        return ["npz", "--dataset-path", str(path)]

    return write


def named(name: str) -> Source:
    """A data set that is registered."""
    return lambda folder: [name]


def column(index: int, value: float) -> Spoil:
    """One value in all rows of a column."""

    def spoil(features: Floats, labels: list[str]) -> None:
        features[:, index] = value

    return spoil


def one(value: float) -> Spoil:
    """One value in a single place."""

    def spoil(features: Floats, labels: list[str]) -> None:
        features[7, 2] = value

    return spoil


def constant(features: Floats, labels: list[str]) -> None:
    """Every column is the same in all rows."""
    features[:] = [3.0, -1e6, 0.0, 1e-20]


def hardly_varying(features: Floats, labels: list[str]) -> None:
    """A column that varies by less than float32 can hold."""
    features[:, 1] = 1e8 + features[:, 1] * 1e-3


def largest(features: Floats, labels: list[str]) -> None:
    """Columns that reach to the end of float32."""
    features[:] = np.where(features > 1, 3.3e38, -3.3e38)


def smallest(features: Floats, labels: list[str]) -> None:
    """Columns of the smallest numbers that float32 has."""
    features[:] = np.where(features > 1, 1.5e-45, 0.0)


def one_class(features: Floats, labels: list[str]) -> None:
    """All rows are of one class."""
    labels[:] = ["only"] * len(labels)


def rare_class(split: int) -> Spoil:
    """A class of one row, which is for training (0), validation (1) or testing (2)."""

    def spoil(features: Floats, labels: list[str]) -> None:
        labels[int(seeded_split(len(labels), 0)[split][0])] = "rare"

    return spoil


def set_at(name: str, place: Any, value: float) -> Callable[[dict[str, Any]], None]:
    """A change of one entry of an array."""

    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name].astype(np.float32)
        arrays[name][place] = value

    return change


def unchanged(arrays: dict[str, Any]) -> None:
    """No change."""
