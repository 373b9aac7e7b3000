"""Small files in the forms of the two JSC row sets."""

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from chop.dataset.physical.jets import CLASSES, FEATURES, GROUP, ONE_HOT


class JetFiles:
    """Small files in the forms of the two JSC row sets, with rows that are all different."""

    def __init__(self, folder: Path, rows: int = 1_000) -> None:
        rng = np.random.default_rng(7)
        self.folder = folder
        self.features: NDArray[np.float32] = rng.normal(3, 2, (rows, 16)).astype(np.float32)
        self.labels = rng.integers(0, 5, rows)

    def table(self) -> NDArray[np.void]:
        columns = ("unused_before", *ONE_HOT, *reversed(FEATURES), "unused_after")
        table = np.zeros(len(self.labels), [(name, "f4") for name in columns])
        for index, name in enumerate(FEATURES):
            table[name] = self.features[:, index]
        for kind, name in enumerate(ONE_HOT):
            table[name] = self.labels == kind
        return table

    def hdf5(self, name: str = "jets.z", table: NDArray[np.void] | None = None) -> Path:
        path = self.folder / name
        with h5py.File(path, "w") as file:
            file.create_dataset(GROUP, data=self.table() if table is None else table)
        return path

    def hdf5_group(self) -> Path:
        path = self.folder / "group.h5"
        with h5py.File(path, "w") as file:
            group = file.create_group(GROUP)
            for name in self.table().dtype.names or ():
                group.create_dataset(name, data=self.table()[name])
        return path

    def arff(self) -> Path:
        """As OpenML writes it: names without their prefix, classes in quotes, comments."""
        head = ["% jets", "@RELATION jets", ""]
        head += [f"@ATTRIBUTE {name[2:]} REAL" for name in FEATURES]
        head += ["@ATTRIBUTE class {g, q, t, w, z}", "", "@DATA"]
        rows = [
            ",".join([*(repr(float(value)) for value in row), f"'{CLASSES[label]}'"])
            for row, label in zip(self.features, self.labels, strict=True)
        ]
        path = self.folder / "jets.arff"
        path.write_text("\n".join(head + rows) + "\n", encoding="utf-8")
        return path

    def parquet(self) -> Path:
        import pyarrow
        from pyarrow import parquet

        columns: dict[str, object] = {"class": [CLASSES[label] for label in self.labels]}
        columns |= {name[2:]: self.features[:, index] for index, name in enumerate(FEATURES)}
        path = self.folder / "jets.pq"
        parquet.write_table(pyarrow.table(columns), path)
        return path
