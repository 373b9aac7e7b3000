"""Files that are made with care: to run code, to fill the memory, to be taken for others."""

import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harden.file_harms import Harm, Setting
from harden.file_targets import BATCHES, idx_bytes

BOMB = 1100 << 20  # bytes that a bomb unpacks to, more than a case may take
ZEROS = bytes(1 << 20)


class Evil:
    """Makes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mknod, (self.canary,)


def raw_pickle(path: Path, setting: Setting) -> None:
    """A plain pickle that runs code."""
    path.write_bytes(pickle.dumps(Evil(setting.canary), setting.rng.choice((0, 2, 4))))


def torch_pickle(path: Path, setting: Setting) -> None:
    """What torch writes, with a pickle that runs code."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil(setting.canary), 2))
        archive.writestr("archive/version", "3\n")


def torch_state_pickle(path: Path, setting: Setting) -> None:
    """A state dict with one value that runs code."""
    import torch

    content = {"state_dict": {"a": torch.zeros(2)}, "hyper_parameters": Evil(setting.canary)}
    torch.save(content, path, _use_new_zipfile_serialization=setting.rng.random() < 0.5)


def whole_module(path: Path, setting: Setting) -> None:
    """A whole pickled network."""
    import torch

    torch.save(torch.nn.Linear(2, 2), path)


def saved_as(make: Callable[[dict[str, Any], Any], Any]) -> Harm:
    """A torch file in which something is other than it should be."""

    def craft(path: Path, setting: Setting) -> None:
        import torch

        content = torch.load(path, weights_only=True)
        inner = content.get("state_dict", content)
        name = setting.rng.choice([key for key in inner if inner[key].dim()])
        torch.save(make(content, (inner, name)), path)

    craft.__doc__ = "A torch file with other content."
    return craft


def _with(content: dict[str, Any], place: Any, change: Callable[[Any], Any]) -> dict[str, Any]:
    inner, name = place
    inner[name] = change(inner[name])
    return content


def _without(content: dict[str, Any], place: Any) -> dict[str, Any]:
    inner, name = place
    del inner[name]
    return content


CONTENTS: tuple[Harm, ...] = (
    saved_as(lambda content, place: [1, 2, 3]),
    saved_as(lambda content, place: 7),
    saved_as(lambda content, place: {"state_dict": 5}),
    saved_as(lambda content, place: {"state_dict": {"a": 1}}),
    saved_as(lambda content, place: {1: place[0][place[1]]}),
    saved_as(lambda content, place: {}),
    saved_as(_without),
    saved_as(lambda content, place: _with(content, place, lambda t: t[:-1])),
    saved_as(lambda content, place: _with(content, place, lambda t: t[None])),
    saved_as(lambda content, place: _with(content, place, lambda t: t.to(dtype=t.to_dense().real.dtype).to_sparse())),  # noqa: E501
    saved_as(lambda content, place: _with(content, place, lambda t: t.to("meta"))),
    saved_as(lambda content, place: _with(content, place, lambda t: t * 1j)),
    saved_as(lambda content, place: _with(content, place, lambda t: [t])),
)  # fmt: skip


def broken_run(path: Path, setting: Setting) -> None:
    """A checkpoint of ours in which one entry is of another type."""
    import torch

    content = torch.load(path, weights_only=True)
    owner = content if setting.rng.random() < 0.5 else content["chop"]
    key = setting.rng.choice(sorted(owner))
    owner[key] = setting.rng.choice((None, 5, "x", [], {}, [1], {"a": 1}, -1, float("nan")))
    torch.save(content, path)


