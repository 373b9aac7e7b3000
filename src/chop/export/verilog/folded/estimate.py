"""Look-up tables, registers and block memories of a folded circuit, from its plan alone.

The numbers follow what Yosys makes of the blocks for devices with look-up tables of six inputs.
"""

from collections.abc import Callable, Mapping
from math import ceil

from chop.export.verilog.folded.nodes import Matrix

BLOCK_SHAPES = ((512, 72), (1024, 36), (2048, 18), (4096, 9), (8192, 4), (16384, 2), (32768, 1))
"""Depths and widths of a RAMB36."""
SMALL_MEMORY = 2048
"""Bits up to which a memory is not worth a block."""
WORTH = 4096
"""Bits that each RAMB18 of a memory has to hold to be worth it."""


def in_block(depth: int, width: int) -> bool:
    """Return True if a memory is one of blocks rather than of look-up tables."""
    return depth > 32 and depth * width > max(SMALL_MEMORY, WORTH * ram_halves(depth, width))


def block_rams(depth: int, width: int) -> float:
    """RAMB36 of a memory, halves for RAMB18; none for a small one."""
    return ram_halves(depth, width) / 2 if in_block(depth, width) else 0.0


def ram_halves(depth: int, width: int) -> int:
    """RAMB18 of a memory, in the shape that takes the fewest."""
    return min(
        ceil(width / (wide / 2)) * ceil(depth / deep) if wide > 1 else
        ceil(width / wide) * ceil(depth / (deep / 2))
        for deep, wide in BLOCK_SHAPES
    )  # fmt: skip


def matrix_luts(node: Matrix, bits: int, units: int, wide: int, taps: int = 1) -> float:
    """Look-up tables of a matrix of so many results, elements and taps at once."""
    per = taps if node.depthwise else wide * taps
    return block_luts(
        "chop_matrix",
        {"PE": units, "SIMD": per, "XW": bits, "WW": node.weight_bits, "AW": node.bits},
    )


Sizes = Mapping[str, int]


def product_registers(size: Sizes) -> int:
    """Registers of a product: its constant, those between rows of adders, the result."""
    x, w = size["XW"], size["WW"]
    between = (w + 1) // 3 - 1 if w > 4 else 0
    return w + between * (2 * x + w + 1) + x + w


def tree_registers(size: Sizes) -> int:
    """Registers of a sum of products, after every second row of adders and at the end."""
    count, bits = size["SIMD"], size["XW"] + size["WW"]
    rows = (count - 1).bit_length()
    held = sum(-(-count >> row) * (bits + row) for row in range(2, rows + 1, 2))
    return held + (bits + rows if rows % 2 or not rows else 0)


def counter_bits(size: Sizes) -> int:
    """Bits of the counters of a pool."""
    return (size["H"] * size["W"] * size["CF"]).bit_length()


LUTS: dict[str, Callable[[Sizes], float]] = {
    "chop_matrix": lambda size: 45 + size["PE"] * (
        size["SIMD"] * ((size["WW"] - 1) * (size["XW"] + 1) + size["XW"])
        + (size["SIMD"] - 1) * (size["XW"] + size["WW"] + 1) + size["AW"]
    ),
    "chop_window": lambda size: 60 + 2 * window_address(size)
    + 6 * (size["H"] * size["OH"]).bit_length() + size["B"]
    + memory_luts(1 << window_address(size), size["B"]),
    "chop_taps": lambda size: 30 + 4 * (size["H"] * size["W"]).bit_length()
    + size["L"] * size["XW"] + memory_luts(*taps_memory(size)),
    "chop_pool_taps": lambda size: size["L"] * (size["AW"] + 1) * (size["T"] - 1)
    * (1.5 if size["MAX"] else 1),
    "chop_queue": lambda size: 4 * size["A"] + 8 + memory_luts(1 << size["A"], size["B"]),
    "chop_pool": lambda size: 2.5 * size["L"] * size["AW"] + 5 * counter_bits(size)
    + logic_memory(size["W"] // size["KW"] * size["CF"], size["L"] * size["AW"]),
    "chop_widen": lambda size: 4 + size["N"].bit_length(),
    "chop_narrow": lambda size: size["B"] * (size["N"] - 1) + 4 + size["N"].bit_length(),
    "chop_slice": lambda size: size["B"] + 3,
    "chop_add": lambda size: size["L"] * size["YW"] + 2,
    "chop_concat": lambda size: size["B"] + 8,
}  # fmt: skip
"""Look-up tables of a block, by its parameters; of others a few."""
REGISTERS: dict[str, Callable[[Sizes], float]] = {
    "chop_matrix": lambda size: 30 + size["PE"] * (
        size["SIMD"] * product_registers(size) + tree_registers(size) + 2 * size["AW"]
    ) + 2 * (size["PE"] if size["LANES"] else 1) * size["SIMD"] * size["XW"],
    "chop_window": lambda size: 60 + 3 * window_address(size),
    "chop_taps": lambda size: 20 + 2 * (size["H"] * size["W"]).bit_length()
    + size["L"] * size["XW"] * taps_span(size)[0] * taps_span(size)[1]
    + (0 if size["BLOCK"] else taps_memory(size)[1]),
    "chop_pool_taps": lambda size: size["L"] * size["AW"] + 1,
    "chop_queue": lambda size: 3 * size["A"] + 4 + (0 if size["BLOCK"] else size["B"]),
    "chop_pool": lambda size: size["L"] * size["AW"] + 2 * counter_bits(size) + 4,
    "chop_widen": lambda size: size["B"] * size["N"] + size["N"].bit_length(),
    "chop_narrow": lambda size: size["B"] * size["N"] + size["N"].bit_length(),
    "chop_slice": lambda size: 2 * size["B"] + 2,
}  # fmt: skip
FEW = 4.0


def block_luts(kind: str, size: Sizes) -> float:
    """Look-up tables of a block, by its parameters."""
    return LUTS[kind](size) if kind in LUTS else FEW


def block_registers(kind: str, size: Sizes) -> float:
    """Registers of a block, by its parameters."""
    return REGISTERS[kind](size) if kind in REGISTERS else FEW


def window_address(size: Sizes) -> int:
    """Bits of an address of the buffer of a window."""
    return max((size["W"] * size["CF"] - 1).bit_length(), 1) + (size["ROWS"] - 1).bit_length()


def taps_span(size: Sizes) -> tuple[int, int]:
    """Rows and columns of a window with all taps at once."""
    return (size["KH"] - 1) * size["DH"] + 1, (size["KW"] - 1) * size["DW"] + 1


def taps_memory(size: Sizes) -> tuple[int, int]:
    """Words and bits of the memory of rows of such a window."""
    rows, columns = taps_span(size)
    width = max((size["OW"] - 1) * size["SW"] + columns, size["PW"] + size["W"])
    return 1 << max((width - 1).bit_length(), 1), (rows - 1) * size["L"] * size["XW"]


def memory_luts(depth: int, width: int) -> float:
    """Look-up tables of a memory, none if it is one of blocks."""
    return 0.0 if in_block(depth, width) else logic_memory(depth, width)


def logic_memory(depth: int, width: int) -> float:
    """Look-up tables of a memory that is made of them."""
    return ceil(depth / 64) * width * (8 / 7 if depth > 32 else 8 / 14)
