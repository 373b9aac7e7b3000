"""The digits that come with scikit-learn: 1,797 pictures of 8×8 pixels."""

import gzip
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from chop.dataset.info import register_dataset
from chop.dataset.rows import DatasetRequest, Splits
from chop.dataset.vision.images import Images, prepare_splits
from chop.errors import DataError

SIDE, BRIGHTEST, CLASSES = 8, 16, 10
LARGEST = 16 << 20  # bytes of the unpacked table; the real one has 0.3 million


@register_dataset(
    "digits",
    dataset_source="others",
    image_classification=True,
    image_size=(1, SIDE, SIDE),
    num_classes=CLASSES,
    class_names=tuple("0123456789"),
)
def digits(request: DatasetRequest) -> Splits:
    """Handwritten digits, 1×8×8, 10 classes, as scikit-learn comes with them."""
    path = request.given_path or _installed_file(request.variable)
    if path.is_dir():
        path /= "digits.csv.gz"
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return prepare_splits(request, [path], lambda: _read(path), path)


def _installed_file(variable: str) -> Path:
    """The file inside scikit-learn, which is not imported for it."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "data set 'digits' is part of scikit-learn: pip install scikit-learn, or name its "
            f"digits.csv.gz with --dataset-path or {variable}"
        )
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _read(path: Path) -> Images:
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise DataError(f"{path}: unpacks to more than {LARGEST >> 20} MiB")
        rows = np.loadtxt(content.decode("ascii").splitlines(), delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: is damaged or not a table of digits ({error})") from None
    pixels, labels = rows[:, :-1], rows[:, -1]
    whole = rows.shape[1] == SIDE * SIDE + 1 and len(rows) >= 10 and (rows % 1 == 0).all()
    if not whole or pixels.max() > BRIGHTEST or rows.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{path}: is not a table of {SIDE}×{SIDE} pixels up to {BRIGHTEST}")
    order = np.random.default_rng(0).permutation(len(rows))  # the writers follow one another
    images = pixels.astype(np.uint8).reshape(-1, 1, SIDE, SIDE)[order]
    classes = labels.astype(np.uint8)[order]
    tests = len(rows) // 5
    return Images(
        images[tests:], classes[tests:], images[:tests], classes[:tests], float(BRIGHTEST)
    )
