"""The simulation of a saved graph in floating point, compared with integers."""

from chop.errors import ChopError
from chop.figures import UNKNOWN
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Exactness, analyse, lower
from chop.markup import Markup, details, join_markup, tag
from chop.tables import ResultTable

HEADERS = (
    "Node", "Steps", "Accumulator bits", "Exact in float32", "Exact in float64",
    "Saturation possible", "Ties with",
)  # fmt: skip
EXPLAINED = (
    "Exact means: in any order of summation, for every input. Saturation is possible where some "
    "input leads beyond a format's last code. A tie is a number half-way between two codes; where "
    "one rounding is one bit finer than the next, every odd code is one."
)


def in_integers(graph: MaseGraph) -> Markup:
    """Return the section of a quantised graph in integers, or why there are none."""
    try:
        found = analyse(lower(graph, cut_tail=True))
    except ChopError as error:
        return tag("p", f"There is no integer program of this graph: {error}.", class_="quiet")
    explained = tag("p", EXPLAINED, class_="quiet")
    return join_markup(
        [tag("p", verdict(found)), details("In integers", explained, exactness_table(found))]
    )


def verdict(found: Exactness) -> str:
    """In one sentence whether the simulation can be trusted."""
    exact = next((name for name in ("float32", "float64") if found.exact(name)), None)
    if exact is None:
        said = "The simulation in floating point may differ from the integers"
    else:
        said = f"The simulation in {exact} computes exactly what integers would"
    return f"{said}; the widest accumulator has {found.accumulator_bits} bits."


def exactness_table(found: Exactness) -> Markup:
    """Return the table of nodes."""
    ties: dict[str, list[str]] = {}
    for before, node in found.ties:
        ties.setdefault(node, []).append(before)
    rows = [
        (each.node, ", ".join(kind.lower() for kind in each.steps),
         str(each.accumulator_bits or UNKNOWN), yes(each.float32 and each.stable),
         yes(each.float64 and each.stable), yes(each.saturates),
         ", ".join(ties.get(each.node, ())) or UNKNOWN)
        for each in found.nodes
    ]  # fmt: skip
    return ResultTable(HEADERS, rows, "Exactness", text_columns=2).html()


def yes(fact: bool) -> str:
    """A fact in a word."""
    return "yes" if fact else "no"
