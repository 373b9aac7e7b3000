"""Products with constant matrices, in the form that costs least.

Weights are rows of bytes, rows packed in 2, 4 or 6 bits, tables of those that are not zero, or
statements: sums and differences of inputs, times the few magnitudes that weights have.
"""

from dataclasses import dataclass

import numpy as np

from chop.export.c.code import Work, literal, short_type
from chop.export.c.costs import WeightMatrix, weight_bits
from chop.export.c.kernels import PACKINGS, column_code, dot_code, pack_weights, window_code
from chop.export.c.plan import Layer, Stored, channels_last
from chop.export.c.writer import LayerWriter
from chop.lowering import program as steps
from chop.lowering.program import Codes
from chop.lowering.ranges import reach


@dataclass(frozen=True)
class MatrixLayer:
    """A layer that multiplies columns of its source with constant rows."""

    layer: Layer
    writer: LayerWriter
    source: Stored
    weight: Codes
    bias: Codes
    geometry: tuple[int, ...]
    """The fields of ``struct window`` but for the last two."""

    @property
    def pixels(self) -> int:
        """Columns of a row of the batch."""
        return self.geometry[-2] * self.geometry[-1]

    @property
    def order(self) -> Codes | None:
        """The order of the result in memory."""
        is_map = isinstance(self.layer.head, steps.Convolution)
        return channels_last(self.layer.head.out.shape) if is_map else None

    def loops(self, by_pairs: bool) -> dict[str, float]:
        """Iterations of the loops of a layer by their variables; of two by two or one by one."""
        height, width, count = *self.geometry[-2:], len(self.weight)
        found: dict[str, float] = {"i0": count, "i2": width, "q": height}
        if by_pairs:
            rounds, pairs = -(-self.pixels // 2), -(-count // 2)
            found |= {"top": height, "q": self.pixels / rounds, "i0": count / pairs, "i": pairs}
            if self.pixels > 1:
                found["i"] = pairs * rounds / self.pixels  # every second column waits
        return found

    def column(self) -> str:
        """The array that a column is read from: the source itself if there is but one."""
        if self.pixels == 1:
            return self.source.name
        size, label = self.weight.shape[1], f"columns of {self.layer.head.node}"
        return self.writer.buffer(label, 2 * size, "i16", self.writer.number)[0]

    def body(self, expression: str) -> list[str]:
        """Statements from a sum to what is stored."""
        count = len(self.weight)
        out = self.writer.result(self.layer, self.order, count)
        to = self.writer.elements(self.order, count)
        to.assign(self.layer.head.out, expression, 0)
        return self.writer.chain(self.layer, to, out)


def write_matrix(
    layer: Layer, writer: LayerWriter, source: Stored, weight: Codes, bias: Codes,
    geometry: tuple[int, ...],
) -> None:  # fmt: skip
    """Write a product of columns with rows of weights.

    Args:
        weight: a row for each output, in the order of a column.
        geometry: the fields of ``struct window`` but for the last two.
    """
    at = MatrixLayer(layer, writer, source, weight, bias, geometry)
    form = writer.forms[layer.head.out.name]
    if form in ("sparse", "code"):
        {"sparse": write_sparse, "code": write_code}[form](at)
    else:
        _, _, bits = form.partition(" ")
        write_rows(at, int(bits) if bits else weight_bits(weight))


def write_rows(at: MatrixLayer, bits: int) -> None:
    """Write products with whole rows, two rows and two columns at a time."""
    writer, weight, pixels = at.writer, at.weight, at.pixels
    (count, size), kind = weight.shape, short_type(at.source.value)
    group, p = (1, "") if bits == 16 else (PACKINGS[bits].weights, "p")
    padded, pair = -(-size // group) * group, min(pixels, 2)
    rows = np.pad(weight, ((0, 0), (0, padded - size)))
    short = "int16_t" if bits == 16 else "int8_t" if bits == 8 else "uint8_t"
    stored = rows if bits == 16 else pack_weights(rows, bits)
    w, b = writer.text.constant(stored, short), writer.text.constant(at.bias, "int32_t")
    columns, _ = writer.buffer(
        f"columns of {at.layer.head.node}", 2 * padded * pair, "i16", writer.number
    )
    writer.code[f"run_{kind}{p}"] = column_code(kind, bool(p))
    writer.code[f"dot{pair}_{bits}"] = dot_code(bits, pair)
    body = at.body("sums[j]")
    across = "padded" if bits in (8, 16) else f"(padded / {group} * {PACKINGS[bits].bytes})"
    given = f"{w} + (int32_t)i * {across}, {w} + (int32_t)other * {across}, padded, sums"
    two = [
        "const int other = i + 1 < n ? i + 1 : i;",
        f"i32 sums[{2 * pair}] = {{{', '.join([f'{b}[i], {b}[other]'] * pair)}}};",
        f"dot{pair}_{bits}({columns}, {given});",
    ]
    x, calls = at.source.name, -(-pixels // 2) * -(-count // 2)
    way = f"dot{pair}_{bits}"
    counts = {way: float(calls), f"{way} products": float(calls * padded)}
    trips = at.loops(by_pairs=True) | {"z": 2 * padded if pixels > 1 else padded - size}
    work = Work(trips, counts | column_counts(at.geometry, size, kind, bool(p)))
    if pixels == 1:
        writer.text.call(single_column(columns, x, f"{kind}{p}", two, body), at.layer.remark,
                         [("k", size), ("padded", padded), ("n", count)], work=work)  # fmt: skip
        return
    writer.code[f"window_{kind}{p}"] = window_code(kind, bool(p))
    g = writer.text.geometry([*at.geometry, padded, count])
    lines = two_columns(columns, x, f"{kind}{p}", g, two, body)
    writer.text.call(lines, at.layer.remark, work=work)


def single_column(columns: str, x: str, kind: str, two: list[str], body: list[str]) -> list[str]:
    """Statements of a product with one column."""
    inner = [
        *two,
        "for (int i0 = i, j = 0; i0 <= other; i0++, j++) {",
        *(f"    {line}" for line in ("const int p = i0;", *body)),
        "}",
    ]
    return [
        f"for (int z = k; z < padded; z++) {columns}[z] = 0;",
        f"run_{kind}({columns}, 0, {x}, k);",
        "for (int i = 0; i < n; i += 2) {",
        *(f"    {line}" for line in inner),
        "}",
    ]


def two_columns(
    columns: str, x: str, kind: str, g: str, two: list[str], body: list[str]
) -> list[str]:
    """Statements of a product with the columns of all pixels, two at a time."""
    inner = [
        *two,
        "for (int q = pixel & ~1, j = 0; q <= pixel; q++, j = 2) {",
        "    for (int i0 = i; i0 <= other; i0++, j++) {",
        "        const int p = q * n + i0;",
        *(f"        {line}" for line in body),
        "    }",
        "}",
    ]
    return [
        f"const int padded = {g}->padded, n = {g}->outputs, width = {g}->out_width;",
        f"const int stride_y = {g}->stride_y, stride_x = {g}->stride_x;",
        f"const int pixels = {g}->out_height * width;",
        "int pixel = 0;",
        f"for (int z = 0; z < 2 * padded; z++) {columns}[z] = 0;",
        f"for (int top = -{g}->pad_y; pixel < pixels; top += stride_y) {{",
        f"    for (int i2 = 0, left = -{g}->pad_x; i2 < width; i2++, pixel++, left += stride_x) {{",
        f"        window_{kind}({g}, {x}, top, left, {columns} + (pixel & 1) * padded);",
        "        if ((pixel & 1) == 0 && pixel + 1 < pixels) continue;",
        "        for (int i = 0; i < n; i += 2) {",
        *(f"            {line}" for line in inner),
        "        }",
        "    }",
        "}",
    ]


def column_counts(
    geometry: tuple[int, ...], size: int, kind: str, by_pairs: bool
) -> dict[str, float]:
    """Return the work of the functions that fill columns, in all columns of a layer."""
    planes, channels, height, width, *kernel = geometry
    rows, places, stride_y, stride_x, pad_y, pad_x, step_y, step_x, out_height, out_width = kernel
    quick, slow = by_pairs and kind in ("i8", "u8"), "by places" if by_pairs else "in order"
    if out_height * out_width == 1:
        way = "quick" if quick and size % 4 == 0 else slow
        return {"run": 1.0, f"run {way}": float(size)}
    tops = np.arange(out_height)[:, None] * stride_y - pad_y + np.arange(rows) * step_y
    lefts = np.arange(out_width)[:, None] * stride_x - pad_x + np.arange(places) * step_x
    beside = (lefts >= 0) & (lefts < width)
    whole = beside.all(1) & (step_x == 1)
    inside = int(((tops >= 0) & (tops < height)).sum()) * planes
    outside = tops.size * planes - inside
    long, short = inside * int(whole.sum()), inside * int(beside[~whole].sum())
    empty = inside * int((~beside[~whole]).sum()) + outside * out_width * places
    found = {"window": out_height * out_width, "window row": planes * rows * out_height * out_width,
             "run": long + short, "empty": empty, f"empty {slow}": empty * channels}  # fmt: skip
    for runs, length in ((long, places * channels), (short, channels)):
        way = "run quick" if quick and length % 4 == 0 else f"run {slow}"
        found[way] = found.get(way, 0) + runs * length
    return {name: float(number) for name, number in found.items()}


def write_sparse(at: MatrixLayer) -> None:
    """Write products with a table of the weights that are not zero, two at a time."""
    text, x = at.writer.text, at.column()
    places, weights, ends = sparse_tables(at.weight)
    a, e, b = (text.constant(each) for each in (places, ends, at.bias))
    w = text.constant(weights, "int8_t" if weight_bits(at.weight) == 8 else "int16_t")
    sums = [
        f"i32 sum = {b}[i0];",
        f"for (const int end = {e}[i0]; k < end; k += 2) {{",
        f"    sum += (i32){w}[k] * {x}[{a}[k]];",
        f"    sum += (i32){w}[k + 1] * {x}[{a}[k + 1]];",
        "}",
    ]
    trips = {"end": len(weights) / 2 / len(at.weight)}
    write_columns(at, x, ["int k = 0;"], [*sums, *at.body("sum")], {x}, Work(trips))


def sparse_tables(weight: Codes) -> tuple[Codes, Codes, Codes]:
    """Places and weights of the entries of each row, an even number of them, and their ends."""
    places, weights, ends = [], [], []
    for row in weight:
        found = np.nonzero(row)[0].tolist()
        found += [0] * (len(found) % 2)
        places += found
        weights += [int(row[place]) for place in found]
        if len(found) and np.count_nonzero(row) % 2:
            weights[-1] = 0
        ends.append(len(places))
    if not places:
        places, weights = [0, 0], [0, 0]
    return np.array(places), np.array(weights), np.array(ends)


def write_code(at: MatrixLayer) -> None:
    """Write products as statements, which store the sums for a loop over the outputs."""
    writer, number = at.writer, at.writer.number
    largest = reach(at.layer.head, [at.source.value])
    kind = "i16" if largest < 2**15 else "i32"
    x, (sums, _) = (
        at.column(),
        writer.buffer(
            f"sums of {at.layer.head.node}", len(at.bias) * int(kind[1:]) // 8, kind, number
        ),
    )
    plain = at.pixels == 1
    given = short_type(at.source.value) if plain else "i16"
    if plain and at.source.value.limits[0] >= 0:  # loads of numbers without a sign are shorter
        given = given.replace("i", "u")
    name = f"sums{number}"
    lines = [
        f"    s[{place}] = {row_expression(row, int(bias), kind == 'i32')};"
        for place, (row, bias) in enumerate(zip(at.weight, at.bias, strict=True))
    ]
    head = f"static MODEL_APART void {name}(const {given} *x, {kind} *s) {{"
    writer.code[name] = "\n".join(
        [head, "    (void)x; /* all weights may be zero */", *lines, "}", ""]
    )
    cast = f"(const {given} *)" if plain else ""
    matrix = WeightMatrix(at.weight, at.pixels, largest)
    groups, odd = matrix.magnitudes
    terms = {"terms": matrix.nonzero, "groups": groups, "factors": odd, "rows": len(at.bias)}
    counts = {f"code {word}": float(at.pixels * number) for word, number in terms.items()}
    writer.text.statements.append(terms)
    write_columns(at, x, [f"{name}({cast}{x}, {sums});"], at.body(f"{sums}[i0]"), {x, sums},
                  Work(counts=counts))  # fmt: skip


def row_expression(row: Codes, bias: int, wide: bool) -> str:
    """A sum of products, each magnitude times the inputs that have it."""
    cast = "(i32)" if wide else ""
    groups: dict[int, list[tuple[bool, int]]] = {}
    for place in np.nonzero(row)[0].tolist():
        groups.setdefault(abs(int(row[place])), []).append((row[place] < 0, place))
    text = literal(bias) if bias or not groups else ""
    for magnitude, members in groups.items():
        members.sort()
        is_minus = members[0][0]
        inner = f"{cast}x[{members[0][1]}]" + "".join(
            f" {'-' if minus != is_minus else '+'} {cast}x[{place}]" for minus, place in members[1:]
        )
        term = inner if len(members) == 1 or (magnitude == 1 and not is_minus) else f"({inner})"
        term = term if magnitude == 1 else f"{term} * {literal(magnitude)}"
        text += (" - " if text else "-") + term if is_minus else (" + " if text else "") + term
    return text


def write_columns(
    at: MatrixLayer, x: str, before: list[str], inner: list[str], writes: set[str], work: Work,
) -> None:  # fmt: skip
    """Write loops over the columns of a layer and over its outputs.

    Args:
        x: the array of a column.
        before: statements before the loop over the outputs of a column.
        inner: statements of an output ``i0`` that is stored at ``p``.
        writes: arrays that functions write which are called.
        work: of what is inside.
    """
    copies = column_counts(at.geometry, at.weight.shape[1], short_type(at.source.value), False)
    own = copies if at.pixels > 1 else {}
    work = Work({**at.loops(by_pairs=False), **work.trips}, {**own, **work.counts})
    writer, count, kind = at.writer, len(at.weight), short_type(at.source.value)
    place = "const int p = i0;" if at.pixels == 1 else "const int p = q * n + i0;"
    loop = ["for (int i0 = 0; i0 < n; i0++) {", *(f"    {line}" for line in (place, *inner)), "}"]
    if at.pixels == 1:
        sizes = [("n", count)]
        writer.text.call([*before, *loop], at.layer.remark, sizes, writes - {x}, work)
        return
    writer.code[f"run_{kind}"] = column_code(kind, paired=False)
    writer.code[f"window_{kind}"] = window_code(kind, paired=False)
    g = writer.text.geometry([*at.geometry, at.weight.shape[1], count])
    lines = [
        f"const int n = {g}->outputs, width = {g}->out_width;",
        f"const int pixels = {g}->out_height * width;",
        f"for (int q = 0, top = -{g}->pad_y; q < pixels; top += {g}->stride_y) {{",
        f"    int left = -{g}->pad_x;",
        f"    for (int i2 = 0; i2 < width; i2++, q++, left += {g}->stride_x) {{",
        f"        window_{kind}({g}, {at.source.name}, top, left, {x});",
        *(f"        {line}" for line in (*before, *loop)),
        "    }",
        "}",
    ]
    writer.text.call(lines, at.layer.remark, (), writes, work)
