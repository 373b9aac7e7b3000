"""Networks with operations that have no integers of their own, which are written out as others."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rows = Callable[[int], dict[str, Tensor]]


def rows_of(*shape: int) -> Rows:
    return lambda rows: {"": torch.randn(rows, *shape)}


class Function(nn.Module):
    """Layers, and how they are called."""

    def __init__(self, call: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def mixer() -> nn.Module:
    """MLP-Mixer: linear maps of places, then of channels."""

    def call(own: Any, x: Tensor) -> Tensor:
        x = own.patch(x).flatten(2).transpose(1, 2)
        x = x + own.places(own.one(x).transpose(1, 2)).transpose(1, 2)
        x = x + own.channels(own.two(x))
        found: Tensor = own.last(x.mean(1))
        return found

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    return Function(
        call, patch=nn.Conv2d(3, 16, 4, 4), one=nn.LayerNorm(16), two=nn.LayerNorm(16),
        places=wide(), channels=wide(), last=nn.Linear(16, 10),
    )  # fmt: skip


class CausalWords(nn.Module):
    """A decoder as it is written by hand: products, a mask that is filled in, a softmax."""

    def __init__(self, words: int, length: int, size: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(length, size)
        self.norm, self.three = nn.LayerNorm(size), nn.Linear(size, 3 * size)
        self.last = nn.Linear(size, words)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx) + self.places(torch.arange(idx.shape[1], device=idx.device))
        q, k, v = self.three(self.norm(x)).split(x.shape[2], 2)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(x.shape[2])
        scores = scores.masked_fill(self.mask == 0, float("-inf"))
        return self.last(x + F.softmax(scores, -1) @ v)


def linear_attention() -> nn.Module:
    def call(own: Any, x: Tensor) -> Tensor:
        q, k = F.elu(own.q(x)) + 1, F.elu(own.k(x)) + 1
        sums = q @ k.sum(1, keepdim=True).transpose(1, 2)
        found: Tensor = own.last(q @ (k.transpose(1, 2) @ own.v(x)) / (sums + 1e-3))
        return found

    return Function(call, **{name: nn.Linear(16, 16) for name in "qkv"}, last=nn.Linear(16, 4))


def pyramid() -> nn.Module:
    """Maps of two sizes, the smaller made larger: feature pyramids and segmentation."""

    def call(own: Any, x: Tensor) -> Tensor:
        x = F.relu(own.first(x))
        small = F.relu(own.second(x))
        x = own.side(x) + F.interpolate(small, size=x.shape[-2:], mode="nearest")
        return F.interpolate(own.last(x), scale_factor=2, mode="bilinear")

    return Function(
        call, first=nn.Conv2d(3, 8, 3, 2, 1), second=nn.Conv2d(8, 8, 3, 2, 1),
        side=nn.Conv2d(8, 8, 1), last=nn.Conv2d(8, 3, 3, padding=1),
    )  # fmt: skip


def style() -> nn.Module:
    """A network that makes pictures: mirrored borders, instance normalisation, enlargement."""
    return nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2, 1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(8, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def attentive() -> nn.Module:
    """CBAM: channels weighted by their means and largest, then places."""

    def call(own: Any, x: Tensor) -> Tensor:
        x = F.hardswish(own.first(x))
        gate = torch.sigmoid(own.gate(x.mean((2, 3))) + own.gate(x.amax((2, 3))))
        x = x * gate[:, :, None, None]
        seen = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        found: Tensor = own.last((x * torch.sigmoid(own.place(seen))).mean((2, 3)))
        return F.log_softmax(found, 1)

    gate = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
    return Function(
        call, first=nn.Conv2d(3, 8, 3, padding=1), gate=gate,
        place=nn.Conv2d(2, 1, 7, padding=3), last=nn.Linear(8, 10),
    )  # fmt: skip


def speaker() -> nn.Module:
    """Mean and deviation over time, and an embedding of length one."""

    def call(own: Any, x: Tensor) -> Tensor:
        x = F.leaky_relu(own.first(x))
        return F.normalize(own.last(torch.cat([x.mean(2), x.std(2)], 1)), dim=1)

    return Function(call, first=nn.Conv1d(6, 12, 3, dilation=2), last=nn.Linear(24, 8))


def gated() -> nn.Module:
    """Gated linear units and a highway."""

    def call(own: Any, x: Tensor) -> Tensor:
        x = own.norm(F.glu(own.wide(x)) + x)
        gate = torch.sigmoid(own.gate(x))
        found: Tensor = own.last(gate * F.relu(own.way(x)) + (1 - gate) * x)
        return found

    return Function(
        call, wide=nn.Linear(16, 32), norm=nn.RMSNorm(16), gate=nn.Linear(16, 16),
        way=nn.Linear(16, 16), last=nn.Linear(16, 4),
    )  # fmt: skip


def written_networks(words: int, length: int) -> Iterator[tuple[str, Any, Rows, int]]:
    """Yield the names of networks, what makes them, and their rows."""
    images = rows_of(3, 16, 16)
    yield "mlp-mixer", mixer, images, 500
    yield "pyramid", pyramid, images, 500
    yield "style", style, images, 500
    yield "cbam", attentive, images, 500
    yield "speaker", speaker, rows_of(6, 20), 500
    yield "gated", gated, rows_of(16), 500
    yield "linear-attention", linear_attention, rows_of(12, 16), 500
    ids: Rows = lambda rows: {"idx": torch.randint(0, words, (rows, length))}  # noqa: E731
    yield "decoder-by-hand", partial(CausalWords, words, length), ids, 500
