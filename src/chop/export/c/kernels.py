"""The fixed functions of the C: columns of a window, products with them, rounding.

A layer copies what a window reads to a column of 16-bit numbers. With the DSP instructions of Arm
(MODEL_DSP) four 8-bit weights are expanded to two words by two instructions, as pairs of every
second weight; so elements of a column are in that order there (MODEL_AT).
"""

import re
from dataclasses import dataclass

import numpy as np

from chop.lowering.program import Codes

GEOMETRY = (
    "planes", "channels", "height", "width", "kernel_y", "kernel_x", "stride_y", "stride_x",
    "pad_y", "pad_x", "step_y", "step_x", "out_height", "out_width", "padded", "outputs",
)  # fmt: skip
"""Fields of ``struct window``: a map is `planes` times height x width pixels of `channels`."""

PRELUDE = """\
#if defined(__GNUC__) || defined(__clang__)
#define MODEL_ALIAS __attribute__((may_alias))
#define MODEL_APART __attribute__((noinline)) /* inlined, loops run out of registers */
#else
#define MODEL_ALIAS
#define MODEL_APART
#endif
#if defined(__AVR__) && defined(__FLASH)
#define MODEL_FLASH __flash /* elsewhere constants are copied to memory */
#else
#define MODEL_FLASH
#endif
#ifndef MODEL_CONSTANT
#define MODEL_CONSTANT
#endif
#ifndef MODEL_LAYER
#define MODEL_LAYER(number) /* comes before each layer, and at the end: a place for a timer */
#endif
typedef int8_t MODEL_ALIAS i8;
typedef int16_t MODEL_ALIAS i16;
typedef int32_t MODEL_ALIAS i32;
typedef int64_t MODEL_ALIAS i64;
typedef uint8_t MODEL_ALIAS u8;
typedef uint16_t MODEL_ALIAS u16;
typedef uint32_t MODEL_ALIAS u32;

/* Shifting a negative number right must keep its sign, as every compiler in use does. */
typedef char model_shifts_keep_signs[(-1 >> 1) == -1 ? 1 : -1];
"""

DSP = """\
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && !defined(MODEL_PORTABLE)
#define MODEL_DSP 1
#define MODEL_AT(k) (((k) & ~3) | (((k) & 1) << 1) | (((k) >> 1) & 1))
#define MODEL_EXPAND(name, code) \\
    static inline u32 name(u32 x) { \\
        u32 y; \\
        __asm__(code : "=r"(y) : "r"(x)); \\
        return y; \\
    }
typedef uint64_t MODEL_ALIAS u64;
MODEL_EXPAND(even_i8, "sxtb16 %0, %1")
MODEL_EXPAND(odd_i8, "sxtb16 %0, %1, ror #8")
MODEL_EXPAND(even_u8, "uxtb16 %0, %1")
MODEL_EXPAND(odd_u8, "uxtb16 %0, %1, ror #8")
static inline i32 add_products(u32 x, u32 y, i32 sum) {
    i32 z;
    __asm__("smlad %0, %1, %2, %3" : "=r"(z) : "r"(x), "r"(y), "r"(sum));
    return z;
}
static inline u32 word(const void *from) {
    u32 x;
    memcpy(&x, from, 4);
    return x;
}
#else
#define MODEL_AT(k) (k)
#endif
"""

ROUNDING = {
    "half_up": """\
static inline int64_t half_up(int64_t x, int s) {
    if (s <= 0) return x * ((int64_t)1 << -s);
    if (s > 62) return 0;
    return (x + ((int64_t)1 << (s - 1))) >> s;
}
""",
    "half_even": """\
static inline int64_t half_even(int64_t x, int s) {
    if (s <= 0) return x * ((int64_t)1 << -s);
    if (s > 62) return 0;
    return (x + ((int64_t)1 << (s - 1)) - 1 + ((x >> s) & 1)) >> s;
}
""",
    "half_up_32": """\
static inline int32_t half_up_32(int32_t x, int s) {
    return s <= 0 ? x * ((int32_t)1 << -s) : (x + ((int32_t)1 << (s - 1))) >> s;
}
""",
    "half_even_32": """\
static inline int32_t half_even_32(int32_t x, int s) {
    if (s <= 0) return x * ((int32_t)1 << -s);
    return (x + ((int32_t)1 << (s - 1)) - 1 + ((x >> s) & 1)) >> s;
}
""",
    "wrap": """\
static inline int64_t wrap(int64_t x, int64_t low, int64_t high) {
    uint64_t mask = (uint64_t)high - (uint64_t)low;
    return (int64_t)(((uint64_t)x - (uint64_t)low) & mask) + low;
}
""",
}

