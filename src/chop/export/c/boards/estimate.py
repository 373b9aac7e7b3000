"""Flash, memory and instructions of C on a Cortex-M4, estimated from its text without a compiler.

The statements of each layer are counted by kind, once for flash and times the iterations of the
loops around them for instructions. What a kind of statement takes was fitted to what
arm-none-eabi-gcc -O2 makes of the networks of ``benchmarks/bench_c.py --fit``, and is compared with
it on other networks by ``bench_c.py --estimates``.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from chop.export.c.boards.factors import FLASH, INSTRUCTIONS
from chop.export.c.code import Work
from chop.export.c.plan import bytes_of
from chop.export.c.source import CProgram

LOOP = re.compile(r"for \((?:const )?int (\w+) = [^;]*; (?:\w+ < (\w+))?")
KERNEL = re.compile(r"\b(?:dot|run_|window_|sums\d)\w*\(")
STORE = re.compile(r"^(?:if \(.*\) )?\w+@ = ")
CAST = re.compile(r"\((?:const )?(?:u?int\d+_t|[iu]\d+)(?: \*)?\)")
KINDS = {
    "multiply": re.compile(r"\*"),
    "operation": re.compile(r"[+&|-]|>>|<<"),
    "select": re.compile(r"\?"),
    "branch": re.compile(r"\bif \("),
    "divide": re.compile(r"[/%]"),
    "rounding": re.compile(r"\b(?:half_up|half_even|wrap)\w*\("),
}

INSIDE = {"k": "window ", "m": "window ", "e": "sparse ", "z": "zero "}
"""The purposes of loops, by the first letters of their variables."""


@dataclass(frozen=True)
class LayerCost:
    """The cost of a layer: bytes of its constants, and instructions of a row."""

    layer: int
    constant_bytes: int
    instructions: int


@dataclass(frozen=True)
class CCost:
    """The cost of a program as C on a Cortex-M4, by estimate."""

    layers: tuple[LayerCost, ...]
    code_bytes: int
    """Of the functions, which layers share."""
    scratch_bytes: int
    edge_bytes: int
    """Of the codes of inputs and outputs."""

    @property
    def flash_bytes(self) -> int:
        """Bytes of constants and functions."""
        return self.code_bytes + sum(each.constant_bytes for each in self.layers)

    @property
    def ram_bytes(self) -> int:
        """Bytes of scratch memory and of the codes of inputs and outputs, beside the stack."""
        return self.scratch_bytes + self.edge_bytes

    @property
    def instructions(self) -> int:
        """Instructions of a row."""
        return sum(each.instructions for each in self.layers)


def estimate_cost(made: CProgram) -> CCost:
    """Return the cost of a program."""
    text, spent = made.writer.text, layer_counts(made)
    seen: set[str] = set()
    layers = []
    for number in range(len(made.layers) + 1):
        reads = {name for call in text.calls if call.layer == number for name in call.reads}
        own = (reads & text.sizes.keys()) - seen
        seen |= own
        stored = sum(-(-text.sizes[name] // 4) * 4 for name in own)
        layers.append(LayerCost(number, stored, round(weighted_sum(spent[number], INSTRUCTIONS))))
    edges = sum(map(bytes_of, (*made.inputs, *made.outputs)))
    code = round(weighted_sum(code_counts(made), FLASH))
    return CCost(tuple(layers), code, made.scratch_bytes, edges)


def weighted_sum(counts: Mapping[str, float], factors: Mapping[str, float]) -> float:
    """The sum of what everything takes that was counted."""
    return sum(factors.get(name, 0.0) * number for name, number in counts.items())


def layer_counts(made: CProgram) -> list[Counter[str]]:
    """Statements by kind that run for each layer, and for outputs at the end."""
    text = made.writer.text
    texts = text.texts
    found: list[Counter[str]] = [Counter() for _ in range(len(made.layers) + 1)]
    for call in text.calls:
        counts = found[call.layer]
        for kind, times in statements(texts[call.function], call.sizes, call.work):
            counts[kind] += times  # type: ignore[assignment]  # on average
        for kind, times in call.work.counts.items():
            counts[kind] += times  # type: ignore[assignment]
        counts["layer"] += 1
    return found


def code_counts(made: CProgram) -> Counter[str]:
    """Statements by kind as they stand in the functions of layers."""
    text = made.writer.text
    found: Counter[str] = Counter({"call": len(text.calls), "program": 1})
    for each in text.texts.values():
        for kind, _ in statements(each, {}, Work()):
            found[kind] += 1
    for terms in text.statements:
        for word, number in terms.items():
            found[f"code {word}"] += number
    for name in (*made.writer.code, *made.writer.needs):
        found[name.rstrip("0123456789") if name.startswith("sums") else name] += 1
    found["arguments"] = sum(len(call.reads) + len(call.sizes) for call in text.calls)
    return found


def statements(text: str, sizes: Mapping[str, int], work: Work) -> Iterator[tuple[str, float]]:
    """Kinds of statements of a function, and how often each runs.

    Those inside the loops of a window, or of a table of weights, are kinds of their own.
    """
    around: list[tuple[float, str]] = []
    for raw in text.splitlines()[1:]:
        line = raw.strip()
        if line.startswith("}"):
            if around:
                around.pop()
            continue
        times, where = prod(each for each, _ in around), around[-1][1] if around else ""
        loop = LOOP.match(line)
        if loop:
            trips = work.trips.get(loop[1], number_of_trips(loop[2], sizes))
            where = INSIDE.get(loop[1][0], where)
            yield f"{where}entry", times
            yield f"{where}loop", times * trips
            if line.endswith("{"):
                around.append((trips, where))
                continue
            times *= trips
            line = line[line.index(") ") + 2 :]
        elif line.endswith("{"):
            around.append((1.0, where))
        for kind, number in line_kinds(line).items():
            yield f"{where}{kind}", times * number


def number_of_trips(bound: str | None, sizes: Mapping[str, int]) -> float:
    """Iterations of a loop up to a number or a size."""
    if bound is None:
        return 1.0
    return float(bound) if bound.isdigit() else float(sizes.get(bound, 1))


def line_kinds(line: str) -> Counter[str]:
    """The kinds of operations in a statement, with their numbers."""
    if KERNEL.search(line):
        return Counter({"function": 1})
    if line.startswith("const int "):
        return Counter({"index": 1})
    plain = CAST.sub("", without_places(line))
    found = Counter({kind: len(pattern.findall(plain)) for kind, pattern in KINDS.items()})
    found["store"] = len(STORE.findall(plain))
    found["load"] = plain.count("@") - found["store"]
    if "int64_t" in line or "INT64_C" in line:
        found = Counter({f"{kind} of 64 bits": number for kind, number in found.items()})
    return +found


def without_places(line: str) -> str:
    """A statement with @ for what is in brackets."""
    text, depth = [], 0
    for letter in line:
        depth += letter == "["
        if not depth:
            text.append(letter)
        depth -= letter == "]"
        if letter == "]" and not depth:
            text.append("@")
    return "".join(text)
