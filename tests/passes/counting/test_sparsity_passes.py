"""Sparsity is the fraction of zeros, measured on what layers really compute with."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, prune_transform_pass
from chop.passes.graph.analysis.pruning.calculate_natural_sparsity import (
    add_natural_sparsity_metadata_analysis_pass,
)
from chop.passes.graph.analysis.pruning.calculate_sparsity import (
    add_pruning_metadata_analysis_pass,
)
from chop.passes.graph.analysis.pruning.hook_inspector import hook_inspection_analysis_pass


class Mask(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def mask_inputs(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    return args[0] * torch.tensor([0.0, 0.0, 0.0, 1.0])


def pruned() -> MaseGraph:
    """Two layers, the first with a masked weight, the second with a masked input."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    mask = torch.tensor([1.0, 0.0, 0.0, 0.0])
    parametrize.register_parametrization(model[0], "weight", Mask(mask))
    model[2].register_forward_pre_hook(mask_inputs)
    return MaseGraph(model)


INPUT = torch.tensor([[1.0, 0.0, 2.0, 3.0], [1.0, 1.0, 0.0, 1.0]])


def test_masked_weights_and_activations() -> None:
    graph, info = add_pruning_metadata_analysis_pass(pruned(), {"dummy_in": {"input": INPUT}})
    assert info == {
        "_0": {"weight_sparsity": 0.75, "activation_sparsity": 0.25},
        "_2": {"weight_sparsity": 0.0, "activation_sparsity": 0.75},
    }
    software = next(n for n in graph.nodes if n.name == "_0").meta["mase"]["software"]
    assert software["args"]["weight"]["sparsity"] == 0.75
    assert "mask_value" not in software["args"]["weight"]


def test_the_mask_is_kept_when_asked_for() -> None:
    pass_args = {"dummy_in": {"input": INPUT}, "add_value": True}
    graph, _ = add_pruning_metadata_analysis_pass(pruned(), pass_args)
    software = next(n for n in graph.nodes if n.name == "_0").meta["mase"]["software"]
    assert software["args"]["weight"]["mask_value"].sum(0).tolist() == [4, 0, 0, 0]
    assert torch.equal(software["args"]["data_in_0"]["mask_value"], INPUT != 0)


def test_natural_sparsity_counts_zeros_not_the_others() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Conv1d(1, 1, 1))
    model[0].weight.data = torch.diag(torch.tensor([1.0, -1.0, -1.0, -1.0]))
    _, info = add_natural_sparsity_metadata_analysis_pass(
        MaseGraph(model), {"dummy_in": {"input": torch.ones(1, 4)}}
    )
    assert info == {
        "_0_weight": (16, 0.75),
        "_2_weight": (1, 0.0),
        "avg_weight": 12 / 17,
        "_0_activation": (4, 0.0),
        "_2_activation": (4, 0.75),
        "avg_activation": 3 / 8,
    }


@pytest.mark.parametrize("add_meta", [True, False])
def test_metadata_is_written_when_asked_for(add_meta: bool) -> None:
    pass_args = {"dummy_in": {"input": INPUT}, "add_meta": add_meta}
    graph, _ = add_natural_sparsity_metadata_analysis_pass(pruned(), pass_args)
    software = next(n for n in graph.nodes if n.name == "_0").meta["mase"]["software"]
    found: Any = software.get("args", {}).get("weight", {})
    assert ("natural_sparsity" in found) is add_meta


def test_inputs_come_from_metadata_if_none_are_given() -> None:
    graph, _ = add_common_metadata_analysis_pass(pruned(), {"dummy_in": {"input": INPUT}})
    assert add_pruning_metadata_analysis_pass(graph)[1]["_0"]["activation_sparsity"] == 0.25
    pass_args = {"dummy_in": {"input": INPUT}, "add_value": False}
    graph, _ = add_common_metadata_analysis_pass(graph, pass_args)
    with pytest.raises(GraphError, match="give dummy_in"):
        add_pruning_metadata_analysis_pass(graph)


def test_nothing_is_left_on_the_model() -> None:
    graph = pruned()
    _, before = hook_inspection_analysis_pass(graph)
    statistics = graph.model.get_submodule("1").running_mean.clone()
    add_natural_sparsity_metadata_analysis_pass(graph, {"dummy_in": {"input": INPUT}})
    add_pruning_metadata_analysis_pass(graph, {"dummy_in": {"input": INPUT}})
    assert hook_inspection_analysis_pass(graph)[1] == before
    assert torch.equal(graph.model.get_submodule("1").running_mean, statistics)
    assert all(module.training for module in graph.model.modules())


def test_hooks_go_even_if_the_run_fails() -> None:
    graph = pruned()
    with pytest.raises(GraphError, match="cannot run"):
        add_pruning_metadata_analysis_pass(graph, {"dummy_in": {"input": torch.ones(2, 3)}})
    assert len(hook_inspection_analysis_pass(graph)[1]) == 1


def test_hooks_are_listed_by_module_and_number() -> None:
    graph = pruned()
    handle = graph.model.get_submodule("0").register_full_backward_hook(lambda *_: None)
    _, info = hook_inspection_analysis_pass(graph)
    assert {name.rpartition("_")[0] for name in info} == {"0", "2"}
    assert info[f"0_{handle.id}"][0] == handle.id
    assert mask_inputs in [function for _, function in info.values()]


def test_what_the_prune_pass_says_is_what_is_measured() -> None:
    pass_args = {"dummy_in": {"input": torch.randn(8, 16)}}
    model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
    graph, _ = add_common_metadata_analysis_pass(MaseGraph(model), pass_args)
    rule = {"scope": "local", "granularity": "elementwise", "method": "l1-norm", "sparsity": 0.5}
    graph, _ = prune_transform_pass(graph, {"weight": rule})
    _, info = add_pruning_metadata_analysis_pass(graph)
    assert [found["weight_sparsity"] for found in info.values()] == [0.5, 0.5]
