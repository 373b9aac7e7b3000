"""Formats to test, and numbers that are hard to round."""

import numpy as np
import torch
from torch import Tensor

from chop.numerics import FORMATS, NumberFormat

SETTINGS: dict[str, list[dict[str, object]]] = {
    "integer": [
        {"width": 8, "frac_width": 4},
        {"width": 8},
        {"width": 8, "frac_width": 4, "signed": False},
        {"width": 1, "frac_width": 0},
        {"width": 4, "frac_width": 7},
        {"width": 5, "frac_width": -2},
        {"width": 16, "frac_width": 9},
    ],
    "fixed": [{"width": 6, "frac_width": 3}],
    "integer_trained": [{}, {"frac_width": -2.6, "granularity": "tensor", "learns": False}],
    "integer_scaled": [
        {"width": 8, "scale": 0.1},
        {"width": 4, "scale": 0.3, "narrow": True, "rounding": "half_up"},
        {"width": 8, "scale": 0.0123, "signed": False, "zero_point": 77},
        {"width": 5, "scale": 3.0, "signed": False, "narrow": True},
    ],
    "minifloat_ieee": [
        {"width": 8, "exponent_width": 4},
        {"width": 8, "exponent_width": 4, "exponent_bias": 10},
        {"width": 5, "exponent_width": 2},
        {"width": 6, "exponent_width": 3},
        {"width": 16, "exponent_width": 5},
        {"width": 16, "exponent_width": 8},
        {"width": 4, "exponent_width": 1},
    ],
    "minifloat_denorm": [
        {"width": 8, "exponent_width": 4},
        {"width": 6, "exponent_width": 2, "exponent_bias": -3},
        {"width": 16, "exponent_width": 5},
        {"width": 12, "exponent_width": 8},
    ],
    "float8_e4m3": [{}],
    "float8_e5m2": [{}],
    "log": [{"width": 4}, {"width": 8}, {"width": 5, "exponent_bias": 20}, {"width": 2}],
    "block_fp": [
        {"width": 8},
        {"width": 4, "exponent_width": 5, "block_size": [2, 3]},
        {"width": 12, "exponent_width": 4, "exponent_bias": 3, "block_size": [-1]},
        {"width": 8, "exponent_width": 8, "exponent_bias": 200},
    ],
    "block_minifloat": [
        {"width": 8, "exponent_width": 3},
        {"width": 6, "exponent_width": 2, "exponent_bias_width": 4, "block_size": [2, 4]},
        {"width": 8, "exponent_width": 4, "skip_first_dim": False},
    ],
    "block_log": [
        {"width": 4},
        {"width": 8, "exponent_bias_width": 5, "block_size": [3], "skip_first_dim": False},
    ],
    "mxint8": [{}, {"block_size": 5}],
    "mxfp8": [{}, {"element": "e5m2", "block_size": 7}],
    "mxfp6": [{}, {"element": "e3m2"}],
    "mxfp4": [{}, {"block_size": 16}],
    "nvfp4": [{}, {"tensor_scale": 1.0}, {"block_size": 5, "skip_first_dim": True}],
    "binary": [{}, {"bipolar": True}, {"width": 1, "stochastic": False, "bipolar": False}],
    "ternary": [
        {},
        {"scaling_factor": True},
        {"scaling_factor": True, "mean": 0.5},
        {"max": 4.0, "scaling_factor": False},
        {"median": 0.25, "mean": None, "max": None},
    ],
}


def examples(*names: str) -> list[NumberFormat]:
    """Formats of the given names, or of all."""
    chosen = names or tuple(SETTINGS)
    return [FORMATS[name].model_validate(s) for name in chosen for s in SETTINGS[name]]


ELEMENTWISE = ("integer", "fixed", "minifloat_ieee", "minifloat_denorm", "float8_e4m3")
ELEMENTWISE += ("float8_e5m2", "log")
SHAPED = ("block_fp", "block_minifloat", "block_log")
MX = ("mxint8", "mxfp8", "mxfp6", "mxfp4")


def bit_equal(a: Tensor, b: Tensor) -> bool:
    """Equal in type, shape, value and sign of zero; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    alike = (a == b) & (a.signbit() == b.signbit())
    return bool((alike | (a.isnan() & b.isnan())).all())


def neighbours(values: np.ndarray) -> np.ndarray:
    """Values, and the numbers of their type just below and above."""
    with np.errstate(over="ignore", under="ignore"):
        low, high = (np.nextafter(values, values.dtype.type(end)) for end in (-np.inf, np.inf))
    return np.concatenate([values, low, high])


def hard_numbers(
    representable: Tensor, seed: int = 0, dtype: torch.dtype = torch.float32, count: int = 4000
) -> Tensor:
    """Numbers around representable values and their midpoints, and of all magnitudes of float32."""
    values = np.unique(representable.double().numpy())
    values = values[np.isfinite(values)]
    middles = (values[1:] + values[:-1]) / 2
    geometric = np.sqrt(np.abs(values[1:] * values[:-1])) * np.sign(values[1:])
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore", under="ignore"):
        spread = np.ldexp(rng.uniform(-2, 2, count), rng.integers(-150, 128, count))
        scale = np.abs(values).max() or 1.0
        near = rng.uniform(-1.2, 1.2, count) * scale
        powers = np.ldexp(1.0, np.arange(-149, 128))
        largest = np.finfo(np.float32).max
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, largest, -largest])
        near_values = [values, middles, geometric, near, scale * 2 * near]
        lists = [*near_values, spread, powers, -powers, special]
        exact = torch.from_numpy(np.concatenate(lists)).to(dtype).numpy()
    return torch.from_numpy(neighbours(exact))
