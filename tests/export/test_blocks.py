"""Single blocks of folded circuits against NumPy, over random shapes, with pauses and a reset."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from circuits import Rows, needs

from chop.export.verilog.bench import (
    EXPECTED,
    ROWS,
    StreamBeats,
    simulate,
    stream_part,
    write_bench,
)
from chop.export.verilog.folded.circuit import PORTS
from chop.export.verilog.folded.nodes import WindowShape
from chop.export.verilog.folded.plan import packed_words
from chop.export.verilog.folded.text import BLOCKS

IMAGES = 4
FILES = Path(packed_words.__code__.co_filename).parent
Made = tuple[dict[str, int], int, int, Rows, Rows]
"""Parameters of a block, bits of codes in and out, and beats in and out for some images."""


def random_window(random: np.random.Generator, largest: int = 3) -> WindowShape:
    """A window of any kernel, stride, padding and dilation over an image that it fits into."""
    kernel, stride, dilation = (
        tuple(random.integers(1, most + 1, 2).tolist()) for most in (largest, 2, 2)
    )
    padding = tuple(int(random.integers(0, k)) for k in kernel)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = tuple(int(s + random.integers(1, 5)) for s in span)
    result = tuple(
        (n + 2 * p - s) // t + 1 for n, p, s, t in zip(size, padding, span, stride, strict=True)
    )
    return WindowShape(size, result, kernel, stride, padding, dilation)


def windows(images: Rows, shape: WindowShape, fill: int) -> Rows:
    """Images (count, rows, columns, channels) as (count, places, taps, channels)."""
    (top, left), (down, right) = shape.padding, shape.dilation
    room = [(0, 0), (top, top + 9), (left, left + 9), (0, 0)]
    wide = np.pad(images, room, constant_values=fill)
    found = [
        wide[:, y * shape.stride[0] + i * down, x * shape.stride[1] + j * right]
        for y in range(shape.result[0]) for x in range(shape.result[1])
        for i in range(shape.kernel[0]) for j in range(shape.kernel[1])
    ]  # fmt: skip
    return np.stack(found, 1).reshape(len(images), -1, shape.taps, images.shape[-1])


def window(random: np.random.Generator) -> Made:
    shape, lanes, beats, repeats = random_window(random), 2, int(random.integers(1, 4)), 2
    images = random.integers(0, 16, (IMAGES, *shape.size, beats * lanes))
    outer = int(random.integers(0, 2))
    found = windows(images, shape, 5).reshape(IMAGES, -1, shape.taps, beats, lanes)
    if outer:
        repeats, found = 1, found.transpose(0, 1, 3, 2, 4)
    else:
        found = np.repeat(found[:, :, None], repeats, 2)
    parameters = {"B": 4 * lanes, "CF": beats, "REP": repeats, "OUTER": outer, "FILL": 0x55,
                  "ROWS": shape.rows(1), "BLOCK": 0} | shape.parameters  # fmt: skip
    return parameters, 4, 4, images.reshape(-1, lanes), found.reshape(-1, lanes)


def taps(random: np.random.Generator) -> Made:
    shape, lanes, repeats = random_window(random), 2, int(random.integers(1, 4))
    while not shape.moves:
        shape = random_window(random)
    images = random.integers(0, 16, (IMAGES, *shape.size, lanes))
    found = windows(images, shape, 5).transpose(0, 1, 3, 2)
    parameters = {"L": lanes, "XW": 4, "REP": repeats, "BLOCK": 0, "FILL": 0x55} | shape.parameters
    beats = np.repeat(found.reshape(-1, lanes * shape.taps), repeats, 0)
    return parameters, 4, 4, images.reshape(-1, lanes), beats


def pool(random: np.random.Generator) -> Made:
    (kh, kw), lanes, beats = random.integers(1, 4, 2).tolist(), 2, int(random.integers(1, 3))
    high, wide = (int(k * random.integers(1, 4) + random.integers(0, k)) for k in (kh, kw))
    images = random.integers(-8, 8, (IMAGES, high, wide, beats * lanes))
    largest = int(random.integers(0, 2))
    rows, columns = high // kh, wide // kw
    cut = images[:, : rows * kh, : columns * kw].reshape(IMAGES, rows, kh, columns, kw, -1)
    found = cut.max((2, 4)) if largest else cut.sum((2, 4))
    parameters = {"L": lanes, "XW": 4, "XS": 1, "AW": 8, "MAX": largest, "CF": beats, "H": high,
                  "W": wide, "KH": kh, "KW": kw}  # fmt: skip
    return parameters, 4, 8, images.reshape(-1, lanes), found.reshape(-1, lanes)


def pool_taps(random: np.random.Generator) -> Made:
    count, lanes, largest = int(random.integers(2, 10)), 2, int(random.integers(0, 2))
    codes = random.integers(-8, 8, (IMAGES * 6, lanes, count))
    found = codes.max(2) if largest else codes.sum(2)
    parameters = {"L": lanes, "T": count, "XW": 4, "XS": 1, "AW": 8, "MAX": largest}
    return parameters, 4, 8, codes.reshape(len(codes), -1), found


def widen(random: np.random.Generator) -> Made:
    count = int(random.integers(2, 6))
    codes = random.integers(0, 16, (IMAGES * 6 * count, 2))
    return {"B": 8, "N": count}, 4, 4, codes, codes.reshape(-1, 2 * count)


def narrow(random: np.random.Generator) -> Made:
    parameters, _, _, codes, beats = widen(random)
    return parameters, 4, 4, beats, codes


def queue(random: np.random.Generator) -> Made:
    codes = random.integers(0, 16, (IMAGES * 40, 2))
    return {"B": 8, "A": int(random.integers(1, 4)), "BLOCK": 0}, 4, 4, codes, codes


def slice_(random: np.random.Generator) -> Made:
    codes = random.integers(0, 16, (IMAGES * 10, 2))
    return {"B": 8}, 4, 4, codes, codes


def matrix(random: np.random.Generator) -> Made:
    units, wide, groups, sums = (int(random.integers(1, most)) for most in (4, 6, 4, 4))
    bits = int(random.integers(2, 10))
    weight = random.integers(-(1 << bits - 1), 1 << bits - 1, (groups, units, sums, wide))
    bias = random.integers(-500, 500, (groups, units))
    codes = random.integers(-8, 8, (IMAGES * 3, sums, wide))
    found = np.einsum("psw,gusw->pgu", codes, weight) + bias
    words = packed_words(weight.transpose(0, 2, 1, 3).reshape(groups * sums, -1), bits)
    LISTS["weights"], LISTS["bias"] = words, packed_words(bias, 20)
    parameters = {"PE": units, "SIMD": wide, "XW": 4, "XS": 1, "WW": bits, "AW": 20, "SF": sums,
                  "NF": groups, "A": 8, "N": 4}  # fmt: skip
    given = np.repeat(codes[:, None], groups, 1).reshape(-1, wide)
    return parameters, 4, 20, given, found.reshape(-1, units)


def add(random: np.random.Generator) -> Made:
    lanes, factors = int(random.integers(1, 4)), random.integers(1, 5, 2).tolist()
    codes = random.integers(-8, 8, (IMAGES * 8, 2 * lanes))
    found = codes[:, :lanes] * factors[0] + codes[:, lanes:] * factors[1]
    parameters = {"L": lanes, "AW": 4, "AS": 1, "BW": 4, "BS": 1, "YW": 8, "FA": factors[0],
                  "FB": factors[1]}  # fmt: skip
    return parameters, 4, 8, codes, found


def concat(random: np.random.Generator) -> Made:
    count = int(random.integers(1, 4))
    codes = random.integers(0, 16, (IMAGES * 4, count, 2))
    found = np.concatenate([codes[:, :, 0], codes[:, :, 1]], 1)
    return {"B": 4, "NA": count, "NB": count}, 4, 4, codes.reshape(-1, 2), found.reshape(-1, 1)


LISTS: dict[str, list[int]] = {}
"""The memories beside a matrix unit."""
KINDS: dict[str, Callable[[np.random.Generator], Made]] = {
    "chop_window": window, "chop_taps": taps, "chop_pool": pool, "chop_pool_taps": pool_taps,
    "chop_widen": widen, "chop_narrow": narrow, "chop_queue": queue, "chop_slice": slice_,
    "chop_matrix": matrix, "chop_add": add, "chop_concat": concat,
}  # fmt: skip


def instance(kind: str, settings: str, bits: int) -> str:
    """The text of a block with what it needs beside it: memories, or a fork before two sides."""
    clocked = ".clk(clk), .reset(~resetn)"
    s, m = (", ".join(f".{each}_{p}({each}_{p})" for p in ("data", "valid", "ready"))
            for each in "sm")  # fmt: skip
    if kind == "chop_matrix":
        memories = "".join(
            f"  reg [511:0] {name} [0:255]; reg [511:0] {name}_word;\n  initial begin "
            + " ".join(f"{name}[{at}] = 512'h{word:x};" for at, word in enumerate(words))
            + " end\n"
            for name, words in LISTS.items()
        )
        return f"""{memories}  wire go; wire [7:0] at; wire [3:0] group;
  always @(posedge clk) if (go) begin weights_word <= weights[at]; bias_word <= bias[group]; end
  {kind} #({settings}) block ({clocked}, {s}, {m}, .go(go), .at(at), .group(group),
    .weights(weights_word), .bias(bias_word));"""
    if kind not in ("chop_add", "chop_concat"):
        return f"  {kind} #({settings}) block ({clocked}, {s}, {m});"
    half, sides = bits // 2, ""
    for place, side in enumerate("ab"):
        sides += f"""  wire [{half - 1}:0] {side}_data; wire {side}_valid, {side}_ready;
  chop_queue #(.B({half}), .A(2)) {side}_queue ({clocked},
    .s_data(s_data[{place * half} +: {half}]), .s_valid(valid[{place}]),
    .s_ready(ready[{place}]), .m_data({side}_data), .m_valid({side}_valid),
    .m_ready({side}_ready));
