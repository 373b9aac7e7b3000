"""The fixed functions of the C: columns of a window, products with them, rounding.

A layer copies what a window reads to a column of 16-bit numbers. With the DSP instructions of Arm
(MODEL_DSP) four 8-bit weights are expanded to two words by two instructions, as pairs of every
second weight; so elements of a column are in that order there (MODEL_AT).
"""

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
#ifndef MODEL_CONSTANT
#define MODEL_CONSTANT
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
    const struct window *s, const {kind} *map, int top, int left, i16 *column) {{
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


def dot_code(kind: str, columns: int) -> str:
    """A function that adds the products of two rows of weights with one or two columns."""
    ones = range(columns)
    sums = [f"s{2 * column + row}" for column in ones for row in range(2)]
    load = ", ".join(f"{name} = s[{place}]" for place, name in enumerate(sums))
    store = " ".join(f"s[{place}] = {name};" for place, name in enumerate(sums))
    second = ", *x1 = x0 + padded" if columns == 2 else ""
    fast = [
        "        const u32 a = word(w0 + k), b = word(w1 + k);",
        "        const u32 a0 = even_i8(a), a1 = odd_i8(a), b0 = even_i8(b), b1 = odd_i8(b);",
    ]
    slow = ["        const int32_t a = w0[k], b = w1[k];"]
    for column in ones:
        x, (one, other) = f"x{column}", sums[2 * column : 2 * column + 2]
        fast += [
            f"        const u32 {x}a = word({x} + k), {x}b = word({x} + k + 2);",
            f"        {one} = add_products(a1, {x}b, add_products(a0, {x}a, {one}));",
            f"        {other} = add_products(b1, {x}b, add_products(b0, {x}a, {other}));",
        ]
        slow += [f"        {one} += a * {x}[k];", f"        {other} += b * {x}[k];"]
    quick = "#ifdef MODEL_DSP\n    for (int k = 0; k < padded; k += 4) {\n" + "\n".join(fast)
    plain = "    for (int k = 0; k < padded; k++) {\n" + "\n".join(slow) + "\n    }\n"
    body = f"{quick}\n    }}\n#else\n{plain}#endif\n" if kind == "i8" else plain
    return (
        f"static MODEL_APART void dot{columns}_{kind}(\n"
        f"    const i16 *x0, const {kind} *w0, const {kind} *w1, int padded, i32 *s) {{\n"
        f"    int32_t {load};\n"
        + (f"    const i16{second[1:]};\n" if second else "")
        + f"{body}    {store}\n}}\n"
    )
