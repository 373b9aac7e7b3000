"""Small models of every kind, with inputs, for tests that go through all of them."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class JSCTiny(nn.Module):
    """The network of the labs."""

    def __init__(self) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 5), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.seq_blocks(x)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("offset", torch.randn(4))


class Scale(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.offset


class Functional(Base):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        y = F.linear(input, self.layer.weight, self.layer.bias)
        y = torch.cat([F.relu(y, inplace=True), input], dim=1)
        return F.layer_norm(y, (8,))


class Methods(Base):
    def forward(self, x: Tensor) -> Tensor:
        n = x.size(0)
        y = x.view(n, 2, 2).transpose(1, 2).reshape(n, -1).mean(1, keepdim=True)
        return (x.add(y) + 2).permute(1, 0).contiguous().unsqueeze(0)


class Nested(Base):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([JSCTiny(), nn.Sequential(nn.Linear(5, 4), Scale())])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class TwoInputs(Base):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return a @ b.t(), {"difference": a - b, "other": torch.matmul(b, a.t())}


class Parts(Base):
    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return first * second + torch.split(x, 2, 1)[0] + x[:, :2] / 3 + math.sqrt(4)


class InPlace(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        flat = y.view(-1)
        y.add_(1)
        z = torch.relu(y)
        y.mul_(2)
        return z + y + flat.view(-1, 4) + torch.zeros(4)


class TwoMatmuls(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(torch.matmul(x, x.t()), x)


class Attention(Base):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attend(x, x, x, need_weights=False)
        return out


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, image: Tensor) -> Tensor:
        return torch.flatten(self.pool(F.gelu(self.norm(self.conv(image)))), 1)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.table(ids).softmax(-1)


X = torch.randn(2, 4)
ZOO: Mapping[str, tuple[nn.Module, dict[str, Tensor]]] = {
    "jsc_tiny": (JSCTiny(), {"x": torch.randn(8, 16)}),
    "sequential": (nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Softmax(-1)), {"input": X}),
    "scale": (Scale(), {"x": X}),
    "functional": (Functional(), {"input": X}),
    "methods": (Methods(), {"x": X}),
    "nested": (Nested(), {"x": torch.randn(3, 16)}),
    "two_inputs": (TwoInputs(), {"a": X, "b": X + 1}),
    "parts": (Parts(), {"x": X}),
    "in_place": (InPlace(), {"x": X}),
    "two_matmuls": (TwoMatmuls(), {"x": X}),
    "attention": (Attention(), {"x": torch.randn(2, 3, 4)}),
    "images": (Images(), {"image": torch.randn(2, 3, 8, 8)}),
    "tokens": (Tokens(), {"ids": torch.arange(6).view(2, 3)}),
}
