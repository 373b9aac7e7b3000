"""The quantised network as SystemVerilog."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from chop.export.verilog.target import Hardware
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, PassArgs, transform_pass


class EmitVerilogArgs(PassArgs):
    """The folder to write to, the pipelining, and the extent of the checks.

    Args:
        project_dir: the files go to its ``hardware/rtl``, or ``hardware/rtl-v1`` if that exists.
        stages: pipeline registers from the inputs to the outputs; by default one for each layer
            with sums, 0 for none.
        clock_ns: instead of `stages`: place registers for this clock period.
        stream: add an AXI-stream wrapper.
        synthesise: run Yosys, and nextpnr if it is installed.
        most_luts: refuse circuits with a larger estimate of look-up tables.
        rows: how many rows to simulate; 0 simulates nothing.
        dummy_in: inputs by name, for their shapes and as rows to simulate; by default the shapes
            that metadata recorded, and made rows.
        cut_tail: leave out floating-point operations at the end, such as a softmax.
    """

    shorthand: ClassVar[str | None] = "project_dir"
    project_dir: Path = Path("mase_output/top")
    stages: int | None = Field(None, ge=0)
    clock_ns: float | None = Field(None, gt=0)
    stream: bool = False
    synthesise: bool = False
    most_luts: int = Field(200_000, ge=1)
    rows: int = Field(2000, ge=0)
    dummy_in: dict[str, Any] | None = None
    cut_tail: bool = True


@transform_pass("emit_verilog_top")
def emit_verilog_top_transform_pass(
    graph: MaseGraph, args: EmitVerilogArgs
) -> tuple[MaseGraph, Info]:
    """Write the graph as SystemVerilog, one module for each layer, simulated against the engine.

    The graph does not change. `info` is the manifest of the files, with the latency and, with
    `synthesise`, the resources.
    """
    from chop.export.exporting import export

    settings = args.model_dump(include={"stages", "clock_ns", "stream", "synthesise", "most_luts"})
    done = export(
        graph,
        "verilog",
        args.project_dir / "hardware" / "rtl",
        rows=args.rows,
        inputs=args.dummy_in,
        cut_tail=args.cut_tail,
        source="a graph, by emit_verilog_top",
        options=Hardware(**settings),
    )
    return graph, {"folder": str(done.folder), **done.manifest}
