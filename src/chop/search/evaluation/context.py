"""What a search works on, and one configuration of it that is ready to be measured."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.dataset.data_module import MaseDataModule
from chop.errors import DataError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.models.info import MaseModelInfo
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.analysis.quantization import calculate_avg_bits_mg_analysis_pass
from chop.tools.get_input import get_cf_args, get_dummy_input

Batch = tuple[Tensor, Tensor]
CPU = torch.device("cpu")
LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")


@dataclass(frozen=True)
class SearchContext:
    """Model, data and settings of a search. The model belongs to it and is never changed.

    Attributes:
        eval_mode: measure in evaluation mode, as a network is used; else in training mode.
        seed: of the search; training of a candidate starts from it, too.
        folder: of the results, for runners that have something of their own to keep.
    """

    model: nn.Module
    model_info: MaseModelInfo
    data_module: MaseDataModule
    task: str = "cls"
    cf_args: Mapping[str, Any] | None = None
    device: torch.device = CPU
    eval_mode: bool = True
    seed: int = 0
    folder: Path | None = None
    _rows: dict[tuple[str, int | None], list[Batch]] = field(default_factory=dict, repr=False)

    def batches(self, loader: str, num_samples: int | None) -> list[Batch]:
        """The first `num_samples` rows of a loader, no more and no fewer, or all of them."""
        asked = (loader, num_samples)
        if asked not in self._rows:
            with torch.inference_mode(False):
                self._rows[asked] = list(self._cut(loader, num_samples))
        return self._rows[asked]

    def _cut(self, loader: str, num_samples: int | None) -> Iterator[Batch]:
        if loader not in LOADERS:
            raise UnknownNameError("data loader", loader, LOADERS)
        left = num_samples
        for features, labels in getattr(self.data_module, loader)():
            rows = len(labels) if left is None else min(left, len(labels))
            if rows:
                yield features[:rows].to(self.device), labels[:rows].to(self.device)
            left = None if left is None else left - rows
            if left == 0:
                return
        if left:
            found = (num_samples or 0) - left
            raise DataError(
                f"num_samples = {num_samples}, but {loader} of data set "
                f"{self.data_module.name!r} has only {found} rows"
            )

    @cached_property
    def dummy_in(self) -> dict[str, Tensor]:
        """One batch of inputs, by name."""
        return get_dummy_input(self.model_info, self.data_module, self.task, str(self.device))

    def graph(self, model: nn.Module) -> MaseGraph:
        """`model` as a graph with common metadata; it shares the layers of `model`."""
        cf_args = self.cf_args or get_cf_args(self.model_info, self.task, model)
        graph = MaseGraph(model, dict(cf_args))
        init_metadata_analysis_pass(graph)
        names = [node.target for node in graph.nodes if node.op == "placeholder"]
        if len(names) == len(self.dummy_in) == 1:  # whatever the model calls its only input
            inputs = dict(zip(names, self.dummy_in.values(), strict=True))
        else:
            inputs = self.dummy_in
        add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
        return graph

    def pristine(self) -> nn.Module:
        """A copy of the model, to do with as one likes."""
        return copy.deepcopy(self.model)


class Candidate:
    """One configuration of a search space, ready to be measured.

    Args:
        config: what was chosen.
        build: makes the model anew; it must share nothing that changes with any other.
    """

    def __init__(
        self, context: SearchContext, config: dict[str, Any], build: Callable[[], nn.Module]
    ) -> None:
        self.context = context
        self.config = config
        self.build = build

    @cached_property
    def model(self) -> nn.Module:
        """The model of this configuration, this candidate's own."""
        with torch.inference_mode(False):  # weights made in that mode could never be trained
            return self.build().train(not self.context.eval_mode).to(self.context.device)

    @cached_property
    def graph(self) -> MaseGraph:
        """The graph of the model, with common metadata."""
        with torch.inference_mode(False):
            return self.context.graph(self.model)

    def predictions(self, loader: str, num_samples: int | None) -> Iterator[Batch]:
        """Class scores and labels, batch by batch."""
        for features, labels in self.context.batches(loader, num_samples):
            yield self.model(features.clone()), labels  # a model may work in place

    def parameter_width(self) -> float:
        """The average bits of a parameter."""
        _, found = calculate_avg_bits_mg_analysis_pass(self.graph)
        return float(found["w_avg_bit"])

    def activation_width(self) -> float:
        """The average bits of an activation that arithmetic reads."""
        _, found = calculate_avg_bits_mg_analysis_pass(self.graph)
        return float(found["data_avg_bit"])
