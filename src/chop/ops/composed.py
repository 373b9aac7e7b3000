"""Operations made of several products, written so that what is between the products can be rounded.

Attention multiplies its scores with the values; a recurrent layer multiplies its hidden state with
a weight at every step. `rounders` has what rounds these inner operands, by role; without any,
attention is torch's own.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ops.stepwise import (
    CELL_BITS,
    SPARE,
    exact,
    round_in,
    softmax_by_tables,
    table_bits,
    to_fixed_point,
)

Rounders = Mapping[str, Callable[[Tensor], Tensor]]
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def rounded_attention(  # noqa: PLR0913, PLR0917  # as torch has them
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rounders: Rounders | None = None,
) -> Tensor:
    """`scaled_dot_product_attention`, its scores rounded before they meet the values."""
    if not rounders:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    if is_causal:
        shape = query.shape[-2], key.shape[-2]
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    round_scores = rounders.get("scores", pass_through)
    bits = table_bits(rounders)
    if bits is None:
        scores = F.dropout(
            float_scores(query @ key.transpose(-2, -1) * scale, attn_mask), dropout_p
        )
        return round_scores(scores) @ value
    logits = exact(query) @ exact(key).transpose(-2, -1)
    scores = softmax_by_tables(logits, -1, bits, scale, attn_mask)
    return (round_in(scores, round_scores) @ exact(value)).to(query.dtype)


def float_scores(logits: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of masked products; a row that sees nothing is zero."""
    if mask is not None:
        truth = mask.dtype == torch.bool
        logits = logits.masked_fill(~mask, -torch.inf) if truth else logits + mask
    found: Tensor = torch.ops.aten._safe_softmax(logits, -1)
    return found


def masked_softmax(
    input: Tensor,  # noqa: A002
    visible: Tensor,
    dim: int,
    *,
    rounders: Any = None,
) -> Tensor:
    """Return the softmax of what truth values leave visible; a row that sees nothing is zero."""
    bits = table_bits(rounders)
    if bits is None:
        hidden = input.masked_fill(~visible, -torch.inf)
        found: Tensor = torch.ops.aten._safe_softmax(hidden, dim)
        return found
    return softmax_by_tables(input, dim, bits, mask=visible).to(input.dtype)


def attention_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, num_heads: int, like: Tensor
) -> Tensor | None:
    """Both masks of `nn.MultiheadAttention` as one, to be added to (..., heads, queries, keys).

    Args:
        attn_mask: what each query may see, for all or for each sample and head.
        key_padding_mask: keys that no query may see, for each sample.
        like: gives the type of numbers.
    """
    found: Tensor | None = None
    if attn_mask is not None:
        each = attn_mask
        if attn_mask.dim() == 3:
            each = attn_mask.reshape(-1, num_heads, *attn_mask.shape[1:])
        found = additive_mask(each, like)
        if attn_mask.dim() == 3 and like.dim() == 3:  # one sample that is not a batch
            found = found.squeeze(0)
    if key_padding_mask is not None:
        padding = additive_mask(key_padding_mask, like)[..., None, None, :]
        found = padding if found is None else found + padding
    return found


def additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: truth values hide what they mark."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)


def pass_through(value: Tensor) -> Tensor:
    """The value itself."""
    return value


class Gates(NamedTuple):
    """The functions of a recurrent layer, and what rounds its states."""

    sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid
    tanh: Callable[[Tensor], Tensor] = torch.tanh
    cell: Callable[[Tensor], Tensor] = pass_through
    hidden: Callable[[Tensor], Tensor] = pass_through


def gates_of(bits: int | None) -> Gates:
    """The functions as tables of so many bits; they read what is limited to a range around 0."""
    if bits is None:
        return Gates()

    def index(x: Tensor) -> Tensor:
        return to_fixed_point(x, bits, bits - SPARE, signed=True)

    return Gates(
        lambda x: to_fixed_point(torch.sigmoid(index(x)), bits, bits),
        lambda x: to_fixed_point(torch.tanh(index(x)), bits + 1, bits, signed=True),
        lambda x: to_fixed_point(x, CELL_BITS, bits, signed=True),
        lambda x: to_fixed_point(x, bits + 1, bits, signed=True),
    )


Step = Callable[[Tensor, tuple[Tensor, ...], Tensor, Gates], tuple[Tensor, ...]]


def lstm_step(
    gates: Tensor, state: tuple[Tensor, ...], from_hidden: Tensor, of: Gates
) -> tuple[Tensor, ...]:
    """One step of an LSTM: hidden and cell state from the products of input and hidden state."""
    i, f, g, o = (gates + from_hidden).chunk(4, -1)
    cell = of.cell(of.sigmoid(f) * state[1] + of.sigmoid(i) * of.tanh(g))
    return of.sigmoid(o) * of.tanh(cell), cell


def gru_step(
    gates: Tensor, state: tuple[Tensor, ...], from_hidden: Tensor, of: Gates
) -> tuple[Tensor, ...]:
    """One step of a GRU."""
    r, z, n = gates.chunk(3, -1)
    hr, hz, hn = from_hidden.chunk(3, -1)
    new = of.tanh(n + of.sigmoid(r + hr) * hn)
    update = of.sigmoid(z + hz)
    return (of.hidden((1 - update) * new + update * state[0]),)


