"""Estimated needs of a plan of blocks, without any tool."""

from dataclasses import dataclass

from chop.export.verilog.estimate import estimated_luts
from chop.export.verilog.folded.estimate import (
    block_luts,
    block_rams,
    block_registers,
    in_block,
    taps_memory,
    window_address,
)
from chop.export.verilog.folded.plan import Block, Rom, StreamPlan, address_bits
from chop.export.verilog.folded.text import function_circuit, map_netlist
from chop.export.verilog.primitives import Primitives


@dataclass(frozen=True)
class PlanCost:
    """Look-up tables and registers as Yosys counts them for UltraScale+, and RAMB36."""

    luts: int
    registers: int
    block_rams: float


def plan_luts(plan: StreamPlan) -> int:
    """Look-up tables of all blocks, memories of constants and functions of codes of a plan."""
    luts = 0.0
    for place, block in enumerate(plan.blocks):
        if block.kind == "map":
            luts += estimated_luts(map_netlist(place, block))
        else:
            luts += block_luts(block.kind, block.parameters) + sum(map(rom_luts, block.roms))
    return round(luts)


def plan_cost(plan: StreamPlan) -> PlanCost:
    """The cost of all blocks, memories and functions of codes of a plan."""
    registers = rams = 0.0
    for place, block in enumerate(plan.blocks):
        if block.kind == "map":
            registers += function_circuit(place, block, Primitives()).register_bits
            continue
        registers += block_registers(block.kind, block.parameters)
        registers += sum(
            rom.width for rom in block.roms for part in rom.parts
            if not in_block(padded(part), rom.width)
        )  # fmt: skip
        rams += memory_blocks(block)
    return PlanCost(plan_luts(plan), round(registers), rams)


def rom_luts(rom: Rom) -> float:
    """Look-up tables of constants that are not in block memory, and of the choice of a half."""
    small = [len(part) for part in rom.parts if not in_block(padded(part), rom.width)]
    return rom.width * (sum(max(1.0, size / 64) for size in small) + (len(rom.parts) > 1))


def padded(words: list[int]) -> int:
    """Words of a memory, a power of two."""
    return 1 << address_bits(len(words))


def memory_blocks(block: Block) -> float:
    """RAMB36 of the memories of a block."""
    size = block.parameters
    found = sum(block_rams(padded(part), rom.width) for rom in block.roms for part in rom.parts)
    if block.kind == "chop_window":
        found += block_rams(1 << window_address(size), size["B"])
    elif block.kind == "chop_taps":
        found += block_rams(*taps_memory(size))
    elif block.kind == "chop_queue":
        found += block_rams(1 << size["A"], size["B"])
    elif block.kind == "chop_lookup":
        found *= block.ports["s"].lanes
    return found
