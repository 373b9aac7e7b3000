"""Post-training quantisation with separate number formats for every node."""

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import OUTPUT, known_keys
from chop.numerics import FORMATS
from chop.numerics.base import AUTO
from chop.numerics.granular import require_broadcast
from chop.ops.op import Op, op_of_node, parameter_roles
from chop.ops.table import OPS
from chop.passes.graph.transforms.folding import fold_normalisation_transform_pass, folded_types
from chop.passes.graph.transforms.quantize.observe import Fits, with_scales
from chop.passes.graph.transforms.quantize.plan import is_quantizable
from chop.passes.graph.transforms.quantize.quantize import quantize_transform_pass
from chop.passes.graph.transforms.quantize.ranges import Calibration
from chop.passes.graph.transforms.quantize.saturation import lies_outside
from chop.passes.graph.utils import get_mase_op, get_node_actual_target
from chop.search.spaces.reuse import BitCounter, Formats
from chop.search.spaces.scales import check_auto, chosen_scales, formats_to_fit, role_of
from chop.search.spaces.space import (
    SPACES,
    Batch,
    Candidate,
    Choice,
    SearchContext,
    SearchSpace,
    SpaceSetup,
    flat,
    options,
)
from chop.search.spaces.variants import Quants, Variants, can_vary

logger = logging.getLogger("chop")

DEFAULT, SEED = "default", "search.search_space.seed"
LISTED = 12  # names that a message lists; a large network has hundreds
UNQUANTISED: dict[str, Any] = {"name": None}
BY_CHANNEL = ("width", "frac_width", "signed", "scale")
"""Fields that may hold lists: inside the list of options, as that is one already."""