def tanh_step(
    gates: Tensor, state: tuple[Tensor, ...], from_hidden: Tensor, of: Gates
) -> tuple[Tensor, ...]:
    """One step of a plain recurrent network."""
    return (of.tanh(gates + from_hidden),)


def relu_step(
    gates: Tensor, state: tuple[Tensor, ...], from_hidden: Tensor, of: Gates
) -> tuple[Tensor, ...]:
    """One step of a plain recurrent network with ReLU."""
    return ((gates + from_hidden).relu(),)


STEPS: dict[str, Step] = {
    "LSTM": lstm_step, "GRU": gru_step, "RNN_TANH": tanh_step, "RNN_RELU": relu_step,
}  # fmt: skip


def run_recurrent(
    layer: Any,
    input: Any,  # noqa: A002 -- the name that torch gives it
    hx: Any = None,
    *,
    rounders: Rounders | None = None,
) -> Any:
    """The forward of `nn.LSTM`, `nn.GRU` and `nn.RNN`, step by step; rows come first inside."""
    rounders = rounders or {}
    batched = input.dim() == 3
    turned = batched and not layer.batch_first
    steps = input if batched else input.unsqueeze(0)
    steps = caster_of(rounders)(steps.transpose(0, 1) if turned else steps)
    lstm = layer.mode == "LSTM"
    given = hx if lstm or hx is None else (hx,)
    starts = None if given is None else [s if batched else s.unsqueeze(1) for s in given]
    ends: list[tuple[Tensor, ...]] = []
    directions = 2 if layer.bidirectional else 1
    for index in range(layer.num_layers):
        if index:
            steps = F.dropout(steps, layer.dropout, layer.training)
            steps = round_in(steps, rounders.get("data_in", pass_through))
        found = []
        for direction in range(directions):
            place = index * directions + direction
            start = None if starts is None else tuple(s[place] for s in starts)
            outputs, end = one_way(layer, steps, index, direction, start, rounders)
            found.append(outputs)
            ends.append(end)
        steps = torch.cat(found, -1) if directions == 2 else found[0]
    last = [torch.stack(parts).to(input.dtype) for parts in zip(*ends, strict=True)]
    steps = (steps.transpose(0, 1) if turned else steps).to(input.dtype)
    if not batched:
        steps, last = steps.squeeze(0), [each.squeeze(1) for each in last]
    return steps, (tuple(last) if lstm else last[0])


def caster_of(rounders: Rounders) -> Callable[[Any], Any]:
    """Return the function that casts numbers, if there are any, to the type of a layer."""
    return (
        pass_through if table_bits(rounders) is None else lambda x: None if x is None else exact(x)
    )


def one_way(
    layer: Any,
    steps: Tensor,
    index: int,
    direction: int,
    state: tuple[Tensor, ...] | None,
    rounders: Rounders,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All steps of one layer in one direction: the outputs in order, and the last state."""
    number, of = caster_of(rounders), gates_of(table_bits(rounders))

    def parameter(name: str) -> Any:
        return number(getattr(layer, f"{name}_l{index}{'_reverse' if direction else ''}", None))

    round_hidden = rounders.get("hidden", pass_through)
    weight, bias, project = map(parameter, ("weight_hh", "bias_hh", "weight_hr"))
    gates = F.linear(steps, parameter("weight_ih"), parameter("bias_ih"))
    if state is None:
        sizes = layer.hidden_size if project is None else layer.proj_size, layer.hidden_size
        count = 2 if layer.mode == "LSTM" else 1
        state = tuple(weight.new_zeros(1, size) for size in sizes[:count])
    state = tuple(map(number, state))
    run = STEPS[layer.mode]
    outputs: list[Tensor] = []
    each = list(gates.unbind(1))
    for now in reversed(each) if direction else each:
        hidden = F.linear(round_in(state[0], round_hidden), weight, bias)
        state = run(now, state, hidden, of)
        if project is not None:
            state = (F.linear(round_in(state[0], round_hidden), project), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if direction else outputs, 1), state


def run_cell(layer: Any, input: Tensor, hx: Any = None, *, rounders: Rounders | None = None) -> Any:  # noqa: A002
    """The forward of `nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`."""
    mode = cell_mode(layer)
    lstm = mode == "LSTM"
    rounders = rounders or {}
    number, of = caster_of(rounders), gates_of(table_bits(rounders))
    if hx is None:
        zeros = layer.weight_hh.new_zeros(*(1,) * (input.dim() - 1), layer.hidden_size)
        hx = (zeros, zeros) if lstm else zeros
    state = tuple(map(number, hx if lstm else (hx,)))
    hidden = round_in(state[0], rounders.get("hidden", pass_through))
    gates = F.linear(number(input), number(layer.weight_ih), number(layer.bias_ih))
    before = F.linear(hidden, number(layer.weight_hh), number(layer.bias_hh))
    found = tuple(each.to(input.dtype) for each in STEPS[mode](gates, state, before, of))
    return found if lstm else found[0]


def cell_mode(layer: Any) -> str:
    """The kind of recurrent network that a cell is of."""
    if isinstance(layer, nn.LSTMCell):
        return "LSTM"
    return "GRU" if isinstance(layer, nn.GRUCell) else f"RNN_{layer.nonlinearity.upper()}"


def recurrent_parameters(layer: nn.Module) -> dict[str, str]:
    """Each weight and bias of a recurrent layer or cell, with its role."""
    present = (name for name, each in layer._parameters.items() if each is not None)
    return {name: name.partition("_")[0] for name in present}
