"""Low-rank adapters: nothing changes when they come, nothing but rounding when they go."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.errors import ConfigError, GraphError
from chop.models import get_model
from chop.models.info import DataShape
from chop.passes import (
    PASSES,
    add_common_metadata_analysis_pass,
    fuse_lora_weights_transform_pass,
    init_metadata_analysis_pass,
    insert_lora_adapter_transform_pass,
    quantize_transform_pass,
    report_trainable_parameters_analysis_pass,
)
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass
from chop.passes.module import report_trainable_parameters_analysis_pass as of_module

TOKENS = torch.randint(1, 50, (4, 9), generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return get_model("encoder-tiny", "cls", DataShape(12, 2, vocab_size=50)).eval()


def adapted(model: nn.Module, **more: Any) -> MaseGraph:
    """A graph whose adapters have learned something."""
    graph, _ = insert_lora_adapter_transform_pass(MaseGraph(model), {"rank": 2, **more})
    for name, value in graph.model.named_parameters():
        if "_lora_b" in name:
            nn.init.normal_(value, generator=torch.Generator().manual_seed(1))
    return graph


@torch.no_grad()
def results(graph: MaseGraph) -> Tensor:
    found: Tensor = graph.model(TOKENS)
    return found


def test_inserting_changes_no_result_and_not_the_model() -> None:
    model = network()
    before = model(TOKENS)
    graph, found = insert_lora_adapter_transform_pass(
        MaseGraph(model), {"rank": 2, "lora_alpha": 4, "lora_dropout": 0.5, "train": ["^head"]}
    )
    assert torch.equal(graph.model(TOKENS), before)
    assert all(value.requires_grad for value in model.parameters())
    assert not [name for name, _ in model.named_modules() if "lora" in name]
    learning = {n for n, value in graph.model.named_parameters() if value.requires_grad}
    assert len(found["adapters"]) == 13
    assert learning == {
        f"{name}_lora_{part}.weight" for name in found["adapters"] for part in "ab"
    } | {"head.weight", "head.bias"}
    nn.functional.cross_entropy(graph.model(TOKENS), torch.tensor([0, 1, 0, 1])).backward()
    head = (model.head.weight, model.head.bias)
    others = [value for value in model.parameters() if all(value is not each for each in head)]
    assert all(value.grad is None for value in others)
    assert head[0].grad is not None


def test_fusing_gives_equal_results() -> None:
    model = network()
    graph = adapted(model, alpha=3.0, dropout=0.5)
    nodes, before = len(MaseGraph(model).nodes), results(graph)
    assert not torch.allclose(before, model(TOKENS))
    graph, found = fuse_lora_weights_transform_pass(graph)
    torch.testing.assert_close(results(graph), before)
    assert len(graph.nodes) == nodes
    assert len(found["fused"]) == 13
    assert found["trainable"] == found["parameters"] == sum(p.numel() for p in model.parameters())
    assert torch.equal(model(TOKENS), network()(TOKENS))


def test_adapters_are_saved_loaded_and_fused_afterwards(tmp_path: Path) -> None:
    graph = adapted(network(), layers=["query", "value"])
    save_mase_graph_interface_pass(graph, tmp_path / "graph")
    again = load_mase_graph(tmp_path / "graph")
    assert torch.equal(results(again), results(graph))
    ours, theirs = (
        {name: value.requires_grad for name, value in each.model.named_parameters()}
        for each in (graph, again)
    )
    assert ours == theirs
    again, found = fuse_lora_weights_transform_pass(again, {"unfreeze": False})
    assert [name.split(".")[-1] for name in found["fused"]] == ["query", "value"] * 2
    torch.testing.assert_close(results(again), results(graph))


class Shared(nn.Module):
    """One layer that is called twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.twice = nn.Linear(8, 8)
        self.out = nn.Linear(8, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.out(self.twice(self.twice(self.words(x)).relu()))
        return hidden


def test_a_layer_that_is_called_twice_has_one_adapter() -> None:
    model = Shared()
    graph = adapted(model, layers=["twice"])
    frozen = graph.model.get_submodule("words").weight
    assert frozen is graph.model.get_submodule("out").weight
    assert frozen is not model.words.weight
    before = results(graph)
    graph, found = fuse_lora_weights_transform_pass(graph)
    torch.testing.assert_close(results(graph), before, rtol=1e-4, atol=1e-4)
    assert found["fused"] == ["twice"]


INTEGER = {
    "name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8,
    "weight_frac_width": 6,
}  # fmt: skip


def quantised(graph: MaseGraph, rule: dict[str, Any]) -> MaseGraph:
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": TOKENS}})
    return quantize_transform_pass(graph, {"by": "type", **rule})[0]


def test_a_quantised_layer_takes_an_adapter_that_cannot_be_folded_into_it() -> None:
    graph = quantised(MaseGraph(network()), {"linear": {"config": INTEGER}})
    before = results(graph)
    graph, _ = insert_lora_adapter_transform_pass(graph)
    assert torch.equal(results(graph), before)
    with pytest.raises(GraphError, match=r"is quantised: fuse first"):
        fuse_lora_weights_transform_pass(graph)
    adapters = quantised(adapted(network()), {"mul": {"config": INTEGER}})
    with pytest.raises(GraphError, match=r"is quantised: fuse first"):
        fuse_lora_weights_transform_pass(adapters)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": 0}, "rank"),
        ({"layers": ["nothing"]}, "no linear layer is called 'nothing'"),
        ({"train": ["nothing"]}, "no parameter is called 'nothing'"),
        ({"layers": ["("]}, "is not a pattern"),
    ],
)
def test_mistakes(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        insert_lora_adapter_transform_pass(MaseGraph(network()), given)


def test_adapters_come_once() -> None:
    graph = adapted(network())
    with pytest.raises(GraphError, match="has adapters already"):
        insert_lora_adapter_transform_pass(graph)
    with pytest.raises(GraphError, match="no linear layer"):
        insert_lora_adapter_transform_pass(MaseGraph(nn.Sequential(nn.ReLU())))


def test_the_report_counts_shared_parameters_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = Shared()
    model.words.weight.requires_grad_(False)
    _, found = report_trainable_parameters_analysis_pass(MaseGraph(model))
    assert (found["trainable"], found["parameters"]) == (72, 472)
    assert of_module(model)[1] == found
    assert capsys.readouterr().out.count("72 of 472 parameters learn (15.25%)") == 2
    assert {"insert_lora", "fuse_lora", "report_trainable_parameters"} <= set(PASSES)