class MixedPrecisionSetup(SpaceSetup):
    """The match of seeds with nodes, and the choice of scales that are "auto".

    Attributes:
        by: match nodes by name or by operation (type).
        calibrate: how scales are chosen, from rows of the training split.
        fold: put batch normalisation into the layers beside it first, as networks in integers have
            none of it.
    """

    by: Literal["name", "type"] = "name"
    calibrate: Calibration = Calibration()
    fold: bool = False

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield what a study is known by: settings of today, unless they are as they used to be."""
        yield "by", self.by
        if self.calibrate != Calibration():
            yield "calibrate", self.calibrate
        if self.fold:
            yield "fold", True


@SPACES.register("graph/quantize/mixed_precision_ptq")
class MixedPrecisionPTQ(SearchSpace):
    """A number format and its widths for each operation of a graph, without training."""

    Setup = MixedPrecisionSetup

    def __init__(self, context: SearchContext, setup: Any, seed: Mapping[str, Any]) -> None:
        super().__init__(context, setup, seed)
        self.graph = context.graph(context.twin())
        if setup.fold:
            if not context.eval_mode:
                raise ConfigError("search.search_space.setup.fold: write eval_mode = true with it")
            self.graph, _ = fold_normalisation_transform_pass(self.graph)
        elif folded_types(context.model):
            self.advice = (
                "fold = true in [search.search_space.setup] takes the norms out of the way"
            )
        self.nodes, self.first = quantisable(self.graph)
        if not self.nodes:
            raise ConfigError("no operation of the model can be quantised: there is no choice")
        self.variants = Variants(self.graph) if context.eval_mode and can_vary(self.graph) else None
        self.bits = BitCounter(self.graph)
        self._repeated = [name for name in self.nodes if self.first[name] != name]
        self.formats = Formats()
        self.fits = self._chosen_scales()

    @classmethod
    def check(cls, setup: Any, seed: Mapping[str, Any]) -> None:
        """Refuse seeds without a format, unknown formats, and keys that no listed format has."""
        if not seed:
            raise ConfigError("search.search_space.seed: there is no seed to choose from")
        for name, block in seed.items():
            where = f"search.search_space.seed.{name}"
            if not isinstance(block, dict) or set(block) != {"config"}:
                raise ConfigError(f"{where}: a table 'config' is expected, and nothing else")
            _check_seed(block["config"], f"{where}.config")

    def choices(self) -> tuple[Choice, ...]:
        """For each node its format, then what that format needs."""
        by_name = {node.name: node for node in self.graph.nodes}
        self._check_seed_names(by_name)
        for name, op in self.nodes.items():
            _check_shapes(by_name[name], op, self._seed_of(name, op))
        return tuple(
            _format_choice(name, self._seed_of(name, op), _roles_of(op, by_name[name]))
            for name, op in self.nodes.items()
            if self.first[name] == name
        )

    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """One block for each node that can be quantised; any other is left as it is."""
        blocks: dict[str, dict[str, Any]] = {name: {} for name in self.nodes}
        for path, value in chosen.items():
            node, key = self._paths[path]
            blocks[node][key] = value
        for name in self._repeated:
            blocks[name] = dict(blocks[self.first[name]])
        blocks[DEFAULT] = dict(UNQUANTISED)
        return {name: {"config": block} for name, block in blocks.items()}

    @cached_property
    def _paths(self) -> dict[str, tuple[str, str]]:
        """The node and the key that each choice is about."""
        names = (choice.name.partition("/config/") for choice in flat(self.tree))
        return {"".join(name): (name[0], name[2]) for name in names}

    def candidate(self, config: dict[str, Any]) -> Candidate:
        """The pristine network, quantised as `config` says."""
        return QuantisedCandidate(self, config)

    def toml_of(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return ``[passes.quantize]`` by name, with the numbers that stand for "auto"."""
        args = pass_args(self.with_numbers(config))
        chosen = [quant.operands.values() for _, quant in self.quants(config).values()]
        if any(lies_outside(fmt) for formats in chosen for fmt in formats):
            args["outside_width"] = True  # the search has chosen it
        folding: dict[str, Any] = {"fold_normalisation": {}} if self.setup.fold else {}
        return {"passes": {**folding, "quantize": args}}

    def quantise(self, config: dict[str, Any]) -> nn.Module:
        """A new model, made by the quantise pass."""
        graph = copy.deepcopy(self.graph)  # a graph of torch.export takes long to trace
        args = pass_args(self.with_numbers(config)) | {"outside_width": True}
        graph, _ = quantize_transform_pass(graph, args)
        return graph.model

    def with_numbers(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the numbers that stand for "auto"."""
        if not self.fits:
            return config
        numbers = {
            name: {"config": quant.as_dict()}
            for name, (_, quant) in self.quants(config).items()
            if AUTO in config[name]["config"].values()
        }
        return config | numbers

    def quants(self, config: dict[str, Any]) -> Quants:
        """The quantised nodes of a configuration."""
        found = {}
        for name, op in self.nodes.items():
            rule = config[name]["config"]
            if rule["name"] is not None:
                quant = self.formats.parse(op, rule, f"search space: {name}")
                if self.fits:
                    quant = with_scales(quant, self.first[name], self.fits)
                found[name] = (repr(rule), quant)
        return found

    def is_first(self, name: str) -> bool:
        """Return whether a node is the first that calls its layer."""
        return self.first[name] == name

    def _chosen_scales(self) -> Fits:
        """The scale of each operand in each format that a trial may ask for, from training rows.

        They are chosen once: processes that are started later get them with the context.
        """
        known = repr((self.setup, self.seed))
        if known not in self.context.kept:
            by_name = {node.name: node for node in self.graph.nodes}
            wanted = {}
            for name, op in self.nodes.items():
                quant, found = formats_to_fit(op, self._seed_of(name, op))
                if quant is not None and found and self.first[name] == name:
                    wanted[by_name[name]] = (quant, found)
            self.context.kept[known] = chosen_scales(
                self.context, self.graph, wanted, self.setup.calibrate
            )
        fits: Fits = self.context.kept[known]
        return fits

    def _seed_of(self, name: str, op: Op) -> dict[str, Any]:
        key = name if self.setup.by == "name" else op.name
        block = self.seed.get(key, self.seed.get(DEFAULT, {"config": UNQUANTISED}))
        seed: dict[str, Any] = block["config"]
        return seed

    def _check_seed_names(self, nodes: Mapping[str, fx.Node]) -> None:
        """Refuse seeds for nodes that are not there or cannot be quantised, and say what is unused.

        A seed for nodes may stand beside seeds for types, as in the files of the labs; of these
        only those are used that `by` is about.
        """
        by_name = self.setup.by == "name"
        types = {op.name for op in self.nodes.values()}
        for name in self.seed:
            if name not in (DEFAULT, *nodes, *OPS):
                kind, known = ("node", nodes) if by_name else ("operation", types)
                raise UnknownNameError(kind, name, known, SEED)
            if name in nodes and by_name and name not in self.nodes:
                raise ConfigError(f"{SEED}.{name}: {get_mase_op(nodes[name])} cannot be quantised")
        self._check_unused(set(self.nodes) if by_name else types)

    def _check_unused(self, used: set[str]) -> None:
        """Refuse seeds of which none is used, and warn of those that are not.

        What is to stay in floating point need not be there: such a seed restricts the default. Nor
        need a norm have become the operation that it may become.
        """
        may_be = folded_types(self.context.model) if self.setup.fold else []
        named = [
            name
            for name, block in self.seed.items()
            if name != DEFAULT and set(options(block["config"]["name"], name)) != {None}
        ]
        idle = [name for name in named if name not in used and name not in may_be]
        if not idle:
            return
        what, other = ("node", "type") if self.setup.by == "name" else ("operation", "name")
        shown = ", ".join(sorted(used)[:LISTED]) + (", …" if len(used) > LISTED else "")
        said = (
            f'{SEED}: by = "{self.setup.by}", but no {what} that can be quantised is called '
            f'{" or ".join(idle)}: name one of {shown}, or write by = "{other}"'
        )
        if idle == named:
            raise ConfigError(said)
        logger.warning("%s; the others are used", said)


class QuantisedCandidate(Candidate):
    """A quantised network, run as a variant of the one graph where that is possible."""

    def __init__(self, space: MixedPrecisionPTQ, config: dict[str, Any]) -> None:
        super().__init__(space.context, config, lambda: space.quantise(config))
        self.space = space
        self.quants = space.quants(config)

    def predictions(self, loader: str, num_samples: int | None) -> Iterator[Batch]:
        variants = self.space.variants
        if variants is None or self._is_random():
            torch.manual_seed(self.context.seed)  # stochastic rounding must not depend on the past
            yield from super().predictions(loader, num_samples)
            return
        for index, (features, labels) in enumerate(self.context.batches(loader, num_samples)):
            with _without_gradients():
                scores = variants.run(self.quants, (loader, num_samples, index), (features,))
            yield scores, labels

    def _is_random(self) -> bool:
        random = self.space.formats.random
        return bool(random) and any(
            fmt in random for _, quant in self.quants.values() for fmt in quant.operands.values()
        )

    def parameter_width(self) -> float:
        if self._is_random():  # widths may follow the values of a layer
            return super().parameter_width()
        return self.space.bits.parameter_width(self.quants)

    def activation_width(self) -> float:
        if self._is_random():
            return super().activation_width()
        return self.space.bits.activation_width(self.quants)


def quantisable(graph: MaseGraph) -> tuple[dict[str, Op], dict[str, str]]:
    """The operation of each node that can be quantised, and the first node with the same layer."""
    modules = graph.modules
    nodes: dict[str, Op] = {}
    first: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for node in graph.nodes:
        op = op_of_node(node, modules)
        if op is None or not is_quantizable(node, op):
            continue
        nodes[node.name] = op
        # Nodes that call one layer are quantised alike, for the layer can have one form only.
        owner = modules[str(node.target)] if node.op == "call_module" else node
        first[node.name] = owners.setdefault(owner, node.name)
    return nodes, first


def _without_gradients() -> AbstractContextManager[object]:
    """Inference mode, which takes its time to enter, if it is not on already."""
    return nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode()


def pass_args(config: dict[str, Any]) -> dict[str, Any]:
    """A sampled configuration as the arguments of the quantise pass."""
    return {"by": "name", **config}


def _format_choice(node: str, seed: dict[str, Any], roles: frozenset[str]) -> Choice:
    """The format of a node, and for each format the keys that it has."""
    names = options(seed["name"], node)
    return Choice(
        f"{node}/config/name",
        names,
        tuple(
            ()
            if name is None
            else tuple(
                Choice(f"{node}/config/{key}", options(value, key))
                for key, value in seed.items()
                if key == "bypass" or role_of(key, FORMATS[name]) in roles
            )
            for name in names
        ),
    )


def _check_shapes(node: fx.Node, op: Op, seed: dict[str, Any]) -> None:
    """Refuse widths that are not numbers, and lists of them that do not fit a node's weights."""
    module = get_node_actual_target(node) if node.op == "call_module" else None
    for key, value in seed.items():
        role, _, field = key.partition("_")
        parameter = getattr(module, role, None) if role in op.params else None
        for option in options(value, key):
            if key.endswith("width") and not _is_width(option):
                raise ConfigError(f"{SEED}: {key}: {option!r:.40} is not a whole number")
            if field in BY_CHANNEL and isinstance(option, list) and isinstance(parameter, Tensor):
                try:
                    require_broadcast(f"{field}s", np.shape(option), tuple(parameter.shape))
                except (ConfigError, ValueError) as error:
                    raise ConfigError(f"search.search_space.seed: {node.name}: {error}") from None


def _is_width(option: Any) -> bool:
    """Return whether an option is a width, one for each channel, or a word for a computed one."""
    if isinstance(option, list):
        return bool(option) and all(map(_is_width, option))
    is_word = option is None or (isinstance(option, str) and option.lower() == AUTO)
    return is_word or (isinstance(option, int) and not isinstance(option, bool))


def _roles_of(op: Op, node: fx.Node) -> frozenset[str]:
    """The roles whose settings make a difference to a node."""
    module = get_node_actual_target(node) if node.op == "call_module" else None
    there = parameter_roles(op, module).values() if isinstance(module, nn.Module) else op.params
    absent = set(op.params).difference(there)
    # What is not stated for an input is taken from data_in, for a bias from the weight.
    inputs = ["data_in"] if op.inputs else []
    return frozenset({*op.roles, *op.inner, OUTPUT, *inputs} - absent)


def _check_seed(seed: Any, where: str) -> None:
    if not isinstance(seed, dict) or "name" not in seed:
        raise ConfigError(f"{where}: 'name', a list of number formats, is missing")
    names = options(seed["name"], f"{where}.name")
    formats = []
    for name in names:
        if name is not None and name not in FORMATS:
            raise UnknownNameError("number format", name, FORMATS, f"{where}.name")
        formats += [] if name is None else [FORMATS[name]]
    for key in sorted(seed.keys() - {"name", "bypass"}):
        offered = options(seed[key], f"{where}.{key}")
        if formats and not any(role_of(key, fmt) for fmt in formats):
            known = {each for fmt in formats for each in known_keys(fmt, len(OPS))}
            raise UnknownNameError("key", key, known, where)
        check_auto(offered, key, formats, f"{where}.{key}")
