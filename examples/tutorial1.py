"""Tutorial 1: a BERT as a graph: its nodes, what passes know of them, and two passes of your own.

python examples/tutorial1.py            draws the graph and saves it under --output
python examples/tutorial1.py --quick    the same; there is nothing to shorten
"""

import torch
from small_bert import INPUTS, options, sentences, small_bert
from torch import nn

from chop import MaseGraph, passes
from chop.passes import Info, analysis_pass, transform_pass


@analysis_pass("count_dropout")
def count_dropout_analysis_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Count the dropout layers that are called."""
    modules = graph.modules
    calls = [node for node in graph.nodes if node.op == "call_module"]
    names = [node.name for node in calls if isinstance(modules[node.target], nn.Dropout)]
    return graph, {"count": len(names), "names": names}


@transform_pass("remove_dropout")
def remove_dropout_transform_pass(graph: MaseGraph) -> tuple[MaseGraph, Info]:
    """Take the dropout layers out: in evaluation they do nothing."""
    _, found = count_dropout_analysis_pass(graph)
    for node in list(graph.nodes):
        if node.name in found["names"]:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.fx_graph.erase_node(node)
    graph.model.recompile()
    return graph, {"removed": found["count"]}


def main() -> None:
    chosen = options(__doc__)
    rows, tokenizer = sentences(chosen.quick)
    model = small_bert(tokenizer, hidden_dropout_prob=0.1).eval()

    # The names of its inputs are enough to make a graph of a model of transformers.
    mg = MaseGraph(model, hf_input_names=INPUTS)
    print(f"{len(mg.nodes)} nodes, drawn in {mg.draw(chosen.output / 'bert.svg')}")

    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, found = passes.add_common_metadata_analysis_pass(mg)
    print("operations:", {name: n for name, n in found["mase_ops"].items() if n > 2})
    linear = next(n for n in mg.nodes if n.meta["mase"]["common"]["mase_op"] == "linear")
    record = linear.meta["mase"]["common"]
    print(linear.name, "takes", record["args"]["data_in_0"]["shape"], "and has a weight of",
          record["args"]["weight"]["shape"])  # fmt: skip

    batch = rows["test"][:4]
    with torch.no_grad():
        before = mg.model(**batch)["logits"]
    mg, found = count_dropout_analysis_pass(mg)
    mg, removed = remove_dropout_transform_pass(mg)
    mg, left = count_dropout_analysis_pass(mg)
    print(f"dropout layers: {found['count']}, removed: {removed['removed']}, left: {left['count']}")
    with torch.no_grad():
        assert torch.equal(mg.model(**batch)["logits"], before)

    folder = mg.export(chosen.output / "tutorial1")
    again = MaseGraph.from_checkpoint(folder)
    with torch.no_grad():
        assert torch.equal(again.model(**batch)["logits"], before)
    print("saved to", folder, "and loaded: the results are the same")


if __name__ == "__main__":
    main()
