"""Masks of activations, judged by what batches of data bring about."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.nn.masks import (
    INPUT_MASK,
    INPUT_PATTERN,
    INPUT_THRESHOLD,
    channel_dim,
    largest_in_groups,
)
from chop.passes.graph.transforms.pruning.methods import METHODS, keep_most_important
from chop.passes.graph.transforms.pruning.rules import PruneArgs, SparsityRule

Inputs = dict[str, Tensor]
Buffers = dict[str, dict[str, Tensor]]


def input_masks(graph: MaseGraph, layers: Mapping[str, nn.Module], args: PruneArgs) -> Buffers:
    """The buffers that mask the input of each layer, by name of its node."""
    rule = args.activation
    assert rule is not None
    if rule.pattern and rule.method != "random":
        return {name: {INPUT_PATTERN: torch.tensor(rule.pattern)} for name in layers}
    inputs = observe_inputs(graph, layers, args)
    if rule.granularity == "elementwise" and rule.method != "random":
        return thresholds(inputs, rule)
    return fixed_masks(inputs, layers, rule)


def observe_inputs(graph: MaseGraph, layers: Mapping[str, nn.Module], args: PruneArgs) -> Inputs:
    """The inputs of each layer over some batches, as one tensor a layer."""
    found: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(node: fx.Node, inputs: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if node.name in found:
            found[node.name].append(inputs[0].detach().clone())

    for batch in batches_to_run(args):
        run_graph(graph, batch, before=keep)
    return {name: torch.cat(parts) for name, parts in found.items()}


def batches_to_run(args: PruneArgs) -> Iterator[Mapping[str, Any]]:
    """The batches to look at; none is an error."""
    if args.input_generator is None:
        raise ConfigError("pass 'prune': activation needs 'input_generator', batches to judge by")
    source: Iterable[Mapping[str, Any]] = args.input_generator
    looked_at = itertools.islice(iter(source), args.num_batches)
    first = next(looked_at, None)
    if first is None:
        raise ConfigError("pass 'prune': input_generator gives no batch")
    return itertools.chain([first], looked_at)


def thresholds(inputs: Inputs, rule: SparsityRule) -> Buffers:
    """For each layer the magnitude up to which its input becomes zero."""
    if rule.scope == "global":
        together = torch.cat([x.abs().flatten() for x in inputs.values()])
        found = dict.fromkeys(inputs, lowest_part(together, rule.sparsity_of("")))
    else:
        found = {name: lowest_part(x.abs(), rule.sparsity_of(name)) for name, x in inputs.items()}
    return {name: {INPUT_THRESHOLD: threshold} for name, threshold in found.items()}


def lowest_part(magnitudes: Tensor, part: float) -> Tensor:
    """The largest of the lowest round(part · n) magnitudes; -1, below all of them, if none."""
    count = round(part * magnitudes.numel())
    if count == 0:
        return torch.full((), -1.0, dtype=magnitudes.dtype)
    return magnitudes.flatten().kthvalue(count).values.clone()


def fixed_masks(inputs: Inputs, layers: Mapping[str, nn.Module], rule: SparsityRule) -> Buffers:
    """For each layer a mask of one sample's input: channels, or elements drawn at random."""
    generator = None if rule.seed is None else torch.Generator().manual_seed(rule.seed)
    by_channel = rule.granularity == "channel"
    scores = []
    for name, x in inputs.items():
        dims = {channel_dim(layers[name]) % x.dim()} if by_channel else set(range(1, x.dim()))
        rest = tuple(dim for dim in range(x.dim()) if dim not in dims)
        scores.append(METHODS[rule.method](x, rest, generator))
    found: Buffers = {}
    for name, mask in zip(inputs, masks_of_scores(scores, list(inputs), layers, rule), strict=True):
        # A mask of channels has ones for the dimensions after them, so that it broadcasts.
        after = -channel_dim(layers[name]) - 1 if by_channel else 0
        found[name] = {INPUT_MASK: mask.reshape(*mask.shape, *(1,) * after)}
    return found


def masks_of_scores(
    scores: Sequence[Tensor],
    names: Sequence[str],
    layers: Mapping[str, nn.Module],
    rule: SparsityRule,
) -> list[Tensor]:
    """The masks that the rule makes of the scores."""
    if rule.pattern is not None:
        return [
            largest_in_groups(part, channel_dim(layers[name]), *rule.pattern)
            for part, name in zip(scores, names, strict=True)
        ]
    if rule.scope == "global":
        return keep_most_important(scores, rule.sparsity_of(""))
    return [
        keep_most_important([part], rule.sparsity_of(name))[0]
        for part, name in zip(scores, names, strict=True)
    ]
