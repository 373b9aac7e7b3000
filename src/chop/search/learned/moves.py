"""Exact moves of single bits in a chain of linear layers, each tried on rows and taken if it pays.

All numbers are multiples of powers of two, so sums in double precision are exact. Arrays have
channels first: one channel of all rows is what a move changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.chain import linear_chain
from chop.numerics import Integer

Array = NDArray[np.float64]
Rows = NDArray[np.intp] | slice
RowLoss = Callable[[Array, Rows], Array]
"""Returns the loss of each of some rows, from scores that have channels first."""
FIRST_SHARE = 0.25
"""Of the rows, after which a move that cannot pay is given up."""
DOUBT = 2.5
"""Standard errors by which it must be worse for that."""
FINEST = 24
"""Bits after the point of the codes in which the bits of weights are counted."""


@dataclass
class LinearLink:
    """A linear layer of a chain: its values, and the fixed point of the channels that it reads."""

    module: Any
    weight: Array
    bias: Array
    frac: NDArray[np.int64]
    width: NDArray[np.int64]
    signed: NDArray[np.bool_]
    half_up: bool
    rectifies: bool
    """What it reads goes through a ReLU first."""

    def read(self, channel: int | slice, given: Array) -> Array:
        """Return one channel, or all, as this layer rounds it."""
        shape = (-1, 1) if isinstance(channel, slice) else ()
        scale = np.exp2(self.frac[channel].astype(np.float64)).reshape(shape)
        width = self.width[channel].astype(np.float64)
        low = -np.where(self.signed[channel] & (width > 0), np.exp2(width - 1), 0.0).reshape(shape)
        high = np.exp2(width).reshape(shape) - 1 + low
        scaled = (np.maximum(given, 0.0) if self.rectifies else given) * scale
        codes = np.floor(scaled + 0.5) if self.half_up else np.rint(scaled)
        rounded: Array = np.clip(codes, low, high) / scale
        return rounded


def find_chain(graph: MaseGraph) -> list[LinearLink] | None:
    """Return the layers of a network that is a chain of linear layers in fixed point, or None.

    A ReLU between them belongs to the layer that reads it; the last layer gives the scores.
    """
    found = [fixed_link(*link) for link in linear_chain(graph.model) or []]
    links = [link for link in found if link is not None]
    return links if links and len(links) == len(found) else None


def fixed_link(module: Any, rectifies: bool) -> LinearLink | None:
    """Return a linear layer as a link of a chain, if it is in fixed point that saturates."""
    data, weight, bias = (module.quant.operands.get(r) for r in ("data_in", "weight", "bias"))
    if not isinstance(data, Integer) or not isinstance(weight, Integer):
        return None
    if "wrap" in (data.overflow, weight.overflow):
        return None
    inputs, outputs = module.in_features, module.out_features
    width, frac, signed = (np.broadcast_to(each, (inputs,)) for each in data.arrays)
    own = np.zeros(outputs) if module.bias is None else rounded_by(bias, module.bias)
    return LinearLink(
        module, rounded_by(weight, module.weight), own, frac.astype(np.int64),
        width.astype(np.int64), signed.astype(bool), data.rounding == "half_up", rectifies,
    )  # fmt: skip


def rounded_by(fmt: Any, values: Any) -> Array:
    """Return a parameter in its format, or as it is if it has none."""
    found = values.detach() if fmt is None else fmt(values.detach())
    return np.array(found.double().cpu().numpy())


def last_bit(value: float) -> int:
    """Return the last bit that is set in a weight, in units of the finest one; 0 if none is."""
    code = abs(int(value * 2.0**FINEST))
    return code & -code


def bits_around(value: float) -> int:
    """Return how many bits the non-zero bits of a weight enclose."""
    unit = last_bit(value)
    return (abs(int(value * 2.0**FINEST)) // unit).bit_length() if unit else 0


def tried_values(value: float) -> list[float]:
    """Return the values that a weight may move to."""
    unit = last_bit(value) / 2.0**FINEST
    found = [0.0, value - unit, value + unit, value - 2 * unit, value + 2 * unit]
    return [*found, 2 * value, value / 2] if abs(value) == unit else found


def data_bits(codes: Array) -> int:
    """Return the bits that the magnitudes of a channel take, without zeros that all end in."""
    found = int(np.bitwise_or.reduce(np.abs(codes).astype(np.int64), initial=0))
    return (found // (found & -found)).bit_length() if found else 0


@dataclass
class Effect:
    """The effect of a changed channel on some rows: its values, layers behind it, losses."""

    rows: NDArray[np.intp]
    values: Array
    given: list[Array]
    inputs: list[Array]
    losses: Array


class Chain:
    """A chain of layers at work on rows: what it computes is kept, and moves are tried exactly.

    Args:
        features: the rows, channels first.
        cost_weight: what one effective bit operation adds to the loss.
    """

    def __init__(
        self, links: list[LinearLink], features: Array, loss: RowLoss, cost_weight: float
    ) -> None:
        self.links, self.loss, self.cost_weight = links, loss, cost_weight
        self.count = features.shape[1]
        self.given, self.inputs = [features], list[Array]()
        """What each layer is given, the scores behind the last; and what it rounds that to."""
        for link in links:
            self.inputs.append(link.read(slice(None), self.given[-1]))
            self.given.append(link.weight @ self.inputs[-1] + link.bias[:, None])
        self.losses = loss(self.given[-1], slice(None))
        self.bits = [np.vectorize(bits_around, otypes=[np.int64])(each.weight) for each in links]
        self.data_bits = [
            np.array([data_bits(codes) for codes in values * np.exp2(link.frac)[:, None]])
            for values, link in zip(self.inputs, links, strict=True)
        ]

    @property
    def cost(self) -> int:
        """The effective bit operations of one row."""
        pairs = zip(self.bits, self.data_bits, strict=True)
        return int(sum((bits * data).sum() for bits, data in pairs))

    def improve(self, seed: int) -> int:
        """Try every move once, weights in random order and then channels; return those taken."""
        weights = [
            (layer, int(out), int(channel))
            for layer, link in enumerate(self.links)
            for out, channel in np.argwhere(link.weight)
        ]
        np.random.default_rng(seed).shuffle(weights)
        taken = sum(self._move_weight(*place) for place in weights)
        channels = [(k, c) for k, link in enumerate(self.links) for c in range(len(link.frac))]
        return taken + sum(self._move_channel(*place) for place in channels)

    def _move_weight(self, layer: int, out: int, channel: int) -> bool:
        """Move one weight to the value that pays most, if one does."""
        link, data = self.links[layer], int(self.data_bits[layer][channel])
        value, bits = float(link.weight[out, channel]), int(self.bits[layer][out, channel])
        best, taken = 0.0, None
        for new in tried_values(value):
            step = (new - value) * self.inputs[layer][channel]
            change = self._try(layer + 1, out, step, (bits - bits_around(new)) * data)
            if change is not None and change[0] < best:
                best, taken = change[0], (new, step, change[1])
        if taken is None:
            return False
        new, step, effects = taken
        link.weight[out, channel], self.bits[layer][out, channel] = new, bits_around(new)
        self.given[layer + 1][out] += step
        self._take(layer + 1, out, effects)
        return True

    def _move_channel(self, layer: int, channel: int) -> bool:
        """Take one bit from a channel, after the point or before it, if that pays."""
        link, bits = self.links[layer], int(self.data_bits[layer][channel])
        frac, width = int(link.frac[channel]), int(link.width[channel])
        products = int(self.bits[layer][:, channel].sum())
        if bits <= 1 or not products:
            return False
        best, taken = 0.0, None
        link.width[channel] = width - 1
        for fewer in (frac - 1, frac):
            link.frac[channel] = fewer
            codes = link.read(channel, self.given[layer][channel]) * 2.0**fewer
            left = data_bits(codes)
            change = self._try(layer, channel, None, products * (bits - left))
            if change is not None and change[0] < best:
                best, taken = change[0], (fewer, left, change[1])
        if taken is None:
            link.frac[channel], link.width[channel] = frac, width
            return False
        link.frac[channel], self.data_bits[layer][channel], effects = taken
        self._take(layer, channel, effects)
        return True

    def _try(
        self, layer: int, channel: int, step: Array | None, saved: int
    ) -> tuple[float, list[Effect]] | None:
        """Return the change of loss and cost if a channel changes; None if it surely does not pay.

        Args:
            layer: that reads the channel; behind the last layer it is a score.
            step: what is added to what the layer is given.
            saved: effective bit operations.
        """
        first = round(self.count * FIRST_SHARE)
        gain, total = self.cost_weight * saved, 0.0
        effects: list[Effect] = []
        for part in (slice(0, first), slice(first, self.count)):
            effect = self._effect(layer, channel, step, part)
            changes = effect.losses - self.losses[effect.rows]
            total += float(changes.sum())
            effects.append(effect)
            if part.start == 0:
                mean = total / first
                spread = max(float(np.square(changes).sum()) / first - mean**2, 0.0)
                if mean - DOUBT * (spread / first) ** 0.5 > gain:
                    return None
        return total / self.count - gain, effects

    def _effect(self, layer: int, channel: int, step: Array | None, part: slice) -> Effect:
        """Return what changes for a part of the rows."""
        given = self.given[layer][channel, part]
        given = given if step is None else given + step[part]
        is_score = layer == len(self.links)
        before = (self.given if is_score else self.inputs)[layer][channel, part]
        values = given if is_score else self.links[layer].read(channel, given)
        places = np.flatnonzero(values != before)
        rows, values, steps = places + part.start, values[places], (values - before)[places]
        found = Effect(rows, values, [], [], values)
        if is_score:
            scores = self.given[layer][:, rows]
            scores[channel] = values
        else:
            link = self.links[layer]
            scores = self.given[layer + 1][:, rows] + link.weight[:, [channel]] * steps
            found.given.append(scores)
            for link in self.links[layer + 1 :]:
                found.inputs.append(link.read(slice(None), scores))
                scores = link.weight @ found.inputs[-1] + link.bias[:, None]
                found.given.append(scores)
        found.losses = self.loss(scores, rows)
        return found

    def _take(self, layer: int, channel: int, effects: list[Effect]) -> None:
        """Keep what a move has changed; a score that it changes is kept already."""
        for effect in effects:
            if layer < len(self.links):
                self.inputs[layer][channel, effect.rows] = effect.values
            for later, sums in enumerate(effect.given, layer + 1):
                self.given[later][:, effect.rows] = sums
            for later, values in enumerate(effect.inputs, layer + 1):
                self.inputs[later][:, effect.rows] = values
            self.losses[effect.rows] = effect.losses
