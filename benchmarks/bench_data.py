"""How fast rows are prepared and served, on a made-up file of the size of the CERNBox JSC set.

Times depend on the machine and its load; the ratio of the last two lines was measured interleaved.
Run: python benchmarks/bench_data.py [--quick] [--save]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from chop.dataset import MaseDataModule
from chop.dataset.data_module import TensorLoader
from chop.dataset.physical.jets import CERNBOX_ROWS, FEATURES, GROUP, ONE_HOT

RESULTS = Path(__file__).parent / "results"
BATCH, ROWS = 256, CERNBOX_ROWS
OTHER_COLUMNS = 38  # the real file has 59 columns


class RowByRow(Dataset[tuple[Tensor, Tensor]]):
    """The plain recipe: one row at a time."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.labels[index]


def write_file(path: Path, rows: int) -> None:
    """A file in the form of the CERNBox one, with 200 repeated rows."""
    rng = np.random.default_rng(0)
    others = [f"other_{number}" for number in range(OTHER_COLUMNS)]
    table = np.zeros(rows, [(name, "f4") for name in (*FEATURES, *ONE_HOT, *others)])
    for name in FEATURES:
        table[name] = rng.standard_normal(rows)
    kinds = rng.integers(0, len(ONE_HOT), rows)
    for kind, name in enumerate(ONE_HOT):
        table[name] = kinds == kind
    table[-200:] = table[:200]
    with h5py.File(path, "w") as file:
        file.create_dataset(GROUP, data=table)


def start(path: Path, cache: Path) -> dict[str, float]:
    """Prepare the data in a process of its own: seconds for it and megabytes at the peak."""
    out = subprocess.run(
        [sys.executable, __file__, "--start", str(path), str(cache)],
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(json.loads(out.stdout))


def memory(line: str) -> float:
    """A figure of this process in megabytes, as Linux tells it: VmRSS now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{line}:")[1].split()[0]) / 1024


def start_here(path: str, cache: str) -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    before = memory("VmRSS")
    began = time.perf_counter()
    module = MaseDataModule("jsc", BATCH, path=path, cache_dir=cache)
    module.prepare_data()
    module.setup()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "megabytes": memory("VmHWM") - before}))


def per_batch(batches: Iterable[tuple[Tensor, Tensor]], limit: int) -> float:
    """Microseconds a batch."""
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if count == limit:
            break
    return 1e6 * (time.perf_counter() - began) / count


def serving(path: Path, cache: Path, repeats: int, plain_batches: int) -> dict[str, float]:
    """Microseconds a batch of 256, ours over whole epochs and the plain recipe over a part."""
    module = MaseDataModule("jsc", BATCH, path=path, cache_dir=cache)
    loader = module.train_dataloader()
    assert isinstance(loader, TensorLoader)
    plain = DataLoader(RowByRow(loader.features, loader.labels), batch_size=BATCH, shuffle=True)
    runs: dict[str, Callable[[], float]] = {
        "TensorLoader": lambda: per_batch(loader, 10**9),
        "Dataset and DataLoader": lambda: per_batch(plain, plain_batches),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(run())
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fortieth of the rows")
    parser.add_argument("--save", action="store_true", help="append a line to benchmarks/results")
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.start:
        start_here(*args.start)
        return
    rows = ROWS // 40 if args.quick else ROWS
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder, "jets.h5"), Path(folder, "cache")
        write_file(path, rows)
        first, second = start(path, cache), start(path, cache)
        served = serving(path, cache, 2 if args.quick else 5, 40 if args.quick else 200)
    ratio = served["Dataset and DataLoader"] / served["TensorLoader"]
    result = {
        "rows": rows,
        "first_start_s": round(first["seconds"], 3),
        "first_start_MB": round(first["megabytes"], 1),
        "second_start_s": round(second["seconds"], 3),
        "second_start_MB": round(second["megabytes"], 1),
        "tensor_loader_us": round(served["TensorLoader"], 2),
        "row_by_row_us": round(served["Dataset and DataLoader"], 1),
        "ratio": round(ratio, 1),
    }
    for name, value in result.items():
        print(f"{name:20}{value:>14,}")
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        facts = {"torch": torch.__version__, "threads": 1, "cpus": os.cpu_count()}
        line = json.dumps({**result, **facts, "machine": platform.machine()})
        with (RESULTS / "data.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")


if __name__ == "__main__":
    main()
