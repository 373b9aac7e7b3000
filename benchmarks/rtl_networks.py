"""The networks of the labs trained on jsc-sim and quantised, for the benchmark of circuits."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop.passes as passes
from chop.dataset import MaseDataModule
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model

FLOAT_EPOCHS, QUANTISED_EPOCHS, BATCH = 6, 3, 512


@dataclass(frozen=True)
class Case:
    """A network, the bits of its data and weights, and the share of weights set to 0."""

    model: str
    bits: int = 4
    weight_bits: int = 4
    pruned: float = 0.0

    def __str__(self) -> str:
        pruned = f", {self.pruned:.0%} pruned" if self.pruned else ""
        return f"{self.model} {self.bits}/{self.weight_bits} bits{pruned}"


@cache
def rows() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Any]:
    """Rows and labels to train and to test, and what is known of the data."""
    data = MaseDataModule("jsc-sim", batch_size=BATCH)
    data.setup()
    train, test = data.train_dataset.tensors, data.test_dataset.tensors
    return train, test, data.dataset_info


def trained(model: nn.Module, epochs: int, rate: float, pruned: dict[str, Tensor]) -> None:
    """A plain training loop; weights that are pruned stay 0."""
    (x, y), _, _ = rows()
    x, y = x.float(), y.long()
    steps = epochs * (len(x) // BATCH)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps)
    named = dict(model.named_parameters())
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                for name, mask in pruned.items():
                    named[name] *= mask
    model.eval()


@cache
def float_network(name: str, pruned: float) -> nn.Module:
    """A trained network with the smallest weights of each layer set to 0."""
    torch.manual_seed(0)
    model = get_model(name, "cls", rows()[2], pretrained=False)
    trained(model, FLOAT_EPOCHS, 0.01, {})
    masks = masks_of(model, pruned)
    if masks:
        trained(model, 1, 0.002, masks)
    return model


def masks_of(model: nn.Module, pruned: float) -> dict[str, Tensor]:
    """Which weights stay, by the names of parameters."""
    if not pruned:
        return {}
    return {
        name: (value.abs() >= value.abs().flatten().quantile(pruned)).float()
        for name, value in model.named_parameters() if value.dim() > 1
    }  # fmt: skip


def rules(case: Case) -> dict[str, Any]:
    """Formats by type of operation: data to ±4, weights to ±2."""
    sizes = {
        "data_in": (case.bits, case.bits - 3),
        "weight": (case.weight_bits, case.weight_bits - 2),
    }
    sizes["bias"] = (case.weight_bits + 2, case.weight_bits)
    integer: dict[str, Any] = {"name": "integer"}
    for role, (width, frac) in sizes.items():
        integer |= {f"{role}_width": width, f"{role}_frac_width": frac}
    out = {"data_out_width": 8, "data_out_frac_width": 7}
    kinds = ("linear", "conv1d", "batch_norm1d", "add")
    return {kind: {"config": integer} for kind in kinds} | {"sigmoid": {"config": integer | out}}


def quantised(case: Case) -> tuple[MaseGraph, float]:
    """The quantised network, trained a little more as such, and its test accuracy."""
    import copy

    (x, _), (test, labels), _ = rows()
    model = copy.deepcopy(float_network(case.model, case.pruned))
    torch.manual_seed(0)  # the same network whatever was made before it
    graph = MaseGraph(model.eval())
    name = next(str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {name: x[:2].float()}})
    types = {node.meta["mase"]["common"]["mase_op"] for node in graph.nodes}
    config = {kind: rule for kind, rule in rules(case).items() if kind in types}
    graph, _ = passes.quantize_transform_pass(graph, {"by": "type", **config})
    trained(graph.model, QUANTISED_EPOCHS, 0.003, masks_of(graph.model, case.pruned))
    with torch.no_grad():
        scores = graph.model(test.float())
    return graph, float((scores.argmax(1) == labels).float().mean())
