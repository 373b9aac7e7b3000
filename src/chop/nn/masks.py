"""Masks on weights and inputs that follow a layer through copies, files and quantisation.

A weight mask is a parametrisation of torch: the layer's `weight` is its parameter with zeros put
in, so training leaves pruned weights at zero. Unlike plain parametrisation, state dicts keep the
layer's own keys: ``weight``, zeros included, and ``weight_mask``. What masks an input is kept in
buffers, so that it is part of state dicts too.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.errors import GraphError
from chop.nn.quantized import own_shell

WEIGHT, MASK = "weight", "weight_mask"
_STORED = {
    "parametrizations.weight.original": WEIGHT,
    "parametrizations.weight.0.mask": MASK,
}
INPUT_MASK, INPUT_THRESHOLD, INPUT_PATTERN = (
    "activation_mask",
    "activation_threshold",
    "activation_pattern",
)
INPUT_BUFFERS = (INPUT_MASK, INPUT_THRESHOLD, INPUT_PATTERN)


class WeightMask(nn.Module):
    """Zeros where the mask is false."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight.where(self.mask, torch.zeros((), dtype=weight.dtype, device=weight.device))

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The tensor that is stored when one is assigned to the weight."""
        return weight

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:  # weights that come without a mask leave the present one in force
        state_dict.setdefault(f"{prefix}mask", self.mask)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def weight_mask(module: nn.Module) -> Tensor | None:
    """The mask of a layer's weight; None if it has none."""
    found = _mask_of(module)
    return None if found is None else found.mask


def _mask_of(module: nn.Module) -> WeightMask | None:
    if not parametrize.is_parametrized(module, WEIGHT):
        return None
    first = module.parametrizations[WEIGHT][0]  # type: ignore[index]
    return first if isinstance(first, WeightMask) else None


def with_weight_mask(module: nn.Module, mask: Tensor) -> nn.Module:
    """A layer to take the place of `module`, whose weight is zero where `mask` is false."""
    shell = own_shell(without_weight_mask(module))
    if parametrize.is_parametrized(shell):
        kind = type(shell).__name__.removeprefix("Parametrized")
        raise GraphError(f"a {kind} is parametrised already; remove that before pruning")
    parametrize.register_parametrization(shell, WEIGHT, WeightMask(mask), unsafe=True)
    shell.register_state_dict_post_hook(_write_plain_keys)  # type: ignore[no-untyped-call]
    # The public way to register this ties the hook to one module, which copies do not survive.
    shell._register_load_state_dict_pre_hook(_read_plain_keys)  # type: ignore[no-untyped-call]
    return shell


def without_weight_mask(module: nn.Module, keep_zeros: bool = False) -> nn.Module:
    """A layer without the mask; `module` itself if it has none.

    torch's own removal deletes the property from a class that copies of the layer share, so the
    unmasked layer is put together here.

    Args:
        keep_zeros: the weight becomes a new parameter with the zeros in it; otherwise it is
            the parameter as it was before pruning.
    """
    if _mask_of(module) is None:
        return module
    shell = own_shell(module, type(module).__bases__[0])
    original: nn.Parameter = module.parametrizations[WEIGHT].original  # type: ignore
    del shell._modules["parametrizations"]
    for hooks in (shell._state_dict_hooks, shell._load_state_dict_pre_hooks):
        for hook_id, hook in list(hooks.items()):
            if getattr(hook, "hook", hook) in (_write_plain_keys, _read_plain_keys):
                del hooks[hook_id]
    weight: Any = original
    if keep_zeros:
        weight = nn.Parameter(module.weight.detach().clone(), original.requires_grad)  # type: ignore
    # Parameters are registered in the order in which a fresh layer would have them.
    shell._parameters = {WEIGHT: weight, **shell._parameters}
    return shell


def _write_plain_keys(
    module: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: Any
) -> None:
    """Put the weight with its zeros and the mask under plain keys."""
    for stored, plain in _STORED.items():
        state[prefix + plain] = state.pop(prefix + stored)
    mask = state[prefix + MASK]
    zeroed = WeightMask(mask)(state[prefix + WEIGHT])
    state[prefix + WEIGHT] = zeroed


def _read_plain_keys(state: dict[str, Any], prefix: str, *_rest: Any) -> None:
    """Find the weight and the mask under plain keys."""
    for stored, plain in _STORED.items():
        if prefix + plain in state:
            state[prefix + stored] = state.pop(prefix + plain)


def with_input_mask(module: nn.Module, **buffers: Tensor) -> nn.Module:
    """A layer to take the place of `module` that sets parts of its input to zero.

    Args:
        buffers: one of `activation_mask` (false where one sample's input becomes zero),
            `activation_threshold` (magnitudes up to it become zero) and `activation_pattern`
            (n and m: of m consecutive channels the n of largest magnitude stay).
    """
    shell = own_shell(without_input_mask(module))
    for name, buffer in buffers.items():
        shell.register_buffer(name, buffer)
    shell.register_forward_pre_hook(mask_input)
    return shell


def without_input_mask(module: nn.Module) -> nn.Module:
    """A layer that takes its input as it comes; `module` itself if it does already."""
    if not has_input_mask(module):
        return module
    shell = own_shell(module)
    for name in INPUT_BUFFERS:
        shell._buffers.pop(name, None)
    for key, hook in list(shell._forward_pre_hooks.items()):
        if hook is mask_input:
            del shell._forward_pre_hooks[key]
    return shell


def has_input_mask(module: nn.Module) -> bool:
    """True if the layer sets parts of its input to zero."""
    return mask_input in module._forward_pre_hooks.values()


def mask_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Set to zero what the layer's buffers say; a forward pre-hook."""
    x = inputs[0]
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return x.where(kept_inputs(module, x), zero), *inputs[1:]


def kept_inputs(module: nn.Module, x: Tensor) -> Tensor:
    """The elements of an input of the layer that stay as they are."""
    buffers = module._buffers
    if (mask := buffers.get(INPUT_MASK)) is not None:
        return mask
    if (threshold := buffers.get(INPUT_THRESHOLD)) is not None:
        return x.detach().abs() > threshold
    pattern = buffers[INPUT_PATTERN]
    assert pattern is not None
    keep, group = pattern.tolist()
    return largest_in_groups(x.detach().abs(), channel_dim(module), keep, group)


def channel_dim(module: nn.Module) -> int:
    """The dimension of a layer's input that holds channels, counted from the end."""
    return -1 if isinstance(module, nn.Linear) else -len(module.kernel_size) - 1  # type: ignore


def largest_in_groups(scores: Tensor, dim: int, keep: int, group: int) -> Tensor:
    """True for the `keep` largest of each `group` consecutive scores along `dim`.

    The last group may be short; it keeps as many. Of equal scores the later is dropped first.
    """
    moved = scores.movedim(dim, -1)
    size = moved.shape[-1]
    padded = nn.functional.pad(moved, (0, -size % group), value=-1.0)
    grouped = padded.reshape(*padded.shape[:-1], -1, group)
    order = grouped.argsort(dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(grouped, dtype=torch.bool).scatter(-1, order[..., :keep], True)
    return kept.flatten(-2)[..., :size].movedim(-1, dim).contiguous()
