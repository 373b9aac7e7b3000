"""Picture files as arrays of bytes: read with limits, because a small file may unpack to a lot."""

import warnings
from pathlib import Path

import numpy as np

from chop.dataset.vision.images import Pixels
from chop.errors import DataError

FORMATS = ("PNG", "JPEG", "BMP", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")
MOST_PIXELS = 1 << 24
"""Of one picture; a sheet of CIFAR-10 has 10 million."""


def read_picture(path: Path) -> Pixels:
    """Return the pixels `(channels, height, width)` of a picture: 1 channel if grey, else 3."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of pictures that are suspiciously large
            with Image.open(path, formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > MOST_PIXELS:
                    raise DataError(
                        f"{path}: has {width:,} × {height:,} pixels, more than {MOST_PIXELS:,}"
                    )
                grey = picture.mode in ("1", "L", "I;16")
                pixels = np.asarray(picture.convert("L" if grey else "RGB"), np.uint8)
    except UnidentifiedImageError:
        raise DataError(f"{path}: is not a picture of the kinds {', '.join(FORMATS)}") from None
    except (OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: is damaged or cannot be read ({error})") from None
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))
