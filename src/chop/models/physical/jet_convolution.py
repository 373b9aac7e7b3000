"""A small convolutional network over the features of a jet."""

from torch import Tensor, nn

from chop.models.info import DataInfo, class_rows_of, register_model


@register_model("jsc-rs1923", model_source="physical", task_type="physical")
class JSC_rs1923(nn.Module):
    """Convolutions 1-8-16, a residual block and a linear layer with a sigmoid: 3,285 parameters.

    It takes the plain 16 features and adds the channel itself. Its class scores lie between 0 and
    1, so the loss cannot fall below about 0.9 with five classes.
    """

    def __init__(self, info: DataInfo) -> None:
        super().__init__()
        features, classes = class_rows_of(info, "jsc-rs1923", "sigmoid")
        self.stem = nn.Sequential(_conv(1, 8), nn.ReLU(), _conv(8, 16), nn.ReLU())
        self.residual = nn.Sequential(_conv(16, 16), nn.ReLU(), _conv(16, 16))
        self.relu = nn.ReLU()
        self.linear = nn.Linear(16 * features, classes)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.unsqueeze(1))
        x = self.relu(self.residual(x) + x)
        scores: Tensor = self.sigmoid(self.linear(x.flatten(1)))
        return scores


def _conv(channels_in: int, channels_out: int) -> nn.Conv1d:
    return nn.Conv1d(channels_in, channels_out, kernel_size=3, padding=1)
