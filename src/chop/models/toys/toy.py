"""Toy networks for images and rows of any size."""

from math import prod

from torch import Tensor, nn

from chop.models.info import DataInfo, images_of, register_model, rows_of

FACTS = {"model_source": "toy", "task_type": "vision"}


class ToyNet(nn.Module):
    """Three linear layers over the flattened image."""

    def __init__(self, image_size: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.pixels = prod(image_size)
        self.seq_blocks = nn.Sequential(
            nn.Linear(self.pixels, 8),
            nn.ReLU(),
            nn.Linear(8, 8),
            nn.ReLU(),
            nn.Linear(8, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.seq_blocks(x.view(-1, self.pixels))
        return scores


class ToyTiny(nn.Module):
    """Two linear layers over the flattened image."""

    def __init__(self, image_size: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.pixels = prod(image_size)
        self.seq_blocks = nn.Sequential(
            nn.Linear(self.pixels, 8), nn.ReLU(), nn.Linear(8, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.seq_blocks(x.view(-1, self.pixels))
        return scores


class ToyConvNet(nn.Module):
    """Three convolutions with batch normalisation, pooled to one linear layer."""

    def __init__(self, image_size: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.block_1 = _conv_block(image_size[0], 8)
        self.block_2 = _conv_block(8, 16)
        self.block_3 = _conv_block(16, 32)
        self.avg_pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block_3(self.block_2(self.block_1(x)))
        scores: Tensor = self.fc(self.avg_pool(x).flatten(1))
        return scores


def _conv_block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class ToyMLP(nn.Module):
    """Two hidden layers of 32, for rows of numbers."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(
            nn.Linear(num_features, 32),
            nn.ReLU(),
            nn.Linear(32, 32),
            nn.ReLU(),
            nn.Linear(32, num_outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.seq_blocks(x)
        return scores


@register_model("toy_mlp", model_source="toy", task_type="physical")
def toy_mlp(info: DataInfo) -> ToyMLP:
    """Two hidden layers of 32 with ReLU, for rows of numbers: classes or regression."""
    return ToyMLP(*rows_of(info, "toy_mlp"))


@register_model("toy", **FACTS)
def toy(info: DataInfo) -> ToyNet:
    """Three linear layers over a flattened image."""
    return ToyNet(*images_of(info, "toy"))


@register_model("toy_tiny", **FACTS)
def toy_tiny(info: DataInfo) -> ToyTiny:
    """Two linear layers over a flattened image."""
    return ToyTiny(*images_of(info, "toy_tiny"))


@register_model("toy_convnet", **FACTS)
def toy_convnet(info: DataInfo) -> ToyConvNet:
    """Three convolutions with batch normalisation, pooled to one linear layer."""
    return ToyConvNet(*images_of(info, "toy_convnet"))
