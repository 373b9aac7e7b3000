"""Small convolutional networks that are often quantised: LeNet-5, CNV and a smaller one."""

from collections.abc import Sequence

from torch import nn

from chop.errors import ConfigError
from chop.models.info import DataInfo, images_of, register_model


def _side_after(size: int, layers: Sequence[nn.Module], name: str) -> int:
    """The height or width of a picture after convolutions and pools."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.AvgPool2d | nn.MaxPool2d):
            kernel, stride, padding = (
                each if isinstance(each, int) else each[0]
                for each in (layer.kernel_size, layer.stride, layer.padding)
            )
            size = (size + 2 * int(padding) - int(kernel)) // int(stride) + 1
    if size < 1:
        raise ConfigError(f"model {name!r} needs larger pictures than these")
    return size


def _flat(info: DataInfo, layers: Sequence[nn.Module], channels: int, name: str) -> int:
    """The numbers that are left of a picture after `layers`."""
    (_, height, width), _ = images_of(info, name)
    return channels * _side_after(height, layers, name) * _side_after(width, layers, name)


@register_model("lenet5", model_source="vision_others", task_type="vision")
def lenet5(info: DataInfo) -> nn.Module:
    """LeNet-5 with tanh and average pools: 61,706 parameters on 1×28×28 pictures."""
    (channels, _, _), outputs = images_of(info, "lenet5")
    layers = [
        nn.Conv2d(channels, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
    ]  # fmt: skip
    flat = _flat(info, layers, 16, "lenet5")
    head = (nn.Linear(flat, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, outputs))
    return nn.Sequential(*layers, *head)


@register_model("cnv", model_source="vision_others", task_type="vision")
def cnv(info: DataInfo) -> nn.Module:
    """The VGG-like network of FINN for 32×32 pictures: 1,542,848 weights beside normalisation."""
    (channels, _, _), outputs = images_of(info, "cnv")
    layers: list[nn.Module] = []
    for wide in (64, 128, 256):
        layers += [*_block(channels, wide, padding=0), *_block(wide, wide, padding=0)]
        layers += [nn.MaxPool2d(2)] if wide < 256 else []
        channels = wide
    layers += [nn.Flatten()]
    flat = _flat(info, layers, channels, "cnv")
    for inputs in (flat, 512):
        layers += [nn.Linear(inputs, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, outputs, bias=False))


@register_model("cnn-small", model_source="vision_others", task_type="vision")
def cnn_small(info: DataInfo) -> nn.Module:
    """Three convolutions with batch normalisation and a linear layer, for small pictures."""
    (channels, _, _), outputs = images_of(info, "cnn-small")
    layers: list[nn.Module] = []
    for wide in (16, 32, 32):
        layers += [*_block(channels, wide, padding=1), *([nn.MaxPool2d(2)] if layers else [])]
        channels = wide
    layers += [nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(_flat(info, layers, 32, "cnn-small"), outputs))


def _block(channels_in: int, channels_out: int, padding: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels_in, channels_out, 3, padding=padding, bias=False)
    return [conv, nn.BatchNorm2d(channels_out), nn.ReLU()]
