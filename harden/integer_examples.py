"""The networks that chop brings, on all test rows: simulation and integers in every mode."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chop.dataset import MaseDataModule
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, analyse, lower
from chop.models import get_model
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from harden.common import share
from harden.integer_networks import spread_weights

JETS = ("jsc-tiny", "jsc-toy", "jsc-s", "jsc-tiny-x10", "jsc-mlp", "jsc-new", "jsc-rs1923")
ROLES = ("data_in", "weight", "bias")
MODES = tuple(
    itertools.product(("tensor", "channel"), ("half_even", "half_up"), ("saturate", "wrap"))
)
"""Granularity, rounding and overflow."""


def config_of(by_channel: bool, rounding: str, overflow: str, shapes: dict[str, Any]) -> Any:
    """Eight bits, or by channel six to nine of them with a binary point of its own."""
    config: dict[str, Any] = {"name": "integer"}
    for role in ROLES:
        width, point = torch.tensor(8), torch.tensor(4)
        if by_channel and role in shapes:
            shape = [shapes[role][0], *(1 for _ in shapes[role][1:])]
            places = torch.arange(shape[0]).reshape(shape)
            width, point = 6 + places % 4, 3 + places % 3
        given = (width, point) if width.dim() else (int(width), int(point))
        config |= {f"{role}_width": given[0], f"{role}_frac_width": given[1]}
        config |= {f"{role}_rounding": rounding, f"{role}_overflow": overflow}
    return config


def quantised(model: nn.Module, x: Tensor, mode: tuple[str, str, str]) -> MaseGraph:
    """The network with every operation quantised that can be."""
    graph, _ = init_metadata_analysis_pass(MaseGraph(model.eval()))
    (name,) = (str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {name: x[:2]}})
    rules: dict[str, Any] = {"by": "name", "default": {"config": {"name": None}}}
    for node in graph.nodes:
        common, module = node.meta["mase"]["common"], node.meta["mase"].module
        if common["mase_type"] not in ("module_related_func", "builtin_func", "module"):
            continue
        shapes = {"data_in": list(common["args"]["data_in_0"]["shape"][1:])}
        shapes |= {key: list(p.shape) for key, p in (module or nn.Module()).named_parameters()}
        if common["mase_op"] in QUANTISED:
            granularity, rounding, overflow = mode
            config = config_of(granularity == "channel", rounding, overflow, shapes)
            last = {"data_out_width": 8, "data_out_frac_width": 7}  # of a function at the end
            own = last if common["mase_op"] == "sigmoid" else {}
            rules[node.name] = {"config": config | own}
    result: MaseGraph = quantize_transform_pass(graph, rules)[0]
    return result


QUANTISED = ("linear", "conv1d", "batch_norm1d", "add", "sigmoid")


def compared(scale: float) -> Iterator[tuple[int, list[str]]]:
    """For each network and mode how many rows were compared, and what differed."""
    data = MaseDataModule("jsc-sim", batch_size=2**15, num_workers=0)
    data.prepare_data()
    data.setup()
    (rows, _), *_ = data.test_dataloader()
    rows = rows[: share(len(rows), scale)]
    for place, name in enumerate(JETS):
        torch.manual_seed(place)
        model = get_model(name, "classification", dataset_info=data.dataset_info)
        spread_weights(model, rows[:500])
        for number, mode in enumerate(MODES):
            one_by_one = number == place % len(MODES)  # of each network in one mode
            sizes = (*((1,) if one_by_one else ()), 7, len(rows))
            yield different(quantised(model, rows, mode), rows, sizes, f"{name}, {mode}")


def different(
    graph: MaseGraph, rows: Tensor, sizes: tuple[int, ...], what: str
) -> tuple[int, list[str]]:
    """Rows compared in batches of some sizes, and the sizes at which they differ."""
    program = lower(graph)
    if not analyse(program).exact("float32"):
        return 0, [f"{what}: not exact"]
    wanted = Engine(program)(rows)[0]
    found = []
    for size in sizes:
        with torch.no_grad():
            parts = [graph.model(part.clone()) for part in torch.split(rows, size)]
        if not torch.equal(torch.cat(parts).double(), wanted):
            found.append(f"{what}: in batches of {size}")
    return len(rows) * len(sizes), found
