"""The calibrate pass: scales of number formats from values observed on batches."""

from typing import Literal

from chop.errors import GraphError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Batches, Info, transform_pass
from chop.passes.graph.analysis.report import show
from chop.passes.graph.transforms.quantize.plan import Plan
from chop.passes.graph.transforms.quantize.quantize import apply_plan
from chop.passes.graph.transforms.quantize.ranges import Calibration
from chop.passes.graph.transforms.quantize.saturation import calibrate_plan, calibration_table, tell


class CalibrateArgs(Calibration):
    """The rows to observe, and the way scales are chosen from them.

    Args:
        input_generator: batches of inputs by name; required.
        operands: set the scales that are "auto", or all of them.
        report: print the table.
    """

    input_generator: Batches | None = None
    operands: Literal["auto", "all"] = "auto"
    report: bool = True


@transform_pass("calibrate", requires=("common",))
def calibrate_transform_pass(graph: MaseGraph, args: CalibrateArgs) -> tuple[MaseGraph, Info]:
    """Set the scales of number formats that are "auto" from values observed on batches.

    The batches run through the network in floating point. For each operand of each quantised node,
    `info` has its scale, the range of its values and the share of values that saturate. A share of
    more than 1 % gives a warning with a better scale. Scales that are numbers stay, unless
    `operands` is "all".
    """
    modules = graph.modules
    calls = (NodeCall.of(node, modules) for node in graph.nodes)
    plan: Plan = {call.node: call.quant for call in calls if call.quant is not None}
    if not plan:
        raise GraphError(
            "pass 'calibrate': nothing is quantised: run quantize_transform_pass first"
        )
    plan, found, rows = calibrate_plan(
        graph, plan, args.input_generator, args, every=args.operands == "all"
    )
    changed = {each.node for each in found if each.fit.calibrated}
    apply_plan(graph, {node: quant for node, quant in plan.items() if node in changed})
    if args.report:
        show(calibration_table(found, rows))
    return graph, tell(graph, found, rows)
