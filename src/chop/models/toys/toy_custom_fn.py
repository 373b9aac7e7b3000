"""A toy network made of functions and methods instead of layers."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.models.info import DataInfo, images_of, register_model

WIDTH = 16


class ToyCustomFnNet(nn.Module):
    """A network that uses many kinds of operation, for testing passes.

    It flattens, adds, multiplies, subtracts, views, convolves in two and one dimensions, pools,
    and multiplies matrices with a constant and with each other.

    Args:
        batch_size: has no effect. The original's network works for batches of one size, which it
            is given; this one takes batches of any size.
    """

    ones: Tensor

    def __init__(
        self,
        image_size: tuple[int, ...],
        num_classes: int,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(prod(image_size), WIDTH)
        self.fc2 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc3 = nn.Linear(WIDTH, num_classes)
        self.conv2d_weight = nn.Parameter(0.3 * torch.randn(4, 4, 3, 3))
        self.conv1d_weight = nn.Parameter(0.3 * torch.randn(4, 4, 3))
        self.register_buffer("ones", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(torch.flatten(x, start_dim=1)))
        y = F.relu(torch.add(self.fc2(x), 0.5) * 2.0 - 1.0)
        y = F.conv2d(y.view(-1, 4, 4, 4), self.conv2d_weight, padding=1)
        y = F.adaptive_avg_pool2d(y, (1, 4)).view(-1, 4, 4)
        y = torch.matmul(F.conv1d(y, self.conv1d_weight, padding=1), self.ones)
        x = torch.bmm(y, x.view(-1, 4, 4)).view(-1, WIDTH)
        scores: Tensor = self.fc3(torch.sub(x, 0.1))
        return scores


@register_model("toy_custom_fn", model_source="toy", task_type="vision")
def toy_custom_fn(info: DataInfo) -> ToyCustomFnNet:
    """Functions and methods of many kinds in place of layers, for testing passes."""
    return ToyCustomFnNet(*images_of(info, "toy_custom_fn"))
