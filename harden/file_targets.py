"""The files that are damaged: one good specimen of each kind, and how chop reads it."""

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Observe = Callable[[Path], str]
ROWS = 200
IMAGES = 20
SEARCH = """
model = "jsc-tiny"
dataset = "jsc-sim"
project = "made"
seed = 1
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "type"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.linear.config]
name = ["integer"]
data_in_width = [4, 8]
weight_width = [2, 4, 8]
bias_width = [8]
[search.strategy.sw_runner.basic_evaluation]
num_samples = 64
[search.strategy.hw_runner.average_bitwidth]
[search.strategy.setup]
sampler = "brute"
plots = false
[search.strategy.metrics]
accuracy.direction = "maximize"
average_bitwidth.direction = "minimize"
"""
PASSES = """
[passes.quantize]
by = "type"
[passes.quantize.linear.config]
name = "integer"
data_in_width = 8
data_in_frac_width = 4
weight_width = 8
weight_frac_width = 4
bias_width = 8
bias_frac_width = 4
"""
SOFTWARE = "mase_output/made/software"


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        path: what ``ch`` is given: a file or folder in the folder of the specimen.
        files: what is damaged, relative to that folder.
        arguments: of ``ch``, to read it.
        observe: a digest of what is read; what is accepted must be what was written.
        silent: the format has no checksum, so a changed number is another file, not a damaged one;
            then its fingerprint must be another one.
        strict: the parts of the file that must be refused when they differ at all.
    """

    kind: str
    path: str
    files: tuple[str, ...]
    arguments: tuple[str, ...]
    observe: Observe
    silent: bool = False
    strict: Callable[[bytes], Any] | None = None


def digest(*parts: object) -> str:
    """One text for any number of arrays and texts."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.tobytes() if isinstance(part, np.ndarray) else str(part).encode()
        whole.update(data)
    return whole.hexdigest()


def state_digest(state: dict[str, Any]) -> str:
    """A digest of tensors by name."""
    values = ((name, str(value.dtype), value.cpu().numpy()) for name, value in state.items())
    return digest(*(part for triple in sorted(values, key=lambda v: v[0]) for part in triple))


def weights_seen(path: Path) -> str:
    """What is read from a file of weights."""
    from chop.models.weights import read_state_dict

    return state_digest(read_state_dict(path))


def resumed_seen(path: Path) -> str:
    """What a run goes on from."""
    from chop.models.weights import read_checkpoint

    content = read_checkpoint(path)
    return digest(state_digest(content["state_dict"]), content["epoch"], content["chop"]["history"])


def graph_seen(path: Path) -> str:
    """What is read from the folder of a graph."""
    from chop.passes.graph import load_mase_graph

    graph = load_mase_graph(path)
    notes = [str(node.meta["mase"].parameters) for node in graph.nodes]
    state = state_digest(graph.model.state_dict())
    return digest(graph.model.code, graph.model, state, *notes)


def study_seen(path: Path) -> str:
    """The finished trials of a study: the configuration and the values of each."""
    import optuna

    from chop.search.study.journal import Journal

    storage = optuna.storages.JournalStorage(Journal(str(path)))
    trials = optuna.load_study(study_name="search", storage=storage).trials
    kept = {str(sorted(t.params.items())): t.values for t in trials if t.state.is_finished()}
    return digest(sorted(kept.items()))


def complete_lines(content: bytes) -> list[bytes]:
    """The lines of a journal but the last, which a killed process may have written in part."""
    return content.split(b"\n")[:-2]


def data_seen(name: str) -> Callable[..., str]:
    """What is read as a data set."""

    def observe(path: Path, cache_dir: Path | None = None) -> str:
        from chop.dataset import MaseDataModule

        module = MaseDataModule(name, 32, path=path, cache_dir=cache_dir or path.parent / "seen")
        pairs = [getattr(module.splits, split).tensors for split in ("train", "validation", "test")]
        return digest(*(tensor.numpy() for pair in pairs for tensor in pair))

    return observe


def cache_seen(path: Path) -> str:
    """What is read as a data set that was read before."""
    return data_seen("npz")(path, path.parent.parent.parent / "cache")


def _test(model: str, data: str, *more: str) -> tuple[str, ...]:
    return ("test", model, data, "--report-to", "none", "--project", "tested", *more)


def _loading(path: str, load_type: str) -> tuple[str, ...]:
    return _test("jsc-tiny", "jsc-sim", "--load", path, "--load-type", load_type)


def _weights(kind: str, path: str, load_type: str, **more: Any) -> Target:
    return Target(kind, path, (path,), _loading(path, load_type), weights_seen, **more)


def _data(kind: str, name: str, path: str, **more: Any) -> Target:
    model = {"mnist": "toy_convnet", "cifar10": "toy_convnet"}.get(name, "jsc-tiny")
    files = more.pop("files", (path,))
    arguments = _test(model, name, "--dataset-path", path)
    return Target(kind, path, files, arguments, data_seen(name), **more)


GRAPH_FILES = ("graph.json", "weights.safetensors")
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
       "t10k-labels-idx1-ubyte")  # fmt: skip
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
TRAIN = ("train", "jsc-tiny", "jsc-sim", "--max-epochs", "2", "--batch-size", "64", "--project",
         "made", "--report-to", "none")  # fmt: skip
JOURNAL = f"{SOFTWARE}/search_ckpts/study.log"
CACHED = "../../cache/preprocessed/npz/*"
LAST = f"{SOFTWARE}/training_ckpts/last.ckpt"

