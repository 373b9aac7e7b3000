"""The four networks of MLPerf Tiny, layer by layer with the parameters of its reference models."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn
from torch.nn import functional as F

from chop.models.info import DataInfo, images_of, register_model, rows_of

Size = tuple[int, int, int]
BLOCKS = (
    (8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2),
    *[(128, 128, 1)] * 5, (128, 256, 2), (256, 256, 1),
)  # fmt: skip
"""Channels in, channels out and stride of each separable block of MobileNetV1 at a quarter."""


class SamePad(nn.Module):
    """Zeros around a picture so that a convolution gives its size over the stride, rounded up.

    Where their number is odd, the spare row or column is at the end.
    """

    def __init__(self, kernel: Sequence[int], stride: int, size: Sequence[int]) -> None:
        super().__init__()
        rows, columns = (
            max((-(-length // stride) - 1) * stride + side - length, 0)
            for side, length in zip(kernel, size, strict=True)
        )
        self.padding = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding)


class Residual(nn.Module):
    """Two convolutions and a way around them, which is a convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels_out)
        shortcut = nn.Conv2d(channels_in, channels_out, 1, stride)
        self.shortcut = nn.Identity() if channels_in == channels_out else shortcut
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        joined: Tensor = self.relu2(y + self.shortcut(x))
        return joined


def _normalised_layers(conv: nn.Conv2d) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU()]


def _separable(channels_in: int, channels_out: int, stride: int) -> list[nn.Module]:
    """A convolution of each channel by itself, then one of all channels at each point."""
    depthwise = nn.Conv2d(channels_in, channels_in, 3, stride, padding=1, groups=channels_in)
    return [
        *_normalised_layers(depthwise),
        *_normalised_layers(nn.Conv2d(channels_in, channels_out, 1)),
    ]


def _classifier(body: Sequence[nn.Module], channels: int, outputs: int) -> nn.Sequential:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))
    return nn.Sequential(*body, *head)


@register_model("resnet8", model_source="vision_others", task_type="vision")
def resnet8(info: DataInfo) -> nn.Module:
    """MLPerf Tiny's residual network for 32×32 pictures: 78,666 parameters with ten classes."""
    (channels, _, _), outputs = images_of(info, "resnet8")
    stem = _normalised_layers(nn.Conv2d(channels, 16, 3, padding=1))
    blocks = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    return _classifier([*stem, *blocks], 64, outputs)


@register_model("ds-cnn", model_source="vision_others", task_type="vision")
def ds_cnn(info: DataInfo) -> nn.Module:
    """MLPerf Tiny's network for spoken words, on 1×49×10 features: 24,908 parameters."""
    (channels, height, width), outputs = images_of(info, "ds-cnn")
    first = nn.Conv2d(channels, 64, (10, 4), stride=2)
    pad = SamePad((10, 4), 2, (height, width))
    blocks = [layer for _ in range(4) for layer in _separable(64, 64, 1)]
    return _classifier([pad, *_normalised_layers(first), *blocks], 64, outputs)


@register_model("mobilenet-v1-025", model_source="vision_others", task_type="vision")
def mobilenet_v1_025(info: DataInfo) -> nn.Module:
    """MLPerf Tiny's network that sees persons, on 3×96×96 pictures: 221,794 parameters."""
    (channels, _, _), outputs = images_of(info, "mobilenet-v1-025")
    first = _normalised_layers(nn.Conv2d(channels, 8, 3, stride=2, padding=1))
    blocks = [layer for block in BLOCKS for layer in _separable(*block)]
    return _classifier([*first, *blocks], 256, outputs)


@register_model("autoencoder-ad", task_type="physical")
def autoencoder_ad(info: DataInfo) -> nn.Module:
    """MLPerf Tiny's autoencoder for odd sounds, on 640 features: 269,992 parameters."""
    if info.image_size is None:
        features, outputs = rows_of(info, "autoencoder-ad")
    else:
        size, outputs = images_of(info, "autoencoder-ad")
        features = prod(size)
    sizes = (features, 128, 128, 128, 128, 8, 128, 128, 128, 128)
    layers: list[nn.Module] = [] if info.image_size is None else [nn.Flatten()]
    for inputs, wide in pairwise(sizes):
        layers += [nn.Linear(inputs, wide), nn.BatchNorm1d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
