"""Residual networks for images, small and large."""

from torch import Tensor, nn

from chop.models.info import DataInfo, images_of, register_model

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
LARGE_IMAGE = 65  # from this height on the stem shrinks the image fourfold, as on ImageNet


class BasicBlock(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(channels_in, channels_out, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu1 = nn.ReLU()
        self.conv2 = _conv(channels_out, channels_out, 3, 1)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = _shortcut(channels_in, channels_out, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        joined: Tensor = self.relu2(y + self.shortcut(x))
        return joined


class ResNet18(nn.Module):
    """A stem, four stages of two blocks, and a linear layer over the pooled image."""

    def __init__(self, image_size: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.stem = _stem(image_size)
        blocks: list[nn.Module] = []
        channels = 64
        for wide, stride in STAGES:
            blocks += [BasicBlock(channels, wide, stride), BasicBlock(wide, wide, 1)]
            channels = wide
        self.blocks = nn.Sequential(*blocks)
        self.avg_pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avg_pool(self.blocks(self.stem(x)))
        scores: Tensor = self.fc(x.flatten(1))
        return scores


def _conv(channels_in: int, channels_out: int, side: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, side, stride, padding=side // 2, bias=False)


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    if channels_in == channels_out and stride == 1:
        return nn.Identity()
    return nn.Sequential(_conv(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out))


def _stem(image_size: tuple[int, int, int]) -> nn.Sequential:
    channels, height, _ = image_size
    if height < LARGE_IMAGE:
        return nn.Sequential(_conv(channels, 64, 3, 1), nn.BatchNorm2d(64), nn.ReLU())
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(_conv(channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), pool)


@register_model("resnet18", model_source="vision_others", task_type="vision")
def resnet18(info: DataInfo) -> ResNet18:
    """The 18-layer residual network, with a stem to suit small or large images."""
    return ResNet18(*images_of(info, "resnet18"))
