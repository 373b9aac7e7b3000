"""The importance of each choice of a search.

The importance of a choice is the share of the variance between trials that it alone explains. The
objective is fitted by least squares as a sum of one effect for each option of each choice. The
share of a choice is what the fit loses without it, less what a choice without influence would lose
by chance, as a part of the whole variance. Where choices are drawn independently this is the
variance of their main effects. Of choices that a sampler has changed together each gets only what
the others cannot explain, so shares add up to 1 or less; the rest is interaction and noise.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

TRIALS_PER_EFFECT = 2
"""With fewer, the fit follows the noise."""
ROWS_AT_ONCE = 2_000
RIDGE = 1e-9
"""Weight of the effects themselves in the fit: without it, what no trial tells apart has none."""

Options = Sequence[str | None]
"""The option of one choice in each trial; None where the choice did not come up."""
Matrix = NDArray[np.float64]


class Effects:
    """The effects of all options of all choices, as columns of a table with a row for each trial.

    Each column is centred over the trials in which its choice came up and zero in the others, so
    what it means that a choice comes up at all is the effect of the choice that leads to it.
    """

    def __init__(self, choices: Mapping[str, Options]) -> None:
        columns: dict[bytes, tuple[str, NDArray[np.int32]]] = {}
        for name, options in choices.items():
            codes = _codes(options)
            if codes.max(initial=0) > 0:
                # What always changed together cannot be told apart.
                first, _ = columns.get(codes.tobytes(), ("", codes))
                columns[codes.tobytes()] = f"{first} with {name}" if first else name, codes
        self._trials = len(next(iter(choices.values()), ()))
        self.names = [name for name, _ in columns.values()]
        self._codes = [codes for _, codes in columns.values()]
        ends = list(accumulate((int(codes.max()) for codes in self._codes), initial=0))
        self.of_choice = [slice(start, end) for start, end in pairwise(ends)]
        self.count = ends[-1]
        self.trials_needed = TRIALS_PER_EFFECT * (1 + self.count)
        self._means = [np.bincount(c[c >= 0])[1:] / (c >= 0).sum() for c in self._codes]

    @cached_property
    def inverse(self) -> Matrix:
        """Of the products of all columns with each other."""
        products = np.zeros((self.count, self.count))
        for start in range(0, self._trials, ROWS_AT_ONCE):
            rows = self._rows(start)
            products += rows.T @ rows
        ridge = RIDGE * self._trials * np.eye(self.count)
        return np.asarray(np.linalg.inv(products + ridge), np.float64)

    def products(self, values: Matrix) -> Matrix:
        """Of each column with `values`."""
        found = []
        for codes, means in zip(self._codes, self._means, strict=True):
            sums = np.bincount(codes[codes >= 0], values[codes >= 0])
            found.append(sums[1:] - means * sums.sum())
        return np.concatenate(found)

    def _rows(self, start: int) -> Matrix:
        end = start + ROWS_AT_ONCE
        blocks = [
            (codes[start:end, None] == np.arange(1, len(means) + 1)) - means
            for codes, means in zip(self._codes, self._means, strict=True)
        ]
        for block, codes in zip(blocks, self._codes, strict=True):
            block[codes[start:end] < 0] = 0.0
        return np.hstack(blocks)


def _codes(options: Options) -> NDArray[np.int32]:
    """Options as numbers in the order in which they first came up; -1 for none."""
    places: dict[str | None, int] = {None: -1}
    return np.array([places.setdefault(each, len(places) - 1) for each in options], np.int32)


def variance_shares(effects: Effects, values: Sequence[float]) -> dict[str, float]:
    """The share of each choice, the largest first; empty where too few trials can tell.

    Args:
        values: an objective of each trial.
    """
    found = np.asarray(values, np.float64)
    if not effects.count or len(found) < effects.trials_needed:
        return {}
    found = found / (np.abs(found).max() or 1.0)  # so that no square is too large
    found -= found.mean()
    whole = float(found @ found)
    if whole <= len(found) * 1e-24:  # all are the same but for rounding
        return {}
    inverse, targets = effects.inverse, effects.products(found)
    fitted = inverse @ targets
    noise = max(0.0, whole - float(fitted @ targets)) / (len(found) - 1 - effects.count)
    shares = {}
    for name, own in zip(effects.names, effects.of_choice, strict=True):
        lost = fitted[own] @ np.linalg.solve(inverse[own, own], fitted[own])
        by_chance = noise * (own.stop - own.start)
        shares[name] = max(0.0, float(lost - by_chance) / whole)
    return dict(sorted(shares.items(), key=lambda each: -each[1]))
