"""A bench in Python, for cocotb, that goes with a stream: for people who continue by hand."""

from collections.abc import Mapping

FOLDED = {"top": "top", "clock": "clk", "reset": "resetn", "s": "s_", "m": "m_"}
WRAPPER = {
    "top": "top_axis", "clock": "aclk", "reset": "aresetn", "s": "s_axis_t", "m": "m_axis_t"
}  # fmt: skip
"""Names of a module with valid and ready: a folded circuit, and the wrapper of a parallel one."""

BENCH = '''\
"""Sends the beats of rows.hex with pauses, and compares what comes with expected.hex.

Run it with: make, or make SIM=verilator. It needs cocotb 2 and a simulator.
"""

import random
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly, with_timeout

HERE = Path(__file__).parent
PAUSES = 0.3  # the share of cycles in which an end waits
PATIENCE = 10_000_000  # cycles


def beats(name):
    return [int(word, 16) for word in (HERE / name).read_text().split()]


async def send(dut, words):
    for word in words:
        while random.random() < PAUSES:
            await FallingEdge(dut.{clock})
        dut.{s}data.value, dut.{s}valid.value, taken = word, 1, False
        while not taken:
            await ReadOnly()
            taken = dut.{s}ready.value == 1
            await FallingEdge(dut.{clock})
        dut.{s}valid.value = 0


async def receive(dut, count):
    found = []
    while len(found) < count:
        ready = random.random() >= PAUSES
        dut.{m}ready.value = int(ready)
        await ReadOnly()
        if ready and dut.{m}valid.value == 1:
            found.append(int(dut.{m}data.value))
        await FallingEdge(dut.{clock})
    return found


@cocotb.test()
async def results_are_those_of_the_engine(dut):
    random.seed(0)
    wanted = beats("expected.hex")
    cocotb.start_soon(Clock(dut.{clock}, 10, unit="step").start())
    dut.{reset}.value, dut.{s}valid.value, dut.{m}ready.value = 0, 0, 0
    {last}
    for _ in range(5):
        await FallingEdge(dut.{clock})
    dut.{reset}.value = 1
    cocotb.start_soon(send(dut, beats("rows.hex")))
    found = await with_timeout(receive(dut, len(wanted)), 10 * PATIENCE, "step")
    wrong = [place for place, (a, b) in enumerate(zip(found, wanted)) if a != b]
    assert not wrong, f"{{len(wrong)}} of {{len(wanted)}} beats differ, the first is {{wrong[0]}}"
'''
MAKEFILE = """\
# cocotb: make, or make SIM=verilator
SIM ?= icarus
TOPLEVEL_LANG = verilog
VERILOG_SOURCES = $(filter-out $(CURDIR)/bench.sv, $(wildcard $(CURDIR)/*.sv))
COCOTB_TOPLEVEL = {top}
COCOTB_TEST_MODULES = test_top
ifeq ($(SIM),verilator)
EXTRA_ARGS += -Wno-fatal
endif
include $(shell cocotb-config --makefiles)/Makefile.sim
"""


def cocotb_files(names: Mapping[str, str]) -> dict[str, str]:
    """Return the test and its Makefile for a module of streams, `FOLDED` or `WRAPPER`."""
    last = f"dut.{names['s']}last.value = 0" if names is WRAPPER else "dut.{s}data.value = 0"
    found = BENCH.format(**names, last=last.format(**names))
    return {"test_top.py": found, "Makefile": MAKEFILE.format(**names)}
