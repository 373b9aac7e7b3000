"""Little memory and a large file of data.

The limit is on address space (RLIMIT_AS): 300 MB beyond what a process has when torch and chop are
imported, which is several gigabytes of mapped libraries and so says nothing by itself.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from harden.kill_server import Server
from harden.resource_common import QUIET, forked

LIMIT = 300 << 20
COLUMNS = 16


def archive(path: Path, megabytes: int) -> Path:
    """A NumPy archive of so many megabytes of features."""
    rows = (megabytes << 20) // (4 * COLUMNS)
    draw = np.random.default_rng(0)
    features = draw.random((rows, COLUMNS), dtype=np.float32)
    np.savez(path, features=features, labels=np.arange(rows) % 5)
    return path


def text(path: Path, megabytes: int) -> Path:
    """A CSV file of about so many megabytes."""
    names = [f"f{index}" for index in range(COLUMNS)]
    block = "".join(
        ",".join(f"{(row * 7 + column) % 97 / 10:.6f}" for column in range(COLUMNS))
        + f",{row % 5}\n"
        for row in range(1_000)
    )
    path.write_text(",".join([*names, "label"]) + "\n" + block * ((megabytes << 20) // len(block)))
    return path


FILES = (("npz", 40, True), ("csv", 16, True), ("csv", 96, True), ("npz", 640, False))
"""Kind, megabytes, and whether it fits."""
MAKERS = {"npz": archive, "csv": text}


def little_memory(
    server: Server, folder: Path, files: Iterable[tuple[str, int, bool]] = FILES
) -> Iterator[tuple[str, list[str]]]:
    """Files that fit and files that do not: work, or one line; nothing in between."""
    for kind, megabytes, fits in files:
        path = MAKERS[kind](folder / f"{megabytes}.{kind}", megabytes)
        command = ["train", "jsc-tiny", kind, "--dataset-path", str(path), *QUIET, "--batch-size"]
        command += ["4096", "--max-epochs", "1"]
        cache = folder / f"cache-{path.name}"
        (done,) = forked(
            server, [command], folder, memory=LIMIT, variables={"CHOP_CACHE": str(cache)}
        )
        wrong = done.expect(0) if fits else done.refused("memory")
        wrong += [f"left behind: {each.name}" for each in cache.rglob(".unfinished*")]
        yield f"{os.path.getsize(path) >> 20} MB of {kind}", wrong
        path.unlink()
