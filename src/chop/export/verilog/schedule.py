"""The time of each wire: pipeline registers anywhere, for a clock or a number of stages.

A signal is computed as early as its operands allow; where the next operation would not fit in the
clock period, its operands are read from registers, a cycle later. All results of a layer leave it
in the same cycle.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

from chop.export.verilog.netlist import (
    Add,
    CircuitError,
    Largest,
    LookupTable,
    Multiplier,
    Netlist,
    Offset,
    Port,
    Round,
    Signal,
)

LOGIC, CARRY, REGISTER = 0.95, 0.055, 1.5
"""Nanoseconds on an ECP5 (speed grade 6), wiring included: a look-up table, a bit of a carry chain,
and into and out of registers. They are rough: what nextpnr reached is in benchmarks/README.md."""
LUT_INPUTS = 4
ROUNDS = 30
"""Halvings in the search for the shortest clock period."""


@singledispatch
def delay(signal: Signal) -> float:
    """Nanoseconds from the operands to a signal."""
    return 0.0


@delay.register
def _(signal: Add) -> float:
    return 0.0 if signal.joins else LOGIC + CARRY * (signal.width - signal.shift)


@delay.register
def _(signal: Offset) -> float:
    return LOGIC + CARRY * signal.width


@delay.register
def _(signal: Round) -> float:
    low, high = signal.before
    limited = signal.wraps or (signal.low <= low and high <= signal.high)
    return LOGIC * (signal.even + 2 * (not limited))


@delay.register
def _(signal: LookupTable) -> float:
    return LOGIC * max(signal.source.width - LUT_INPUTS + 2, 1)


@delay.register
def _(signal: Largest) -> float:
    return 2 * LOGIC + CARRY * signal.width


@delay.register
def _(signal: Multiplier) -> float:
    a, b = sorted((signal.a.width, signal.b.width))
    return a.bit_length() * (LOGIC + CARRY * b)


@dataclass(frozen=True)
class PipelineSchedule:
    """The cycle in which each signal is computed and in which each layer delivers its results."""

    cycles: Mapping[Signal, int]
    leaves: Mapping[str, int]
    latency: int
    """Registers between inputs and outputs, the outputs' own included."""
    period: float
    """The longest estimated delay from register to register, in nanoseconds."""

    def available(self, signal: Signal, layer: str) -> int:
        """The cycle from which a layer can use a signal."""
        if signal.layer == layer or isinstance(signal, Port):
            return self.cycles[signal]
        return self.leaves[signal.layer]


def layers_of(signals: Iterable[Signal]) -> dict[str, list[Signal]]:
    """The signals of each layer, in order; inputs belong to none."""
    found: dict[str, list[Signal]] = {}
    for signal in signals:
        if not isinstance(signal, Port):
            found.setdefault(signal.layer, []).append(signal)
    return found


def leaving(net: Netlist, signals: Sequence[Signal]) -> dict[str, list[Signal]]:
    """The signals of each layer that others or the outputs read."""
    read = {term.signal for terms in net.outputs for term in terms}
    for signal in signals:
        read.update(each for each in signal.operands if each.layer != signal.layer)
    return {
        layer: [signal for signal in own if signal in read]
        for layer, own in layers_of(signals).items()
    }


def schedule_netlist(
    net: Netlist, stages: int | None = None, clock_ns: float | None = None
) -> PipelineSchedule:
    """A schedule with so many stages, or with as few as a clock period allows."""
    plan = Scheduler(net)
    if clock_ns is not None:
        longest = REGISTER + max(plan.delays.values(), default=0.0)
        if longest > clock_ns:
            raise CircuitError(
                f"verilog: one operation takes about {longest:.1f} ns, longer than clock_ns = "
                f"{clock_ns:g}: give a longer period or narrower formats"
            )
        return plan.within(clock_ns - REGISTER, None)
    if stages is None:
        stages = plan.default_stages()
    if stages == 0:
        return plan.within(float("inf"), 0)
    return plan.shortest(stages)


class Scheduler:
    """The delays of a netlist, and schedules for it."""

    def __init__(self, net: Netlist) -> None:
        self.net = net
        self.signals = net.alive()
        self.delays = {signal: delay(signal) for signal in self.signals}
        self.leaving = leaving(net, self.signals)
        order = {layer: place for place, layer in enumerate(self.leaving)}
        self.in_order = sorted(
            self.signals, key=lambda s: -1 if isinstance(s, Port) else order[s.layer]
        )

    def default_stages(self) -> int:
        """One stage for each layer that adds, along the longest chain of these; at least one."""
        chain: dict[str, int] = {}
        for layer, signals in layers_of(self.in_order).items():
            adds = any(isinstance(each, Add | Multiplier) for each in signals)
            before = {
                operand.layer for each in signals for operand in each.operands
                if operand.layer != layer
            }  # fmt: skip
            chain[layer] = adds + max((chain.get(each, 0) for each in before), default=0)
        return max([1, *chain.values()])

    def within(self, period: float, stages: int | None) -> PipelineSchedule:
        """The schedule for so many nanoseconds of logic; `stages` adds registers at the outputs."""
        cycles: dict[Signal, int] = {}
        times: dict[Signal, float] = {}
        leaves: dict[str, int] = {}
        longest = 0.0
        for signal in self.in_order:
            cycle, start = 0, 0.0
            for operand in signal.operands:
                at, time = cycles[operand], times[operand]
                if operand.layer != signal.layer and not isinstance(operand, Port):
                    left = leaves[operand.layer]
                    at, time = left, time if at == left else 0.0
                if at > cycle:
                    cycle, start = at, time
                elif at == cycle:
                    start = max(start, time)
            end = start + self.delays[signal]
            if end > period + 1e-9:
                cycle, end = cycle + 1, self.delays[signal]
            cycles[signal], times[signal] = cycle, end
            longest = max(longest, end)
            own = self.leaving.get(signal.layer)
            if own and signal is own[-1]:
                leaves[signal.layer] = max(cycles[each] for each in own)
        ends = (term.signal for terms in self.net.outputs for term in terms)
        last = max((leaves.get(each.layer, 0) for each in ends if each is not None), default=0)
        latency = last + 1 if stages is None else max(stages, last + (stages > 0))
        return PipelineSchedule(cycles, leaves, latency, longest + REGISTER)

    def shortest(self, stages: int) -> PipelineSchedule:
        """The schedule of the shortest period that has no more than so many stages."""
        low = max(self.delays.values(), default=0.0)
        high = sum(self.delays.values()) + 1.0
        best = self.within(high, stages)
        high = best.period - REGISTER
        for _ in range(ROUNDS):
            if high - low < LOGIC / 20:
                break
            period = (low + high) / 2
            found = self.within(period, stages)
            if found.latency <= stages:
                best, high = found, min(period, found.period - REGISTER)
            else:
                low = period
        return best
