"""The pass that counts operations, bits and elements of each node. See docs/counting.md."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf, prod
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import fx, nn

from chop.errors import GraphError
from chop.files import write_text
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import preserve_model
from chop.ir.parameters import attribute
from chop.ops.cost import Cost
from chop.passes.base import Batches, Info, PassArgs, analysis_pass, take_rows
from chop.passes.graph.analysis.flops.ebops import EbopsCount, ebops
from chop.passes.graph.analysis.flops.node_count import (
    OF_WORK,
    NodeCount,
    of_one,
    scales,
    totals,
    with_products,
)
from chop.passes.graph.analysis.flops.operands import (
    Results,
    SizedCall,
    StoredParameter,
    batch_size,
    buffers,
    inputs_of_batch,
    observe,
    run_shapes,
    sized_call,
    stored_bits,
    stored_parameters,
    widest,
)
from chop.passes.graph.analysis.flops.rounding import (
    NotRounded,
    out_of_reach,
    products_seen,
    unrounded_functions,
)
from chop.passes.graph.analysis.flops.table import report_counts
from chop.passes.graph.analysis.metadata_entries import (
    classify,
    target_name,
)
from chop.passes.graph.analysis.report import show

WHERE = "pass 'count_operations'"


@dataclass(frozen=True)
class Counts:
    """The cost of every node, per sample or per batch."""

    nodes: dict[fx.Node, NodeCount]
    total: dict[str, int]
    batch_size: int | None
    per: str
    note: str = ""
    """Why the counts are per batch, if they are."""
    not_rounded: list[NotRounded] = field(default_factory=list)

    @property
    def uncounted_nodes(self) -> list[fx.Node]:
        """The nodes whose work is not in the total."""
        return [node for node, count in self.nodes.items() if count.flops is None]


class CountOperationsArgs(PassArgs):
    """The quantities to count, the inputs, and the file to write.

    Args:
        backward: count the backward pass of training too.
        dummy_in: inputs by name, of which only shapes and dtypes matter. By default, the shapes
            that `add_common_metadata` recorded.
        input_generator: batches by input name, usually of training rows. With them, the effective
            bit operations (EBOPs) of a quantised graph are counted too.
        num_samples: how many rows of them to use; all by default.
        report: print the table.
        save_path: a file to save the table in.
    """

    backward: bool = False
    dummy_in: dict[str, Any] | None = None
    input_generator: Batches | None = None
    num_samples: int | None = Field(default=None, gt=0)
    report: bool = True
    save_path: Path | None = None


@analysis_pass("count_operations", "calculate_flops")
def count_operations_analysis_pass(
    graph: MaseGraph, args: CountOperationsArgs
) -> tuple[MaseGraph, Info]:
    """Count MACs, FLOPs, bit operations, parameters and buffers of each node, per sample.

    Given batches of rows, also count the effective bit operations (EBOPs).
    """
    info = as_info(count(graph, args.dummy_in), args.backward)
    if args.input_generator is not None and has_formats(graph):
        rows = take_rows(args.input_generator, args.num_samples or inf, WHERE)
        add_ebops(info, ebops(graph, (batch for batch, _ in rows)))
    if args.report:
        show(report_counts(info))
    if args.save_path is not None:
        write_text(args.save_path, f"{report_counts(info)}\n")
    return graph, info


def count(
    graph: MaseGraph, dummy_in: Mapping[str, Any] | None = None, *, only_work: bool = False
) -> Counts:
    """The cost of every node of a graph, per sample wherever that means something.

    Args:
        only_work: leave out a run to see what is rounded, unless some work is not known.
    """
    results = observe(graph, dummy_in)
    counter = NodeCounter(graph, results)
    inputs = inputs_of_batch(results, None) if dummy_in is None else dummy_in
    whole, missing = counter.counts_of_run(inputs, only_work=only_work)
    batch = batch_size(results)
    nodes, note = per_sample(graph, results, whole, batch, only_work=only_work)
    total = totals(nodes.values(), counter.unique_parameters())
    return Counts(nodes, total, batch, "batch" if note else "sample", note, missing)


def per_sample(
    graph: MaseGraph,
    results: Results,
    whole: dict[fx.Node, NodeCount],
    batch: int | None,
    *,
    only_work: bool,
) -> tuple[dict[fx.Node, NodeCount], str]:
    """The counts of one sample; or those of the whole batch, and the reason.

    The counts at twice the batch must be those of work on samples, which doubles, and of work on
    weights, which stays. Otherwise the model mixes samples, or runs at one batch size only.
    """
    if not batch:
        return whole, "the inputs have no leading dimension in common"
    inputs = inputs_of_batch(results, 2 * batch)
    try:
        twice = run_shapes(graph, inputs)
        doubled, _ = NodeCounter(graph, twice).counts_of_run(inputs, only_work=only_work)
    except GraphError as error:
        return whole, f"at a batch of {2 * batch}, {error}"
    mixing = [node.name for node in whole if not scales(whole[node], doubled[node])]
    if mixing:
        return whole, f"samples are mixed by {', '.join(mixing)}"
    return {node: of_one(whole[node], doubled[node], batch) for node in whole}, ""


class NodeCounter:
    """Counts the nodes of one graph at the shapes of one run."""

    def __init__(self, graph: MaseGraph, results: Results) -> None:
        self.graph, self.model = graph, graph.model
        self.modules = graph.modules
        self.results = results
        self.uses = {
            node: sized_call(node, self.modules, results)
            for node in graph.nodes
            if node.op.startswith("call_")
        }
        self.trained = trained_nodes(graph, self.uses)

    def nodes(self) -> dict[fx.Node, NodeCount]:
        """The cost of each node in evaluation mode, which batch normalisation asks for."""
        with preserve_model(self.model):
            return {node: self.node(node) for node in self.results}

    def counts_of_run(
        self, inputs: Mapping[str, Any], *, only_work: bool = False
    ) -> tuple[dict[fx.Node, NodeCount], list[NotRounded]]:
        """The cost of each node, corrected by a run on inputs, and the products left unrounded."""
        counts = self.nodes()
        is_known = all(count.flops is not None for count in counts.values())
        seen = {} if only_work and is_known else products_seen(self.graph, inputs)
        measured = {node: with_products(each, seen.get(node)) for node, each in counts.items()}
        total = sum(count.macs or 0 for count in measured.values())
        missing = [
            NotRounded(node.name, count.op, unrounded_functions(seen.get(node)), left / total,
                       out_of_reach(self.uses[node], count, counts[node]) / total)
            for node, count in measured.items()
            if (left := (count.macs or 0) - (count.rounded_macs or 0))
        ]  # fmt: skip
        return measured, missing

    def node(self, node: fx.Node) -> NodeCount:
        """The cost of one node."""
        _, name = classify(node, self.modules)
        stored = self.parameters(node)
        count = NodeCount(
            name,
            parameters=sum(parameter.numel() for parameter, _ in stored),
            parameter_bits=sum(bits for _, bits in stored),
        )
        use = self.uses.get(node)
        return count if use is None else self.with_work(use, count)

    def with_work(self, use: SizedCall, count: NodeCount) -> NodeCount:
        """The count of a node with its work and its buffers."""
        work = use.work
        counted: dict[str, Any] = dict.fromkeys(OF_WORK)
        if work is not None:
            counted = {
                "macs": work.macs,
                "rounded_macs": rounded_operand_macs(use, work, 2),
                "half_rounded_macs": rounded_operand_macs(use, work, 1),
                "flops": work.flops,
                "backward_flops": self.backward(use, work),
                "bitops": sum(round(n * prod(map(use.width, pair))) for n, pair in work.products),
            }
        return replace(count, **counted, **buffers(use))

    def backward(self, use: SizedCall, work: Cost) -> int:
        """A product as large as the forward one for each operand that wants a gradient.

        What is not a product takes as many FLOPs backward as forward.
        """
        products = sum(
            2 * macs * self.wants_gradient(use, role)
            for macs, operands in work.products
            for role in operands
        )
        return products + work.other_flops * self.trained[use.node]

    def wants_gradient(self, use: SizedCall, role: str) -> bool:
        """True if the operand in a role is trained or depends on something that is."""
        if role in use.parameters:
            return use.parameters[role].requires_grad
        sources = [operand.source for operand in use.operands if operand.role == role]
        # What the operation makes itself, attention's scores for instance, is like its result.
        return any(self.trained[source] for source in sources or [use.node])

    def parameters(self, node: fx.Node) -> list[StoredParameter]:
        """The parameters that belong to a node."""
        use = self.uses.get(node)
        if use is not None and use.module is not None:
            return list(stored_parameters(use.module, use.formats))
        parameter = attribute(self.model, str(node.target)) if node.op == "get_attr" else None
        if not isinstance(parameter, nn.Parameter):
            return []
        formats = set()
        for use in (self.uses[user] for user in node.users if user in self.uses):
            role = next((o.role for o in use.operands if o.source is node), None)
            formats.add(use.formats.get(role or ""))
        fmt = formats.pop() if len(formats) == 1 else None  # stored so only if all users agree
        return [
            StoredParameter(parameter, stored_bits(fmt, tuple(parameter.shape), parameter.dtype))
        ]

    def unique_parameters(self) -> dict[nn.Parameter, int]:
        """Every parameter once, however many nodes share it, and its bits."""
        return widest(found for node in self.results for found in self.parameters(node))


def trained_nodes(graph: MaseGraph, uses: Mapping[fx.Node, SizedCall]) -> dict[fx.Node, bool]:
    """True if a gradient flows through the result of each node."""
    trained: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        use = uses.get(node)
        if use is None:
            read = attribute(graph.model, str(node.target)) if node.op == "get_attr" else None
            trained[node] = bool(getattr(read, "requires_grad", False))
            continue
        own = any(parameter.requires_grad for parameter in use.parameters.values())
        reached = own or any(trained[source] for source in node.all_input_nodes)
        floating = any(fact.dtype.is_floating_point for fact in use.outputs)
        trained[node] = reached and floating and not (use.op and use.op.name == "detach")
    return trained


def rounded_operand_macs(use: SizedCall, work: Cost, operands: int) -> int:
    """The MACs of which so many of the two operands are rounded to a number format."""
    return sum(macs for macs, roles in work.products if sum(map(use.rounds, roles)) == operands)


def rounded_part(total: Mapping[str, int]) -> dict[str, Any]:
    """The number of MACs that work on rounded operands, and their share of all.

    The share of nothing, in a graph without products, is None.
    """
    macs = total["macs"]
    counted = {name: total[name] for name in ("macs", "rounded_macs", "half_rounded_macs")}
    return counted | {"rounded_share": total["rounded_macs"] / macs if macs else None}


def rounded_macs(graph: MaseGraph) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`rounded_part` of a graph at the shapes that its metadata recorded, and what is left out."""
    results = observe(graph, None)
    nodes, missing = NodeCounter(graph, results).counts_of_run(inputs_of_batch(results, None))
    total = {name: sum(getattr(c, name) or 0 for c in nodes.values()) for name in OF_WORK}
    return rounded_part(total), [each._asdict() for each in missing]


