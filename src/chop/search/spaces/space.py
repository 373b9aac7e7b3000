"""Search spaces: the choices, the context of a search, and the interface of a space.

A custom space is a registered class:

    @SPACES.register("model/channel_multiplier")
    class ChannelMultiplier(SearchSpace):
        def choices(self) -> tuple[Choice, ...]: ...
        def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]: ...
        def candidate(self, config: dict[str, Any]) -> Candidate: ...

See docs/search.md for the whole of it.
"""

import copy
import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from chop.dataset.data_module import MaseDataModule
from chop.dataset.inputs import as_example, get_cf_args, get_dummy_input, targets_for
from chop.errors import ConfigError, DataError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, lower
from chop.models.info import MaseModelInfo
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.analysis.quantization import calculate_avg_bits_mg_analysis_pass
from chop.preprocessing import Targets
from chop.registry import Registry
from chop.search.spaces.samples import mix_batches, sample_of
from chop.validation import parse

Picked = dict[str, int]
"""The place of the option taken in each choice, by the name of the choice."""
Pick = Callable[["Choice"], int]


@dataclass(frozen=True)
class Choice:
    """One decision.

    Attributes:
        name: unique in the space: ``seq_blocks_2/config/weight_width``.
        options: plain values: numbers, texts, truth values, None, and lists of these.
        then: the choices that each option brings with it, where it brings any.
    """

    name: str
    options: tuple[Any, ...]
    then: tuple[tuple["Choice", ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError(f"{self.name}: there is nothing to choose from")
        if len(set(map(_text, self.options))) < len(self.options):
            raise ConfigError(f"{self.name}: an option is listed twice in {list(self.options)}")

    def after(self, place: int) -> tuple["Choice", ...]:
        """The choices that the option at `place` brings with it."""
        return self.then[place] if self.then else ()

    @cached_property
    def labels(self) -> tuple[bool | int | float | str | None, ...]:
        """The options as Optuna can store them; a list becomes its text."""
        plain = (bool, int, float, str, type(None))
        return tuple(o if isinstance(o, plain) else _text(o) for o in self.options)


def size(choices: Sequence[Choice]) -> int:
    """Return how many configurations there are, exactly."""
    return prod(
        sum(size(choice.after(place)) for place in range(len(choice.options))) for choice in choices
    )


def walk(choices: Sequence[Choice], pick: Pick) -> Picked:
    """Decide each choice that comes up, in order, with `pick`."""
    picked: Picked = {}
    for choice in choices:
        place = pick(choice) if len(choice.options) > 1 else 0
        picked[choice.name] = place
        if following := choice.after(place):
            picked |= walk(following, pick)
    return picked


def every(choices: Sequence[Choice]) -> Iterator[Picked]:
    """All configurations, each once; the last choice changes fastest."""
    if not choices:
        yield {}
        return
    first, rest = choices[0], choices[1:]
    for place in range(len(first.options)):
        for inner in every(first.after(place)):
            for others in every(rest):
                yield {first.name: place, **inner, **others}


def flat(choices: Sequence[Choice]) -> Iterator[Choice]:
    """Every choice of the tree."""
    for choice in choices:
        yield choice
        yield from flat(tuple(itertools.chain.from_iterable(choice.then)))


def values(choices: Sequence[Choice], picked: Mapping[str, int]) -> dict[str, Any]:
    """The options taken, by the name of their choice."""
    found: dict[str, Any] = {}
    for choice in choices:
        place = picked[choice.name]
        found[choice.name] = choice.options[place]
        if following := choice.after(place):
            found |= values(following, picked)
    return found


def key_of(config: Mapping[str, Any]) -> str:
    """A short text that is the same for equal configurations and for no others."""
    return hashlib.sha256(_text(config).encode()).hexdigest()[:24]


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


def _text(value: Any) -> str:
    return _ENCODER.encode(value)


Batch = tuple[Tensor, Tensor]
CPU = torch.device("cpu")
MIXED = "mix_batches rows of "
LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")


@dataclass(frozen=True)
class SearchContext:
    """Model, data and settings of a search. The model belongs to it and is never changed.

    Attributes:
        eval_mode: measure in evaluation mode, as a network is used; else in training mode.
        seed: of the search; training of a candidate starts from it, too.
        folder: of the results, for runners that keep files there.
        is_trained: whether the weights of the model were loaded.
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
    is_trained: bool = False
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a space has worked out once for all processes of the search."""
    _rows: dict[tuple[str, int | None], list[Batch]] = field(default_factory=dict, repr=False)

    def batches(self, loader: str, num_samples: int | None) -> list[Batch]:
        """The first `num_samples` rows of a loader, no more and no fewer, or all of them."""
        found = self.first_batches(loader, num_samples)
        rows = sum(len(labels) for _, labels in found)
        if num_samples is not None and rows < num_samples:
            raise DataError(
                f"num_samples = {num_samples}, but {loader} of data set "
                f"{self.data_module.name!r} has only {rows} rows"
            )
        return found

    def first_batches(self, loader: str, most: int | None) -> list[Batch]:
        """The first rows of a loader, `most` of them or all."""
        asked = (loader, most)
        if asked not in self._rows:
            with torch.inference_mode(False):
                self._rows[asked] = list(self._cut(loader, most))
        return self._rows[asked]

    def _cut(self, loader: str, most: int | None) -> Iterator[Batch]:
        if loader not in LOADERS:
            raise UnknownNameError("data loader", loader, LOADERS)
        left = most
        for features, labels in getattr(self.data_module, loader)():
            if len(features) != len(labels):
                raise DataError(f"a batch has {len(features)} rows, but {len(labels)} labels")
            rows = len(labels) if left is None else min(left, len(labels))
            if rows:
                yield features[:rows].to(self.device), labels[:rows].to(self.device)
            left = None if left is None else left - rows
            if left == 0:
                return

    def mix_rows(self, loader: str, num_samples: int | None) -> str:
        """Return the name under which `batches` has the same rows in one random order."""
        asked = (f"{MIXED}{loader}", num_samples)
        if asked not in self._rows:
            self._rows[asked] = mix_batches(self.batches(loader, num_samples))
        return asked[0]

    def row_count(self, loader: str) -> int | None:
        """Return how many rows a loader has; None if it does not say."""
        rows = getattr(getattr(self.data_module, loader)(), "dataset", None)
        return len(rows) if isinstance(rows, Sized) else None

    def features(self, loader: str, most: int | None) -> Iterable[Tensor]:
        """The features of all rows of a loader, or of as many that are the same for every seed.

        All rows come batch by batch and are not kept.
        """
        if most is None:
            return self._features(loader, None)
        asked = (f"sample of {loader}", most)
        if asked not in self._rows:
            self._rows[asked] = [(x, x) for x in self._features(loader, most)]
        return [features for features, _ in self._rows[asked]]

    def _features(self, loader: str, most: int | None) -> Iterator[Tensor]:
        with torch.random.fork_rng([]):  # a loader may draw numbers, which others would miss
            for features, _ in sample_of(getattr(self.data_module, loader)(), most):
                yield features.to(self.device)

    @property
    def targets(self) -> Targets | None:
        """Return how numbers are scaled that networks of the search predict, if they do that."""
        return targets_for(self.model, self.data_module)

    @cached_property
    def dummy_in(self) -> dict[str, Tensor]:
        """One batch of inputs, by name."""
        return get_dummy_input(self.model_info, self.data_module, self.task, str(self.device))

    def graph(self, model: nn.Module) -> MaseGraph:
        """`model` as a graph with common metadata; it shares the layers of `model`."""
        cf_args = self.cf_args or get_cf_args(self.model_info, self.task, model)
        graph = MaseGraph(model, dict(cf_args), example_inputs=as_example(self.dummy_in))
        init_metadata_analysis_pass(graph)
        names = [node.target for node in graph.nodes if node.op == "placeholder"]
        if len(names) == len(self.dummy_in) == 1:  # whatever the model calls its only input
            inputs = dict(zip(names, self.dummy_in.values(), strict=True))
        else:
            inputs = self.dummy_in
        # Nobody reads the values here, and copies of a large batch's would fill the memory.
        add_common_metadata_analysis_pass(graph, {"dummy_in": inputs, "add_value": False})
        return graph

    def pristine(self) -> nn.Module:
        """A copy of the model, which the caller may change."""
        return copy.deepcopy(self.model)

    def twin(self) -> nn.Module:
        """A copy of the model in the mode that is measured; it may share weights: leave them."""
        weights = [*self.model.parameters(), *self.model.buffers()]
        fixed = self.eval_mode and all(each.device == self.device for each in weights)
        shared = {id(each): each for each in weights if fixed}
        return copy.deepcopy(self.model, shared).train(not self.eval_mode).to(self.device)

    def fingerprint(self) -> str:
        """A text that is the same for equal weights."""
        digest = hashlib.sha256()
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                          if value.ndim else str(value.item()).encode())  # fmt: skip
        return digest.hexdigest()[:24]


class Candidate:
    """One configuration of a search space, ready to be measured.

    Args:
        config: what was chosen.
        build: makes the model; it must share nothing that changes with any other.
    """

    def __init__(
        self, context: SearchContext, config: dict[str, Any], build: Callable[[], nn.Module]
    ) -> None:
        self.context, self.config, self.build = context, config, build

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

    @cached_property
    def program(self) -> IntegerProgram:
        """The integers that the graph computes, without floating-point operations at its end."""
        return lower(self.graph, cut_tail=True)

    def predictions(self, loader: str, num_samples: int | None) -> Iterator[Batch]:
        """Outputs and labels, batch by batch."""
        for features, labels in self.context.batches(loader, num_samples):
            yield self.model(features.clone()), labels  # a model may work in place

    def parameter_width(self) -> float:
        """The average bits of a parameter."""
        return float(calculate_avg_bits_mg_analysis_pass(self.graph)[1]["w_avg_bit"])

    def activation_width(self) -> float:
        """The average bits of an activation that arithmetic reads."""
        return float(calculate_avg_bits_mg_analysis_pass(self.graph)[1]["data_avg_bit"])


class SpaceSetup(BaseModel):
    """``[search.search_space.setup]`` of a space: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchSpace(ABC):
    """The choices, the meaning of each, and the making of its model.

    Args:
        context: the model, the data and the settings of the search.
        setup: ``[search.search_space.setup]``, checked against `Setup`.
        seed: ``[search.search_space.seed]`` as it stands in the file, "NA" being None.
    """

    Setup: ClassVar[type[SpaceSetup]] = SpaceSetup
    starts_afresh: ClassVar[bool] = False
    """Whether candidates get new weights, so that those of the model make no difference."""
    advice = ""  # how networks that cannot be verified in integers could be
    strategy: ClassVar[str] = "optuna"  # the name of the one that can search it

    def __init__(self, context: SearchContext, setup: Any, seed: Mapping[str, Any]) -> None:
        self.context, self.setup, self.seed = context, setup, seed

    @classmethod  # noqa: B027  # there may be nothing to refuse
    def check(cls, setup: Any, seed: Mapping[str, Any]) -> None:
        """Refuse what can be seen to be wrong before any model is built."""

    @abstractmethod
    def choices(self) -> tuple[Choice, ...]:
        """The choices, in the order in which they are made."""

    @abstractmethod
    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """The configuration, plain nested values, that the chosen options make."""

    @abstractmethod
    def candidate(self, config: dict[str, Any]) -> Candidate:
        """Return what the runners measure. It must not depend on any candidate made before."""

    def toml_of(self, config: dict[str, Any]) -> dict[str, Any]:
        """Tables that, added to the settings of the run, make ``ch`` build this configuration."""
        return {}

    @cached_property
    def tree(self) -> tuple[Choice, ...]:
        """The choices, made once."""
        return self.choices()

    @property
    def size(self) -> int:
        """Return how many configurations there are."""
        return size(self.tree)

    def config(self, picked: Picked) -> dict[str, Any]:
        """The configuration of the options at these places."""
        return self.config_of(values(self.tree, picked))


SPACES: Registry[type[SearchSpace]] = Registry("search space")


def make_space(
    name: str, context: SearchContext, setup: Mapping[str, Any], seed: Mapping[str, Any]
) -> SearchSpace:
    """The space of this name, with its settings checked."""
    kind = SPACES[name]
    parsed = parse(kind.Setup, setup, "search.search_space.setup")
    kind.check(parsed, seed)
    return kind(context, parsed, seed)


def options(value: Any, where: str) -> tuple[Any, ...]:
    """The options that a key of a seed lists; a single value is the only option."""
    if found := tuple(value) if isinstance(value, list | tuple) else (value,):
        return found
    raise ConfigError(f"{where}: there is nothing to choose from")
