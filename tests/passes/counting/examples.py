"""Models that are counted by several tests."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HandWritten(nn.Module):
    """Attention as products and a softmax."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(4))
        return torch.softmax(scores, dim=-1) @ value


class Fused(nn.Module):
    """The same in one call."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


class Block(nn.Module):
    """A transformer block with positions, whose attention is fused or written by hand."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.positions = nn.Parameter(torch.zeros(6, 8))
        self.norm = nn.LayerNorm(8)
        self.project = nn.Linear(8, 24)
        self.attention = attention
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions
        shape = (x.size(0), x.size(1), 2, 4)
        parts = self.project(self.norm(x)).chunk(3, -1)
        query, key, value = (parts[i].reshape(shape).transpose(1, 2) for i in range(3))
        mixed = self.attention(query, key, value).transpose(1, 2).flatten(2)
        return x + self.out(mixed)


class Residual(nn.Module):
    """Convolutions with groups, normalisation, a skip and a pool."""

    def __init__(self, groups: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = x + F.max_pool2d(self.deep(x), 3, stride=1, padding=1)
        return self.head(self.pool(x).view(x.size(0), -1))


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm1d(16), nn.Linear(16, 64), nn.ReLU(inplace=True), nn.Linear(64, 5)
    )