"""
    ends = ", ".join(f".{x}_{p}({x}_{p})" for x in "ab" for p in ("data", "valid", "ready"))
    return f"""  wire [1:0] valid, ready;
  chop_fork #(.B({bits}), .N(2)) both ({clocked}, {s}, .m_data(), .m_valid(valid), .m_ready(ready));
{sides}  {kind} #({settings}) block ({clocked}, {ends}, {m});"""


@needs("iverilog")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_gives_what_numpy_does(kind: str, seed: int, tmp_path: Path) -> None:
    parameters, reads, gives, given, wanted = KINDS[kind](np.random.default_rng(seed))
    (tmp_path / BLOCKS).write_text((FILES / BLOCKS).read_text())
    widths = [rows.shape[1] * bits for rows, bits in ((given, reads), (wanted, gives))]
    each = [len(rows) // IMAGES for rows in (given, wanted)]
    settings = ", ".join(f".{name}({value})" for name, value in parameters.items())
    (tmp_path / "top.sv").write_text(f"""\
module top (input wire clk, input wire resetn, input wire [{widths[0] - 1}:0] s_data,
  input wire s_valid, output wire s_ready, output wire [{widths[1] - 1}:0] m_data,
  output wire m_valid, output wire m_last, input wire m_ready);
{instance(kind, settings, widths[0])}
  chop_last #(.BEATS({each[1]})) ending (.clk(clk), .reset(~resetn), .moved(m_valid & m_ready),
    .last(m_last));
endmodule
""")
    for name, rows, bits in ((ROWS, given, reads), (EXPECTED, wanted, gives)):
        text = "".join(f"{word:x}\n" for word in packed_words(rows, bits))
        (tmp_path / name).write_text(text)
    beats = StreamBeats(
        (widths[0], widths[1]), (len(given), len(wanted)), (each[0], each[1]), free=IMAGES - 1,
        spoilt=each[0] + each[0] // 2, quiet=5000, pause=100,
    )  # fmt: skip
    write_bench(tmp_path, [stream_part("top", f"{PORTS}, .m_last(stream_m_last)", beats)], IMAGES)
    simulate(tmp_path, "iverilog")
