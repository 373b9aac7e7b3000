"""The blocks of a folded circuit and the streams between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, gcd, prod

import numpy as np

from chop.export.verilog.folded import nodes as kinds
from chop.export.verilog.folded.estimate import block_rams, in_block, taps_memory
from chop.export.verilog.folded.folding import Folds
from chop.export.verilog.folded.nodes import StreamNode, WindowShape
from chop.export.verilog.folded.timing import StreamTiming, queue_beats
from chop.export.verilog.netlist import code_bits
from chop.lowering.program import Codes


@dataclass(frozen=True)
class Stream:
    """Wires with valid and ready: so many elements in a beat, and beats in an image."""

    name: str
    lanes: int
    limits: tuple[int, int]
    beats: int
    edge: str
    """From where to where, for people."""

    @property
    def width(self) -> int:
        """Bits of an element."""
        return code_bits(*self.limits)

    @property
    def signed(self) -> int:
        return int(self.limits[0] < 0)

    @property
    def bits(self) -> int:
        return self.lanes * self.width


@dataclass(frozen=True)
class Rom:
    """A memory of constants, of a power of two of words."""

    name: str
    width: int
    words: list[int]

    @property
    def address(self) -> int:
        """Bits of its addresses."""
        return address_bits(len(self.words))

    @property
    def parts(self) -> list[list[int]]:
        """The words of each memory: a power of two of them, and the rest if that saves blocks."""
        half = 1 << (self.address - 1)
        whole = block_rams(2 * half, self.width)
        rest = len(self.words) - half
        if not in_block(half, self.width):  # look-up tables in place of blocks are no saving
            return [self.words]
        if rest < 1 or block_rams(half, self.width) + block_rams(rest, self.width) >= whole:
            return [self.words]
        return [self.words[:half], self.words[half:]]


@dataclass(frozen=True)
class Block:
    """A module with its parameters and what is connected to it."""

    kind: str
    layer: str
    parameters: dict[str, int]
    ports: dict[str, Stream]
    """Streams by the name of the port: those from others are ``s``, ``a`` and ``b``."""
    roms: tuple[Rom, ...] = ()
    node: StreamNode | None = None
    """For functions of codes, whose module is made of it."""

    @property
    def given(self) -> list[Stream]:
        return [each for port, each in self.ports.items() if port.startswith("m")]


def address_bits(depth: int) -> int:
    """Bits that number so many places, at least one."""
    return max((depth - 1).bit_length(), 1)


def packed_words(rows: Codes, width: int) -> list[int]:
    """Rows of codes as words, the first code in the lowest bits."""
    mask = (1 << width) - 1
    return [
        sum((int(code) & mask) << (place * width) for place, code in enumerate(row))
        for row in rows.tolist()
    ]


@dataclass
class StreamPlan:
    """Makes the blocks of nodes that are folded."""

    nodes: Mapping[str, StreamNode]
    folds: Folds
    depths: Mapping[str, int] = field(default_factory=dict)
    """Beats of queues by edge, in place of those that are computed."""
    target: int = 0
    """The cycles that it was folded for."""
    blocks: list[Block] = field(default_factory=list)
    waiting: dict[str, dict[str, Stream]] = field(default_factory=dict)
    """The streams of a node by the node that will read them."""
    count: int = 0

    def __post_init__(self) -> None:
        self.timing = StreamTiming(self.nodes, self.folds)
        self.readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for source in node.sources:
                self.readers[source].append(node.name)
        for node in self.nodes.values():
            self.put(node, self.make(node))
        last = list(self.nodes.values())[-1]
        (result,) = self.waiting[last.name].values()
        self.output = self.stream(result, "output")
        self.add("chop_slice", last, {"B": result.bits}, s=result, m=self.output)

    @property
    def cycles(self) -> int:
        """Cycles of the slowest layer for an image."""
        return max(fold.cycles for fold in self.folds.values())

    @property
    def longest_wait(self) -> int:
        """Cycles after which nothing can be on its way from the input to the output any more."""
        return sum(fold.cycles for fold in self.folds.values())

    @property
    def images_held(self) -> int:
        """Images that windows and queues hold at most, those on their way included."""
        rows = sum(block.parameters["ROWS"] / block.parameters["H"] for block in self.blocks
                   if block.kind == "chop_window")  # fmt: skip
        return ceil(rows) + len(self.queues) + 1

    @property
    def queues(self) -> dict[str, int]:
        """Beats that each queue holds, by edge."""
        return {
            block.ports["s"].edge: 1 << block.parameters["A"]
            for block in self.blocks
            if block.kind == "chop_queue"
        }

    def stream(self, like: Stream | StreamNode, what: str, lanes: int = 0, **new: object) -> Stream:
        """A new stream of the elements of another, or of a node."""
        self.count += 1
        elements = like.lanes * like.beats if isinstance(like, Stream) else like.elements
        lanes = lanes or (like.lanes if isinstance(like, Stream) else self.folds[like.name].gives)
        limits = new.get("limits", like.limits)
        return Stream(f"e{self.count}", lanes, limits, elements // lanes, what)  # type: ignore[arg-type]

    def add(
        self, kind: str, node: StreamNode, parameters: dict[str, int], *roms: Rom, **ports: Stream
    ) -> None:
        """Add a block of a node."""
        of = node if kind in ("map", "chop_lookup") else None
        self.blocks.append(Block(kind, node.layer, parameters, ports, roms, of))

    def put(self, node: StreamNode, stream: Stream) -> None:
        """Hand the stream of a node to all that read it."""
        readers = self.readers[node.name]
        if len(readers) < 2:
            self.waiting[node.name] = {(readers or ["output"])[0]: stream}
            return
        edges = [f"{node.layer} to {self.nodes[each].layer}" for each in readers]
        branches = [self.stream(stream, edge) for edge in edges]
        ports = {f"m{place}": branch for place, branch in enumerate(branches)}
        self.add("chop_fork", node, {"B": stream.bits, "N": len(readers)}, s=stream, **ports)
        self.waiting[node.name] = dict(zip(readers, branches, strict=True))

    def queue(self, node: StreamNode, place: int, stream: Stream) -> Stream:
        """A stream that waits for the other one of a node, behind a queue for what comes early."""
        of_row = stream.beats / node.image[0]
        depth = queue_beats(self.timing.waiting[node.name, place], of_row)
        depth = self.depths.get(stream.edge, depth)
        if depth < 2:
            return stream
        out = self.stream(stream, f"{stream.edge}, queued")
        bits = address_bits(depth - 1)  # it holds one beat more than its memory
        block = int(in_block(1 << bits, stream.bits))
        self.add("chop_queue", node, {"B": stream.bits, "A": bits, "BLOCK": block}, s=stream, m=out)
        return out

    def take(self, node: StreamNode, place: int = 0) -> Stream:
        """The stream that a node reads, in beats of the width that it wants."""
        stream = self.waiting[node.sources[place]].pop(node.name)
        lanes = self.folds[node.name].reads
        if isinstance(node, kinds.JoinNode):
            lanes = min(lanes, self.nodes[node.sources[place]].image[2])
        for common in (gcd(stream.lanes, lanes), lanes):
            if stream.lanes > common:
                out = self.stream(stream, f"{stream.edge}, narrow", common)
                sizes = {"B": out.bits, "N": stream.lanes // common}
                self.add("chop_narrow", node, sizes, s=stream, m=out)
                stream = out
            elif stream.lanes < common:
                out = self.stream(stream, f"{stream.edge}, wide", common)
                sizes = {"B": stream.bits, "N": common // stream.lanes}
                self.add("chop_widen", node, sizes, s=stream, m=out)
                stream = out
        return stream

    def make(self, node: StreamNode) -> Stream:
        """Add the blocks of a node; its stream."""
        match node:
            case kinds.Source():
                self.input = self.stream(node, f"input to {self.layer_after(node)}")
                return self.input
            case kinds.Matrix():
                return self.matrix(node)
            case kinds.Pooled():
                return self.pool(node)
            case kinds.Mapped():
                return self.function(node)
            case kinds.JoinNode():
                return self.join(node)
            case kinds.Viewed():
                return self.take(node)
        raise NotImplementedError(type(node).__name__)

    def layer_after(self, node: StreamNode) -> str:
        return next((self.nodes[name].layer for name in self.readers[node.name]), "output")

    def result(self, node: StreamNode) -> Stream:
        return self.stream(node, f"{node.layer} to {self.layer_after(node)}")

    def window(
        self, node: kinds.Matrix | kinds.Pooled, stream: Stream, repeats: int, fill: int = 0
    ) -> Stream:
        """The windows of a node; outer channels where each has sums of its own."""
        shape, outer = node.window, isinstance(node, kinds.Pooled) or node.depthwise
        if shape.taps == 1 and shape.stride == (1, 1) and shape.padding == (0, 0):
            if repeats == 1:
                return stream
            size = prod(shape.size), 1  # pixel by pixel, whatever their rows
            shape = WindowShape(size, size, (1, 1))
        of_pixel = stream.beats // prod(shape.size)
        beats = prod(shape.result) * shape.taps * of_pixel * repeats
        out = Stream(f"w{self.count}", stream.lanes, stream.limits, beats,
                     f"windows of {node.layer}")  # fmt: skip
        self.count += 1
        whole = shape is node.window or prod(shape.size) == 1  # of which rows the times are known
        rows = shape.rows(self.timing.held[node.name] if whole else 4)
        depth = 1 << (address_bits(shape.size[1] * of_pixel) + address_bits(rows))
        parameters = {
            "B": stream.bits, "CF": of_pixel, "REP": repeats, "OUTER": int(outer),
            "ROWS": rows, "BLOCK": int(in_block(depth, stream.bits)),
            "FILL": packed_words(np.full((1, stream.lanes), fill), stream.width)[0],
        }  # fmt: skip
        self.add("chop_window", node, parameters | shape.parameters, s=stream, m=out)
        return out

    def taps(
        self, node: kinds.Matrix | kinds.Pooled, stream: Stream, repeats: int, fill: int = 0
    ) -> Stream:
        """The windows of a node with all taps in a beat, those of each channel together."""
        shape = node.window
        out = Stream(f"w{self.count}", stream.lanes * shape.taps, stream.limits,
                     prod(shape.result) * repeats, f"windows of {node.layer}")  # fmt: skip
        self.count += 1
        parameters = {
            "L": stream.lanes, "XW": stream.width, "REP": repeats,
            "FILL": packed_words(np.full((1, stream.lanes), fill), stream.width)[0],
            **shape.parameters,
        }  # fmt: skip
        parameters["BLOCK"] = int(in_block(*taps_memory(parameters)))
        self.add("chop_taps", node, parameters, s=stream, m=out)
        return out

    def matrix(self, node: kinds.Matrix) -> Stream:
        """Windows, and sums of products with constants."""
        fold, stream = self.folds[node.name], self.take(node)
        results, channels, taps = node.weight.shape
        units, wide = fold.gives, channels if fold.taps > 1 else 1 if node.depthwise else fold.reads
        groups, sums = results // units, channels // wide * (taps // fold.taps)
        windows = self.taps if fold.taps > 1 else self.window
        stream = windows(node, stream, 1 if node.depthwise else groups)
        out = self.result(node)
        split = node.weight.reshape(groups, units, channels // wide, wide, taps // fold.taps, -1)
        wide *= fold.taps
        words = packed_words(
            split.transpose(0, 4, 2, 1, 3, 5).reshape(groups * sums, units * wide),
            node.weight_bits,
        )
        bias = packed_words(node.bias.reshape(groups, units), node.bits)
        place = len(self.blocks)
        roms = (
            Rom(f"weights_{place}", units * wide * node.weight_bits, words),
            Rom(f"bias_{place}", units * node.bits, bias),
        )
        parameters = {
            "PE": units, "SIMD": wide, "XW": stream.width, "XS": stream.signed,
            "WW": node.weight_bits, "AW": node.bits, "SF": sums, "NF": groups,
            "LANES": int(node.depthwise), "A": roms[0].address, "N": roms[1].address,
        }  # fmt: skip
        self.add("chop_matrix", node, parameters, *roms, s=stream, m=out)
        return out

    def pool(self, node: kinds.Pooled) -> Stream:
        """Windows side by side as they come, others from a buffer of rows."""
        stream, shape = self.take(node), node.window
        out = self.result(node)
        fill = stream.limits[0] if node.largest else 0
        codes = {"XW": stream.width, "XS": stream.signed, "AW": out.width,
                 "MAX": int(node.largest)}  # fmt: skip
        if self.folds[node.name].taps > 1:
            stream = self.taps(node, stream, 1, fill)
            codes |= {"L": out.lanes, "T": shape.taps}
            self.add("chop_pool_taps", node, codes, s=stream, m=out)
            return out
        of_pixel = stream.beats // prod(shape.size)
        sizes = {"CF": of_pixel, "H": shape.size[0], "W": shape.size[1],
                 "KH": shape.kernel[0], "KW": shape.kernel[1]}  # fmt: skip
        if not node.side_by_side:
            stream = self.window(node, stream, 1, fill)
            sizes = {"CF": 1, "H": 1, "W": shape.taps, "KH": 1, "KW": shape.taps}
        self.add("chop_pool", node, codes | {"L": stream.lanes} | sizes, s=stream, m=out)
        return out

    def function(self, node: kinds.Mapped) -> Stream:
        """A function of codes: logic, or a memory."""
        stream = self.take(node)
        out = self.result(node)
        if node.memory is None:
            self.add("map", node, {}, s=stream, m=out)
            if self.goes_to_memory(node):
                return out
            held = self.stream(out, out.edge)
            self.add("chop_slice", node, {"B": out.bits}, s=out, m=held)
            return held
        table, row = node.memory, int(node.memory.rows[0])
        codes = np.arange(1 << stream.width)
        if stream.signed:
            codes = np.where(codes >> (stream.width - 1), codes - (1 << stream.width), codes)
        places = np.clip(codes - table.start, 0, table.table.shape[1] - 1)
        words = packed_words(table.table[row][places][:, None], out.width)
        rom = Rom(f"table_{len(self.blocks)}", out.width, words)
        self.add("chop_lookup", node, {"B": out.bits}, rom, s=stream, m=out)
        return out

    def goes_to_memory(self, node: StreamNode) -> bool:
        """Return True if one node reads another, into rows: its ready comes from a register."""
        readers = self.readers[node.name]
        reader = self.nodes[readers[0]] if len(readers) == 1 else None
        if not isinstance(reader, kinds.Matrix | kinds.Pooled) or self.folds[reader.name].taps > 1:
            return False
        return reader.window.taps > 1 and not (
            isinstance(reader, kinds.Pooled) and reader.side_by_side
        )

    def widen(self, node: kinds.JoinNode, stream: Stream, like: Stream) -> Stream:
        """The same codes with as many bits as another stream has."""
        if (stream.width, stream.signed) == (like.width, like.signed):
            return stream
        out = self.stream(stream, f"{stream.edge}, extended", limits=like.limits)
        same = kinds.Mapped(
            node.name, node.layer, node.sources, node.image, stream.limits, node.order, ()
        )
        self.add("map", same, {}, s=stream, m=out)
        return out

    def join(self, node: kinds.JoinNode) -> Stream:
        """The sum of two streams, or the channels of both."""
        a, b = (self.queue(node, place, self.take(node, place)) for place in (0, 1))
        out = self.result(node)
        if node.factors is None:
            a, b = (self.widen(node, each, out) for each in (a, b))
            if a.lanes + b.lanes == out.lanes:
                self.add("chop_beside", node, {"BA": a.bits, "BB": b.bits}, a=a, b=b, m=out)
                return out
            pixels = prod(node.image[:2])
            sizes = {"B": out.bits, "NA": a.beats // pixels, "NB": b.beats // pixels}
            self.add("chop_concat", node, sizes, a=a, b=b, m=out)
            return out
        parameters = {
            "L": out.lanes, "AW": a.width, "AS": a.signed, "BW": b.width, "BS": b.signed,
            "YW": out.width, "FA": node.factors[0], "FB": node.factors[1],
        }  # fmt: skip
        self.add("chop_add", node, parameters, a=a, b=b, m=out)
        return out


def beats_of(codes: Sequence[Codes] | Codes, node: StreamNode, stream: Stream) -> list[int]:
    """Rows of codes of a program's value as the beats of a stream."""
    flat = np.asarray(codes).reshape(len(codes), -1)[:, node.order]
    return packed_words(flat.reshape(-1, stream.lanes), stream.width)
