"""Bytes of flash and instructions that forms of constant matrices take on a Cortex-M4."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from math import inf

import numpy as np

from chop.export.c.kernels import PACKINGS
from chop.lowering.program import Codes

MOST_STATEMENTS = 4000
"""Weights of a network whose weights may be written as statements: compilers take long for more."""
PER_PRODUCT = {2: (2.3, 2.2), 4: (1.75, 1.8), 6: (2.6, 2.4), 8: (1.85, 1.28), 16: (4.6, 4.2)}
"""Instructions by the bits of weights, for one column and for two at a time."""
SMALL = 0.05
"""The share of instructions up to which a layer may have packed weights where speed is asked for:
without DSP instructions, as on a host, they take several times as long."""
OTHER = 0.25
"""The exponent of what was not asked for: a tenth less time is not worth five times the flash."""


def fits_bits(weight: Codes, bits: int) -> bool:
    """Return True if all weights fit in a number of bits."""
    half = 1 << (bits - 1)
    return int(weight.min()) >= -half and int(weight.max()) < half


def weight_bits(weight: Codes) -> int:
    """Bits of a weight in whole bytes."""
    return 8 if fits_bits(weight, 8) else 16


@dataclass(frozen=True, eq=False)
class WeightMatrix:
    """Constant rows that are multiplied with columns, and the largest sum that they may give."""

    weight: Codes
    columns: int
    largest: int

    @property
    def nonzero(self) -> int:
        """Weights that are not zero."""
        return int(np.count_nonzero(self.weight))

    @property
    def forms(self) -> list[str]:
        """Names of the forms that it can have."""
        packed = [
            f"packed {bits}"
            for bits in (2, 4, 6)
            if fits_bits(self.weight, bits) and self.largest << (8 - bits) < 2**31
        ]
        return ["rows", *packed, "sparse", "code"]

    def padded(self, bits: int) -> int:
        """Weights of a row with those that fill the last group."""
        group = 1 if bits == 16 else PACKINGS[bits].weights
        return -(-int(self.weight.shape[1]) // group) * group

    @property
    def pairs(self) -> int:
        """Entries of a sparse table, of which each row has an even number."""
        each = np.count_nonzero(self.weight, axis=1)
        return int((each + each % 2).sum())

    @property
    def magnitudes(self) -> tuple[int, int]:
        """The number of magnitudes in all rows, and of those that are not powers of two."""
        rows = [np.unique(np.abs(row[row != 0])) for row in self.weight]
        return sum(map(len, rows)), sum(int((row & (row - 1) > 0).sum()) for row in rows)


@dataclass(frozen=True)
class Form:
    """The costs of a form of constants: bytes of flash, and instructions of a row of the batch.

    The factors were fitted to what arm-none-eabi-gcc -O2 makes of layers of 16 to 64 outputs, and
    are compared with it by tests/export/test_devices.py and benchmarks/bench_c.py.
    """

    functions: Callable[[WeightMatrix], float]
    """Bytes of the functions that layers share."""
    flash: Callable[[WeightMatrix], float]
    instructions: Callable[[WeightMatrix], float]


def row_flash(matrix: WeightMatrix, bits: int) -> float:
    """Bytes of rows of a number of bits, and of the bias."""
    return len(matrix.weight) * (matrix.padded(bits) * bits / 8 + 4)


def row_instructions(matrix: WeightMatrix, bits: int) -> float:
    """Instructions of products two by two, with DSP instructions."""
    count, padded, many = len(matrix.weight), matrix.padded(bits), matrix.columns > 1
    one, two = PER_PRODUCT[bits]
    each = two if many else one
    return matrix.columns * (count * padded * each + 12.7 * count + 2.9 * padded + 190 * many)


def code_flash(matrix: WeightMatrix) -> float:
    """Bytes of statements."""
    groups, odd = matrix.magnitudes
    return 6.1 * matrix.nonzero + 3.2 * groups + 2.7 * odd


def code_instructions(matrix: WeightMatrix) -> float:
    """Instructions of statements, and of the loop that rounds the sums."""
    groups, odd = matrix.magnitudes
    each = 1.96 * matrix.nonzero + 0.4 * groups + 1.07 * odd + 6.7 * len(matrix.weight)
    return matrix.columns * (each + 82 * (matrix.columns > 1))


def sparse_instructions(matrix: WeightMatrix) -> float:
    """Instructions of a loop over the table of a row."""
    each = 5.5 * matrix.pairs + 17.6 * len(matrix.weight)
    return matrix.columns * (each + 108 * (matrix.columns > 1))


def packed_functions(bits: int) -> Callable[[WeightMatrix], float]:
    """Bytes of the functions for packed weights."""
    return for_columns({2: 500, 4: 330, 6: 530}[bits], {2: 930, 4: 760, 6: 1000}[bits])


def for_columns(one: float, more: float) -> Callable[[WeightMatrix], float]:
    """Bytes of code that depend on whether a layer has columns of its own."""
    return lambda matrix: one if matrix.columns == 1 else more


FORMS = {
    "rows": Form(
        for_columns(260, 616),
        lambda matrix: row_flash(matrix, weight_bits(matrix.weight)),
        lambda matrix: row_instructions(matrix, weight_bits(matrix.weight)),
    ),
    **{
        f"packed {bits}": Form(
            packed_functions(bits),
            partial(row_flash, bits=bits),
            partial(row_instructions, bits=bits),
        )
        for bits in (2, 4, 6)
    },
    "sparse": Form(
        for_columns(150, 320),
        lambda matrix: (1 + weight_bits(matrix.weight) / 8) * matrix.pairs + 3 * len(matrix.weight),
        sparse_instructions,
    ),
    "code": Form(for_columns(185, 340), code_flash, code_instructions),
}


def choose_forms(matrices: Mapping[str, WeightMatrix], optimise: str) -> dict[str, str]:
    """Return the form of each matrix, so that all of them cost least together.

    Functions are counted once, however many layers call them: so each set of forms is tried.
    """
    found: dict[str, str] = {}
    least = inf
    names = {form for each in matrices.values() for form in each.forms}
    if sum(each.nonzero for each in matrices.values()) > MOST_STATEMENTS:
        names.discard("code")
    plain = {name: FORMS["rows"].instructions(each) for name, each in matrices.items()}
    slow = optimise == "speed"
    small = {name for name, each in plain.items() if each < SMALL * sum(plain.values())}
    for allowed in chain.from_iterable(
        combinations(sorted(names), n + 1) for n in range(len(names))
    ):
        chosen: dict[str, str] = {}
        flash, speed, functions = 1.0, 1.0, dict.fromkeys(allowed, 0.0)
        for name, matrix in matrices.items():
            ways = [form for form in matrix.forms if form in allowed]
            if slow and name not in small:
                ways = [form for form in ways if not form.startswith("packed")]
            if not ways:
                break
            costs = {way: (FORMS[way].flash(matrix), FORMS[way].instructions(matrix))
                     for way in ways}  # fmt: skip
            best = min(ways, key=lambda way: wished(*costs[way], optimise))
            chosen[name], flash, speed = best, flash + costs[best][0], speed + costs[best][1]
            functions[best] = max(functions[best], FORMS[best].functions(matrix))
        cost = wished(flash + sum(functions.values()), speed, optimise)
        if len(chosen) == len(matrices) and cost < least:
            found, least = chosen, cost
    return found


def wished(flash: float, instructions: float, optimise: str) -> float:
    """Return what is to be small: one of the two, and less so the other."""
    first, second = (flash, instructions) if optimise == "size" else (instructions, flash)
    return first * float(second**OTHER)