TARGETS = (
    _weights("Lightning checkpoint", f"{SOFTWARE}/training_ckpts/best.ckpt", "pl"),
    Target("checkpoint to resume", LAST, (LAST,), (*TRAIN, "--resume"), resumed_seen),
    _weights("torch file", "weights.pt", "pt"),
    _weights("safetensors of ours", "graph/weights.safetensors", "pt"),
    Target("saved graph", "graph", tuple(f"graph/{name}" for name in GRAPH_FILES),
           _loading("graph", "mz"), graph_seen),
    Target("study", JOURNAL, (JOURNAL,), ("search", "--config", "search.toml", "--resume"),
           study_seen, strict=complete_lines),
    _data("npz", "npz", "rows.npz"),
    _data("csv", "csv", "rows.csv", silent=True),
    _data("Parquet", "parquet", "rows.parquet", silent=True),
    _data("HDF5", "jsc", "jets.h5", silent=True),
    _data("ARFF", "jsc", "jets.arff", silent=True),
    _data("IDX, packed", "mnist", "idx", files=tuple(f"idx/{name}.gz" for name in IDX)),
    _data("IDX", "mnist", "plain", files=tuple(f"plain/{name}" for name in IDX), silent=True),
    _data("CIFAR archive", "cifar10", "cifar.tar.gz"),
    _data("CIFAR files", "cifar10", "cifar", files=tuple(f"cifar/{n}" for n in BATCHES),
          silent=True),
    Target("rows in the cache", "rows.npz", (f"{CACHED}/train_x.npy", f"{CACHED}/about.json"),
           _test("jsc-tiny", "npz", "--dataset-path", "rows.npz"), cache_seen),
)  # fmt: skip


def make_specimens(folder: Path) -> None:
    """Write a good specimen of every kind, as chop or its usual tool does."""
    from chop.cli import main

    (folder / "search.toml").write_text(SEARCH, encoding="utf-8")
    (folder / "passes.toml").write_text(PASSES, encoding="utf-8")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        made = [
            main(TRAIN),
            main(["search", "--config", "search.toml"]),
            main(["transform", "jsc-tiny", "jsc-sim", "--config", "passes.toml",
                  "--project", "made"]),
        ]  # fmt: skip
    assert made == [0, 0, 0], "the specimens cannot be made"
    shutil.copytree(folder / SOFTWARE / "transform" / "transformed_ckpt", folder / "graph")
    _write_weights(folder)
    _write_tables(folder)
    _write_images(folder)


def _write_weights(folder: Path) -> None:
    import torch

    from chop.models.weights import read_state_dict

    torch.save(read_state_dict(folder / TARGETS[0].path), folder / "weights.pt")


def _write_tables(folder: Path) -> None:
    import h5py
    import pyarrow
    from pyarrow import parquet

    from chop.dataset.physical.jets import CLASSES, FEATURES, GROUP, ONE_HOT

    rng = np.random.default_rng(3)
    features = rng.normal(1, 2, (ROWS, len(FEATURES))).astype(np.float32)
    labels = rng.integers(0, len(CLASSES), ROWS)
    np.savez(folder / "rows.npz", features=features, labels=labels)
    columns = {name: features[:, place] for place, name in enumerate(FEATURES)}
    parquet.write_table(pyarrow.table({**columns, "label": labels}), folder / "rows.parquet")
    rows = list(zip(features.tolist(), labels.tolist(), strict=True))
    lines = [",".join([*map(repr, row), str(label)]) for row, label in rows]
    (folder / "rows.csv").write_text("\n".join([",".join([*FEATURES, "label"]), *lines]))
    head = [f"@ATTRIBUTE {name[2:]} REAL" for name in FEATURES]
    named = [",".join([*map(repr, row), CLASSES[label]]) for row, label in rows]
    parts = ["@RELATION jets", *head, "@ATTRIBUTE class {g,q,t,w,z}", "@DATA", *named]
    (folder / "jets.arff").write_text("\n".join(parts), encoding="utf-8")
    one_hot = {name: labels == kind for kind, name in enumerate(ONE_HOT)}
    table = np.zeros(ROWS, [(name, "f4") for name in (*columns, *one_hot)])
    for name, column in (columns | one_hot).items():
        table[name] = column
    with h5py.File(folder / "jets.h5", "w") as file:
        file.create_dataset(GROUP, data=table)


def _write_images(folder: Path) -> None:
    rng = np.random.default_rng(4)
    for place in ("idx", "plain", "cifar"):
        (folder / place).mkdir()
    for name in IDX:
        shape = (IMAGES, 28, 28) if "images" in name else (IMAGES,)
        array = rng.integers(0, 10, shape, np.uint8)
        content = idx_bytes(array.shape, array.tobytes())
        (folder / "plain" / name).write_bytes(content)
        (folder / "idx" / f"{name}.gz").write_bytes(gzip.compress(content))
    with tarfile.open(folder / "cifar.tar.gz", "w:gz") as archive:
        for name in BATCHES:
            records = rng.integers(0, 256, (IMAGES, 3073), np.uint8)
            records[:, 0] %= 10
            (folder / "cifar" / name).write_bytes(records.tobytes())
            archive.add(folder / "cifar" / name, f"cifar-10-batches-bin/{name}")


def idx_bytes(shape: tuple[int, ...], content: bytes) -> bytes:
    """An IDX file of bytes."""
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + content


@cache
def observed(folder: Path) -> dict[str, str]:
    """What is read from the good specimens."""
    return {target.kind: target.observe(folder / target.path) for target in TARGETS}


def named_in(message: str, target: Target, damaged: str) -> bool:
    """Whether a message names the damaged file, or what ``ch`` was given to read."""
    return Path(damaged).name in message or target.path in message


def json_equal(one: bytes, other: bytes) -> bool:
    """Whether two lines say the same, however they are written."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def differing(before: list[bytes], after: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Lines that both have and that do not say the same."""
    for one, other in zip(before, after, strict=False):
        if one != other and not json_equal(one, other):
            yield one, other
