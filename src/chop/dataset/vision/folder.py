"""A user's own pictures: a folder for each class, or a table of paths and classes."""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chop.dataset.cache import file_sha256, load_or_build
from chop.dataset.info import register_dataset
from chop.dataset.preprocess import standardise
from chop.dataset.rows import DatasetRequest, Splits, pair_splits, rows_fingerprint, seeded_split
from chop.dataset.vision.pictures import SUFFIXES, read_picture
from chop.errors import DataError
from chop.masking import printable

STEPS = "pictures-1"  # part of the cache key: another number where the steps below change
MOST_BYTES = 4 << 30
LEAST_PICTURES = 10
PARTS = ("train", "validation", "test")
PATH_COLUMNS = ("path", "file", "filename", "image")


class Labelled(NamedTuple):
    """A picture file, the name of its class, and the split it is meant for, if one is stated."""

    path: Path
    label: str
    part: str | None = None


@register_dataset("images", image_classification=True)
def images(request: DatasetRequest) -> Splits:
    """Your own pictures: a folder with a folder for each class, or a CSV file of paths."""
    path = request.path
    if path is None:
        raise DataError("data set 'images' is your own folder: name it with --dataset-path")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    found = list_folder(path) if path.is_dir() else list_table(path, request.label_column)
    if len(found) < LEAST_PICTURES:
        raise DataError(f"{path}: {len(found)} pictures are too few; give {LEAST_PICTURES}")
    sources = {each.path: file_sha256(each.path, request.cache_dir) for each in found}
    key = {
        "steps": STEPS,
        "files": [[sources[each.path], each.label, each.part] for each in found],
        "seed": request.seed,
        "classes": list(request.class_names),
    }
    return load_or_build(request, key, partial(_prepare, found, request), path, sources)


def list_folder(folder: Path) -> list[Labelled]:
    """Return the pictures of `folder/class/…`, or of `folder/train/class/…` and its siblings."""
    parts = [folder / part for part in PARTS if (folder / part).is_dir()]
    if {each.name for each in parts} >= {"train", "test"}:
        return [each._replace(part=part.name) for part in parts for each in list_classes(part)]
    return list_classes(folder)


def list_classes(folder: Path) -> list[Labelled]:
    """Return the pictures below each subfolder of a folder, in the order of their names."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir())
    found = [
        Labelled(file, printable(each.name))
        for each in classes
        for file in sorted(each.rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.is_file()
    ]
    if not found:
        raise DataError(f"{folder}: has no pictures in folders named after their classes")
    return found


def list_table(path: Path, label_column: str | None) -> list[Labelled]:
    """Return the pictures that a CSV file names: a column of paths, which start beside it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a CSV file ({error})") from None
    columns = [] if not rows else [name for name in rows[0] if name is not None]
    paths = next((name for name in columns if name.lower() in PATH_COLUMNS), None)
    if paths is None:
        raise DataError(f"{path}: needs a column named {' or '.join(PATH_COLUMNS)}")
    labels = label_column or next((name for name in columns if name != paths), None)
    if labels not in columns:
        raise DataError(f"{path}: has no column {labels or 'of classes'!r}: name --label-column")
    found = []
    for line, row in enumerate(rows, 2):
        file, label = path.parent / (row[paths] or ""), row[labels]
        if not file.is_file() or not label:
            what = f"there is no file {printable(str(file))}" if label else "has no class"
            raise DataError(f"{path}, line {line}: {what}")
        found.append(Labelled(file, printable(label)))
    return found


def _prepare(found: Sequence[Labelled], request: DatasetRequest) -> Splits:
    names = request.class_names or tuple(sorted({each.label for each in found}))
    if len(names) < 2:
        raise DataError(f"{request.path}: all pictures are of one class, {names[0]!r}")
    known = {name: number for number, name in enumerate(names)}
    labels = np.array([known[each.label] for each in found], np.int64)
    pixels = _pixels(found)
    chosen = _choose_rows(found, request.seed)
    parts = [pixels[rows].astype(np.float32) for rows in chosen]
    done = standardise(*parts, channels=True, divisor=255.0, given=request.preprocessing)
    return Splits(
        *pair_splits(parts, (labels[rows] for rows in chosen)),
        source=f"images: {len(found):,} pictures of {len(names)} classes",
        fingerprint=rows_fingerprint(pixels, labels),
        class_names=names,
        preprocessing=done,
    )


def _pixels(found: Sequence[Labelled]) -> np.ndarray:
    """All pictures as one array; they have to be of one size."""
    first = read_picture(found[0].path)
    if first.size * len(found) * 5 > MOST_BYTES:  # bytes of pixels, and of their float32
        raise DataError(
            f"{len(found):,} pictures of {first.size:,} values do not fit in {MOST_BYTES >> 30} GiB"
        )
    pixels = np.empty((len(found), *first.shape), np.uint8)
    for number, each in enumerate(found):
        picture = read_picture(each.path)
        if picture.shape != first.shape:
            raise DataError(
                f"{each.path}: is {picture.shape}, but {found[0].path.name} is {first.shape} "
                "(channels, height, width): make all pictures one size"
            )
        pixels[number] = picture
    return pixels


def _choose_rows(found: Sequence[Labelled], seed: int) -> Sequence[np.ndarray]:
    """The rows of each split: as folders say, else 70 to 10 to 20 by the seed."""
    if found[0].part is None:
        return seeded_split(len(found), seed)
    parts = np.array([each.part for each in found])
    train, validation, test = ((parts == part).nonzero()[0] for part in PARTS)
    if not len(validation):
        order = np.random.default_rng(seed).permutation(train)  # classes follow one another
        validation, train = order[: -(-len(order) // 10)], order[-(-len(order) // 10) :]
    return train, validation, test