WINDOW = "struct window {\n    int16_t " + ", ".join(GEOMETRY) + ";\n};\n"


def column_code(kind: str, paired: bool) -> str:
    """Functions that copy what a window reads to a column.

    Args:
        kind: the type of what is read.
        paired: whether the weights have 8 bits, so that elements are in the order of MODEL_AT.
    """
    at = "MODEL_AT(k + i)" if paired else "k + i"
    name = f"{kind}{'p' if paired else ''}"
    fast = f"""\
#ifdef MODEL_DSP
    if (((k | count) & 3) == 0) {{
        for (; i < count; i += 4) {{
            const u32 four = word(from + i), pairs[2] = {{even_{kind}(four), odd_{kind}(four)}};
            memcpy(column + k + i, pairs, 8);
        }}
        return count;
    }}
#endif
"""
    return f"""\
static MODEL_APART int run_{name}(i16 *column, int k, const {kind} *from, int count) {{
    int i = 0;
{fast if paired and kind in ("i8", "u8") else ""}    for (; i < count; i++) column[{at}] = from[i];
    return count;
}}
"""


def window_code(kind: str, paired: bool) -> str:
    """A function that makes the column of one pixel of the result; zeros are around the map."""
    at = "MODEL_AT(k + i)" if paired else "k + i"
    name = f"{kind}{'p' if paired else ''}"
    return f"""\
static MODEL_APART void window_{name}(
    const MODEL_FLASH struct window *s, const {kind} *map, int top, int left, i16 *column) {{
    const int channels = s->channels, height = s->height, width = s->width;
    const int rows = s->kernel_y, places = s->kernel_x, step_y = s->step_y, step_x = s->step_x;
    const int whole = step_x == 1 && left >= 0 && left + places <= width ? places * channels : 0;
    int k = 0;
    for (int plane = s->planes; plane > 0; plane--, map += (int32_t)height * width) {{
        for (int ky = rows, y = top; ky > 0; ky--, y += step_y) {{
            const {kind} *row = map + ((int32_t)y * width + left) * channels;
            const int inside = y >= 0 && y < height;
            if (inside && whole) {{
                k += run_{name}(column, k, row, whole);
                continue;
            }}
            for (int x = left; x < left + places * step_x; x += step_x, row += step_x * channels) {{
                if (inside && x >= 0 && x < width) {{
                    k += run_{name}(column, k, row, channels);
                }} else {{
                    for (int i = 0; i < channels; i++) column[{at}] = 0;
                    k += channels;
                }}
            }}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Packing:
    """Weights of a few bits in bytes: each expression gives four of them, in their top bits.

    The letters x, y and z stand for words of the bytes, or single bytes of them; #c0 for a mask of
    each byte.
    """

    words: tuple[str, ...]
    letters: str = "x"

    @property
    def weights(self) -> int:
        """Weights of a group."""
        return 4 * len(self.words)

    @property
    def bytes(self) -> int:
        """Bytes of a group."""
        return 4 * len(self.letters)

    def load(self, row: str, at: str, wide: bool) -> list[str]:
        """Statements that read the bytes of a group, whole words or one byte of each."""
        read = "const u32 {0} = word({1} + {2});" if wide else "const u8 {0} = {1}[{2} + {3}];"
        return [
            read.format(f"{row}{letter}", f"w{at}", 4 * place, "j")
            for place, letter in enumerate(self.letters)
        ]

    def expression(self, place: int, row: str, wide: bool) -> str:
        """An expression for four weights as a word, or for one of them."""
        text = re.sub("[xyz]", lambda letter: row + letter[0], self.words[place])
        text = re.sub(r"#(\w\w)", lambda mask: f"0x{mask[1] * (4 if wide else 1)}u", text)
        return text if wide else f"(int8_t)({text})"


PACKINGS = {
    2: Packing(("x << 6 & #c0", "x << 4 & #c0", "x << 2 & #c0", "x & #c0")),
    4: Packing(("x << 4 & #f0", "x & #f0")),
    6: Packing(
        ("x << 2 & #fc", "y << 2 & #fc", "z << 2 & #fc",
         "(x & #c0) | (y & #c0) >> 2 | (z & #c0) >> 4"), "xyz",
    ),
    8: Packing(("x",)),
}  # fmt: skip
"""By the bits of weights."""


def pack_weights(rows: Codes, bits: int) -> Codes:
    """Return the bytes of rows of weights, each as many as a multiple of a group."""
    if bits == 8:
        return rows
    fours: Codes = (rows & (2**bits - 1)).reshape(len(rows), -1, PACKINGS[bits].weights // 4, 4)
    if bits == 6:
        tops = np.stack([fours[:, :, 3] >> shift & 3 for shift in (4, 2, 0)], 2)
        fours = fours[:, :, :3] | tops << 6
    else:
        fours = (fours << bits * np.arange(fours.shape[2])[:, None]).sum(2)
    return fours.reshape(len(rows), -1)


def dot_code(bits: int, columns: int) -> str:
    """A function that adds the products of two rows of weights with one or two columns."""
    sums = [f"s{place}" for place in range(2 * columns)]
    second = ", *x1 = x0 + padded" if columns == 2 else ""
    shift = f" >> {8 - bits}" if bits < 8 else ""  # packed weights are in the top bits of a byte
    begin = "0" if shift else "s[{}]"
    load = ", ".join(f"{name} = {begin.format(place)}" for place, name in enumerate(sums))
    way = "+=" if shift else "="
    store = " ".join(f"s[{place}] {way} {name}{shift};" for place, name in enumerate(sums))
    kind = "i16" if bits == 16 else "i8" if bits == 8 else "u8"
    if bits == 16:
        lines = ["    for (int k = 0; k < padded; k++) {", *_plain_products(columns), "    }"]
    else:
        loop = f"    for (int k = 0; k < padded; k += {PACKINGS[bits].weights}, "
        loop += "w0 += {0}, w1 += {0}) {{".format(PACKINGS[bits].bytes)
        fast = [loop, *_fast_products(bits, columns), "    }"]
        slow = [loop, "        for (int j = 0; j < 4; j++) {", *_byte_products(bits, columns),
                "        }", "    }"]  # fmt: skip
        if bits == 8:
            slow = ["    for (int k = 0; k < padded; k++) {", *_plain_products(columns), "    }"]
        lines = ["#ifdef MODEL_DSP", *fast, "#else", *slow, "#endif"]
    rows = ", ".join(f"const MODEL_FLASH {kind} *w{row}" for row in range(2))
    head = [
        f"static MODEL_APART void dot{columns}_{bits}(",
        f"    const i16 *x0, {rows}, int padded, i32 *s) {{",
        f"    int32_t {load};",
        *([f"    const i16{second[1:]};"] if second else []),
    ]
    return "\n".join([*head, *lines, f"    {store}", "}", ""])


def _plain_products(columns: int) -> list[str]:
    """Statements of one weight of each row."""
    lines = ["        const int32_t a = w0[k], b = w1[k];"]
    for one in range(columns):
        lines.append(f"        s{2 * one} += a * x{one}[k];")
        lines.append(f"        s{2 * one + 1} += b * x{one}[k];")
    return lines


def _byte_products(bits: int, columns: int) -> list[str]:
    """Statements of the weights in the bytes ``j`` of a group."""
    packing = PACKINGS[bits]
    lines = [*packing.load("a", "0", wide=False), *packing.load("b", "1", wide=False)]
    for place in range(len(packing.words)):
        a, b = (packing.expression(place, row, wide=False) for row in "ab")
        lines.append(f"const int32_t a{place} = {a}, b{place} = {b};")
        for one in range(columns):
            x = f"x{one}[k + {4 * place} + j]"
            lines.append(f"s{2 * one} += a{place} * {x};")
            lines.append(f"s{2 * one + 1} += b{place} * {x};")
    return [f"            {line}" for line in lines]


def _fast_products(bits: int, columns: int) -> list[str]:
    """Statements of a group of weights with DSP instructions."""
    packing = PACKINGS[bits]
    lines = [*packing.load("a", "0", wide=True), *packing.load("b", "1", wide=True)]
    for place in range(len(packing.words)):
        a, b = (packing.expression(place, row, wide=True) for row in "ab")
        lines += [
            "{",
            f"    const u32 a = {a}, b = {b};",
            "    const u32 a0 = even_i8(a), a1 = odd_i8(a), b0 = even_i8(b), b1 = odd_i8(b);",
        ]
        for one in range(columns):
            first, second = f"s{2 * one}", f"s{2 * one + 1}"
            x = f"four{one}"
            lines += [
                f"    const u64 {x} = *(const u64 *)(x{one} + k + {4 * place});",
                f"    {first} = add_products(a0, (u32){x}, {first});",
                f"    {second} = add_products(b0, (u32){x}, {second});",
                f"    {first} = add_products(a1, (u32)({x} >> 32), {first});",
                f"    {second} = add_products(b1, (u32)({x} >> 32), {second});",
            ]
        lines.append("}")
    return [f"        {line}" for line in lines]