def as_info(counts: Counts, backward: bool) -> dict[str, Any]:
    """The counts as plain dictionaries, without gradients unless they are asked for."""
    hidden = () if backward else ("backward_flops",)
    nodes = {
        node.name: {key: value for key, value in asdict(count).items() if key not in hidden}
        for node, count in counts.nodes.items()
    }
    uncounted = [
        {"node": node.name, "op": counts.nodes[node].op, "target": target_name(node.target)}
        for node in counts.uncounted_nodes
    ]
    return {
        "nodes": nodes,
        "total": {key: value for key, value in counts.total.items() if key not in hidden},
        "rounded_share": rounded_part(counts.total)["rounded_share"],
        "not_rounded": [each._asdict() for each in counts.not_rounded],
        "uncounted": uncounted,
        "batch_size": counts.batch_size,
        "per": counts.per,
        "note": counts.note,
    }


def has_formats(graph: MaseGraph) -> bool:
    """True if any node rounds an operand to a number format."""
    modules = graph.modules
    return any(NodeCall.of(node, modules).formats for node in graph.nodes)


def add_ebops(info: dict[str, Any], found: EbopsCount) -> None:
    """Put effective bit operations beside the other counts; nodes without products have none."""
    for name, count in info["nodes"].items():
        count["ebops"] = None if name in found.uncounted else found.nodes.get(name, 0)
    info["total"]["ebops"] = found.total
    missing = [{"node": name, "reason": why} for name, why in found.uncounted.items()]
    info["ebops"] = {"rows": found.rows, "uncounted": missing}