def torch_bomb(path: Path, setting: Setting) -> None:
    """A good torch file whose tensors were replaced by packed zeros."""
    with zipfile.ZipFile(path) as good:
        parts = {name: good.read(name) for name in good.namelist()}
    bomb = next(name for name in parts if "/data/" in name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in parts.items():
            if name != bomb:
                archive.writestr(name, content)
        with archive.open(bomb, "w", force_zip64=True) as stream:
            _fill(stream)


def zip_names(path: Path, setting: Setting) -> None:
    """An archive whose names lead out of any folder, to the canary."""
    with zipfile.ZipFile(path) as good:
        parts = {name: good.read(name) for name in good.namelist()}
    up = "../" * 30 + str(setting.canary).lstrip("/")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        for name in (up, str(setting.canary)):
            archive.writestr(name, b"out")


def _fill(stream: Any) -> None:
    for _ in range(BOMB // len(ZEROS)):
        stream.write(ZEROS)


def kept(name: str, make: Harm) -> Harm:
    """A harm whose result is made once and copied from then on, as it takes seconds to make."""

    def craft(path: Path, setting: Setting) -> None:
        ready = setting.specimens / f"kept-{name}{path.suffix}"
        if not ready.exists():
            beside = ready.with_name(f"{os.getpid()}-{ready.name}")
            shutil.copyfile(path, beside)
            make(beside, setting)
            beside.replace(ready)
        shutil.copyfile(ready, path)

    craft.__doc__ = make.__doc__
    craft.__name__ = name
    return craft


def npz_pickle(path: Path, setting: Setting) -> None:
    """Arrays of objects, which NumPy would unpickle."""
    np.savez(path, features=np.array([Evil(setting.canary)], object), labels=np.arange(20))


def npz_bomb(path: Path, setting: Setting) -> None:
    """Features that are gigabytes of zeros, packed into a megabyte."""
    rows = BOMB // 64
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("features.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, 16)}
            np.lib.format.write_array_header_1_0(stream, header)
            _fill(stream)
        buffer = io.BytesIO()
        np.save(buffer, np.arange(20))
        archive.writestr("labels.npy", buffer.getvalue())


def npz_claims(path: Path, setting: Setting) -> None:
    """Arrays that claim to be larger than any memory, or to have odd shapes and types."""
    shape = setting.rng.choice(((10**13, 16), (2**62, 16), (-5, 16), (0, 16), (20, 10**12), ()))
    descr = setting.rng.choice(("<f4", "<f4", "|O", "<U9", "<c8", "<M8[s]", "|V7"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, its_shape, its_descr in (("features", shape, descr), ("labels", (20,), "<i8")):
            with archive.open(f"{name}.npy", "w") as stream:
                header = {"descr": its_descr, "fortran_order": False, "shape": its_shape}
                np.lib.format.write_array_header_1_0(stream, header)
                stream.write(bytes(20 * 64))


def csv_oddities(path: Path, setting: Setting) -> None:
    """Text that is no table of numbers."""
    good = path.read_text(encoding="utf-8")
    head, _, rows = good.partition("\n")
    path.write_bytes(
        setting.rng.choice(
            (
                head.encode(),
                b"," * 1_000_000 + b"label\n" + b"1," * 100,
                good.encode("utf-16"),
                good.replace(",", ",\0", 5).encode(),
                f"{head}\n{'1e999,' * 16}1\n{rows}".encode(),
                f'{head}\n"{rows * 40}'.encode(),
                f"{head}\n{'nan,' * 16}1\n{rows}".encode(),
                f"{head},{head}\n{rows}".encode(),
                good.replace("label", "🦎").encode(),
                f"{head}\n=cmd|' /C calc'!A0{rows}".encode(),
                f"{head}\n{'9' * 400_000},{rows}".encode(),
            )
        )
    )


def hdf5_links(path: Path, setting: Setting) -> None:
    """A group that is a link: to itself, to nothing, to another file."""
    import h5py

    from chop.dataset.physical.jets import GROUP

    links = (
        h5py.SoftLink(f"/{GROUP}"),
        h5py.SoftLink("/nothing"),
        h5py.ExternalLink("/etc/passwd", "/"),
        h5py.ExternalLink("other.h5", f"/{GROUP}"),
    )
    with h5py.File(path, "w") as file:  # fmt: skip
        file[GROUP] = setting.rng.choice(links)


def hdf5_claims(path: Path, setting: Setting) -> None:
    """Columns that claim more rows than any memory holds, or are of different kinds."""
    import h5py

    from chop.dataset.physical.jets import FEATURES, GROUP, ONE_HOT

    with h5py.File(path, "w") as file:
        group = file.create_group(GROUP)
        way = setting.rng.randrange(3)
        for place, name in enumerate((*FEATURES, *ONE_HOT)):
            if way == 0:
                group.create_dataset(name, (10**12,), "f4", chunks=(1024,))
            elif way == 1:
                group.create_dataset(name, data=np.zeros(20 + place, "f4"))
            else:
                group.create_dataset(name, data=np.array([b"text"] * 20))


def parquet_oddities(path: Path, setting: Setting) -> None:
    """Columns that hold no numbers, or none at all."""
    import pyarrow
    from pyarrow import parquet

    tables: tuple[dict[str, Any], ...] = (
        {"label": list(range(20)), "a": [{"x": 1}] * 20},
        {"label": [[1]] * 20, "a": [1.0] * 20},
        {"label": [None] * 20, "a": [1.0] * 20},
        {"label": list(range(20)), "a": [None] * 20},
        {"label": ["a", "b"] * 10},
        {"label": [b"\xff\xfe", b"x"] * 10, "a": [1.0] * 20},
        {"label": list(range(20)), "a": ["text"] * 20},
    )
    parquet.write_table(pyarrow.table(setting.rng.choice(tables)), path)


def idx_bomb(path: Path, setting: Setting) -> None:
    """Zeros that unpack to gigabytes."""
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(idx_bytes((BOMB // 784, 28, 28), b""))
        _fill(stream)


def idx_claims(path: Path, setting: Setting) -> None:
    """Shapes whose product is not what multiplying them in 64 bits gives."""
    shape = setting.rng.choice(((2**31, 2**31, 4), (0, 28, 28), (2**32 - 1,) * 3, (2**32 - 1,)))
    content = idx_bytes(shape, b"")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def tar_members(path: Path, setting: Setting) -> None:
    """Members that are links, devices or pipes, or whose names lead out of any folder."""
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
             tarfile.REGTYPE)  # fmt: skip
    kind = setting.rng.choice(kinds)
    with tarfile.open(path, "w:gz") as archive:
        for name in BATCHES:
            up = setting.rng.choice(("../" * 20, "/", "", "./"))
            member = tarfile.TarInfo(f"{up}{name}")
            member.type = kind
            member.linkname = setting.rng.choice(("/etc/passwd", "../../x", name, BATCHES[0]))
            archive.addfile(member)


def tar_bomb(path: Path, setting: Setting) -> None:
    """A batch of images that unpacks to gigabytes."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for place, name in enumerate(BATCHES):
            member = tarfile.TarInfo(name)
            member.size = BOMB // 3073 * 3073 if place == 0 else 3073
            archive.addfile(member, _Zeros(member.size))


class _Zeros(io.RawIOBase):
    """A stream of zeros."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        size = min(self.left, size)
        self.left -= size
        return bytes(size)


def json_oddities(path: Path, setting: Setting) -> None:
    """A graph whose record is of other types, or nested deeper than any parser follows."""
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("checksum", None)  # as one who means harm would
    key = setting.rng.choice(sorted(record))
    record[key] = setting.rng.choice((None, 5, "x", [], {}, [[]], {"a": {}}, -1, 1e400, 10**400))
    path.write_text(json.dumps(record), encoding="utf-8")


def deep_json(path: Path, setting: Setting) -> None:
    """A record that is nested deeper than any parser follows."""
    depth = setting.rng.choice((500, 5000, 200_000))
    path.write_text('{"format":' + "[" * depth + "]" * depth + "}", encoding="utf-8")


def tensors_header(path: Path, setting: Setting) -> None:
    """A safetensors file whose head lies about its length or its tensors."""
    headers = (
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"../../a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
        {"__metadata__": {"sha256": "0" * 64}},
    )
    head = json.dumps(setting.rng.choice(headers)).encode()
    length = setting.rng.choice((len(head), 2**63, 2**40, 0))
    path.write_bytes(length.to_bytes(8, "little") + head + bytes(4))


def study_lines(path: Path, setting: Setting) -> None:
    """A line of the journal is none of Optuna's."""
    lines = path.read_text(encoding="utf-8").splitlines()
    odd = ("5", "null", "[]", "{}", '{"op_code":99,"worker_id":"x"}', '{"op_code":4}', "",
           "[" * 100_000, "\0" * 600)  # fmt: skip
    lines[setting.rng.randrange(len(lines) - 1)] = setting.rng.choice(odd)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def moved_lines(path: Path, setting: Setting) -> None:
    """Whole lines of the journal have changed places, stand twice or are gone."""
    lines = path.read_bytes().splitlines(keepends=True)
    one, other = sorted(setting.rng.sample(range(len(lines) - 1), 2))
    ways = (
        [*lines[:one], *lines[other:], *lines[one:other]],
        [*lines[:other], lines[one], *lines[other:]],
        [*lines[:one], *lines[one + 1 :]],
    )
    path.write_bytes(b"".join(setting.rng.choice(ways)))


PICKLES: tuple[Harm, ...] = (raw_pickle, torch_pickle, torch_state_pickle, whole_module)
ZIPS: tuple[Harm, ...] = (kept("torch_bomb", torch_bomb), zip_names)
CRAFTED: dict[str, tuple[Harm, ...]] = {
    "Lightning checkpoint": (*PICKLES, *ZIPS, *CONTENTS),
    "checkpoint to resume": (*PICKLES, *ZIPS, *CONTENTS, *([broken_run] * 12)),
    "torch file": (*PICKLES, *ZIPS, *CONTENTS),
    "safetensors of ours": (raw_pickle, torch_pickle, tensors_header, tensors_header),
    "saved graph": (raw_pickle, json_oddities, json_oddities, deep_json, tensors_header),
    "study": (raw_pickle, study_lines, moved_lines, study_lines, moved_lines, moved_lines),
    "npz": (npz_pickle, raw_pickle, kept("npz_bomb", npz_bomb), npz_claims, npz_claims, zip_names),
    "csv": (raw_pickle, csv_oddities, csv_oddities, csv_oddities),
    "Parquet": (raw_pickle, parquet_oddities),
    "HDF5": (raw_pickle, hdf5_links, hdf5_claims),
    "ARFF": (raw_pickle,),
    "IDX, packed": (raw_pickle, kept("idx_bomb", idx_bomb), idx_claims),
    "IDX": (raw_pickle, idx_claims),
    "CIFAR archive": (raw_pickle, kept("tar_bomb", tar_bomb), tar_members, tar_members),
    "CIFAR files": (raw_pickle,),
    "rows in the cache": (raw_pickle,),
}
"""What is made with care for each kind of file."""
