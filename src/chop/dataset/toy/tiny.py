"""A data set small enough to understand by looking at it."""

import numpy as np

from chop.dataset.info import register_dataset
from chop.dataset.rows import SPLITS, Splits

ROWS = 10_240
IMAGE_SIZE = (1, 2, 2)


@register_dataset(
    "toy_tiny",
    available_splits=SPLITS,
    image_classification=True,
    image_size=IMAGE_SIZE,
    num_classes=2,
)
def toy_tiny_rows() -> Splits:
    """Random 2×2 images; the class says whether the four pixels sum to more than zero."""
    train, validation, test, pred = (_rows(seed) for seed in range(4))
    return Splits(
        train,
        validation,
        test,
        pred,
        source=f"toy_tiny: {ROWS:,} random images a split, made here",
    )


def _rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    images = np.random.RandomState(seed).randn(ROWS, *IMAGE_SIZE).astype(np.float32)
    return images, (images.sum(axis=(1, 2, 3)) > 0).astype(np.int64)
