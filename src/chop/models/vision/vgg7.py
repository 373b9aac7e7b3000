"""A plain convolutional network for small images."""

from torch import Tensor, nn

from chop.models.info import DataInfo, images_of, register_model

STAGES = (128, 256, 512)


class VGG7(nn.Module):
    """Three stages of two convolutions and a pool, then two linear layers."""

    def __init__(self, image_size: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_size
        layers: list[nn.Module] = []
        for wide in STAGES:
            layers += [*_conv(channels, wide), *_conv(wide, wide), nn.MaxPool2d(2)]
            channels, height, width = wide, height // 2, width // 2
        self.feature_layers = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * height * width, 1024), nn.ReLU(), nn.Linear(1024, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.feature_layers(x).flatten(1))
        return scores


def _conv(channels_in: int, channels_out: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(channels_out), nn.ReLU()]


@register_model("vgg7", model_source="vision_others", task_type="vision")
def vgg7(info: DataInfo) -> VGG7:
    """Six convolutions in three stages and two linear layers, for small images."""
    return VGG7(*images_of(info, "vgg7"))
