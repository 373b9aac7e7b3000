"""MNIST and Fashion-MNIST, each from its four IDX files."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from chop.dataset.info import register_dataset
from chop.dataset.rows import DatasetRequest, Splits
from chop.dataset.vision.images import Images, Pixels, fetch_files, prepare_splits
from chop.errors import DataError

SIDE = 28
UNSIGNED_BYTES = 0x08
GZIP_START = b"\x1f\x8b"
LARGEST = 512 << 20  # bytes of an array; those of MNIST have at most 47 million
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
FACTS: dict[str, Any] = {
    "dataset_source": "others",
    "image_classification": True,
    "image_size": (1, SIDE, SIDE),
    "num_classes": 10,
}


@dataclass(frozen=True)
class IdxSource:
    """The addresses of four IDX files with their MD5 sums, and folders of a system with them."""

    base: str
    md5s: tuple[str, str, str, str]
    installed: Path | None = None


MNIST = IdxSource(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION_MNIST = IdxSource(
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    Path("/usr/share/datasets/fashion-mnist"),  # Debian's package dataset-fashion-mnist
)


@register_dataset("mnist", class_names=tuple("0123456789"), **FACTS)
def mnist(request: DatasetRequest) -> Splits:
    """Handwritten digits, 1×28×28, 10 classes, from the original IDX files."""
    return _idx_splits(MNIST, request)


@register_dataset(
    "fashion-mnist",
    class_names=(
        "t-shirt", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "boot",
    ),
    **FACTS,
)  # fmt: skip
def fashion_mnist(request: DatasetRequest) -> Splits:
    """Pictures of clothes, 1×28×28, 10 classes, from IDX files or Debian's package of them."""
    return _idx_splits(FASHION_MNIST, request)


def _idx_splits(source: IdxSource, request: DatasetRequest) -> Splits:
    folder = request.given_path
    if folder is None and source.installed is not None and source.installed.is_dir():
        folder = source.installed
    if folder is None:
        md5s = dict(zip(FILES, source.md5s, strict=True))
        files = fetch_files(request, source.base, md5s, source.base)
    else:
        files = [_find(folder, name, request.name) for name in FILES]
    return prepare_splits(request, files, partial(_read, files), files[0].parent)


def read_idx(path: Path, dimensions: int) -> Pixels:
    """The array in an IDX file of bytes, packed with gzip or not."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(GZIP_START)) == GZIP_START
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if packed else file as stream:
                return _array(stream, dimensions, path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is damaged or cut short ({error})") from None


def _array(stream: BinaryIO | gzip.GzipFile, dimensions: int, path: Path) -> Pixels:
    """The array in a stream, which is read no further than its head says, and one byte."""
    head = stream.read(4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise DataError(f"{path}: is not an IDX file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    size = math.prod(shape)
    if size > LARGEST:
        raise DataError(f"{path}: claims an array of shape {shape}, too large for MNIST")
    content = stream.read(size + 1)  # reading to the end compares the checksum of a packed file
    if len(content) != size:
        counted = f"{len(content):,}" if len(content) < size else f"more than {size:,}"
        raise DataError(f"{path}: has {counted} bytes for an array of shape {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _find(folder: Path, name: str, dataset: str) -> Path:
    if not folder.is_dir():
        what = "is a file; name the folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what} of the four files of {dataset.upper()}")
    for wanted in (name, name.removesuffix(".gz")):
        # torchvision puts them into MNIST/raw
        for candidate in (folder / wanted, *sorted(folder.rglob(wanted))):
            if candidate.is_file():
                return candidate
    raise DataError(f"{folder}: has no {name} (with or without .gz)")


def _read(files: list[Path]) -> Images:
    train, train_labels, test, test_labels = (
        read_idx(file, dimensions) for file, dimensions in zip(files, (3, 1, 3, 1), strict=True)
    )
    for images, labels, file in ((train, train_labels, files[1]), (test, test_labels, files[3])):
        if labels.size and labels.max() >= FACTS["num_classes"]:
            raise DataError(f"{file}: class {labels.max()} is not below {FACTS['num_classes']}")
        if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels):
            raise DataError(
                f"{files[0].parent}: images {images.shape} and labels {labels.shape} do not fit"
            )
    return Images(train[:, None], train_labels, test[:, None], test_labels)
