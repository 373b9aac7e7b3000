"""Make the files of this folder: a small network, by the static quantisation of onnxruntime.

python tests/export/static/make.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime import quantization
from torch import Tensor, nn

HERE = Path(__file__).parent


class Residual(nn.Module):
    """A sum of two results and a join of two, which have different scales in a file."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.one(x))
        x = torch.cat([torch.relu(x + self.two(x)), 3 * x], 1)
        return self.last(x.mean((2, 3)))


class Rows(quantization.CalibrationDataReader):  # type: ignore[misc]
    """One batch."""

    def __init__(self, x: Tensor) -> None:
        self.left = [{"x": x.numpy()}]

    def get_next(self) -> Any:
        """Return the next batch."""
        return self.left.pop() if self.left else None


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 2, 6, 6)
    kinds = {"signed": quantization.QuantType.QInt8, "unsigned": quantization.QuantType.QUInt8}
    with TemporaryDirectory() as folder:
        given = f"{folder}/float.onnx"
        torch.onnx.export(Residual().eval(), (x[:2],), given, input_names=["x"], dynamo=False,
                          dynamic_axes={"x": {0: "rows"}}, opset_version=17)  # fmt: skip
        for name, kind in kinds.items():
            file = HERE / f"{name}.onnx"
            by_channel = name == "signed"
            quantization.quantize_static(
                given, file, Rows(x[:20]), activation_type=kind, per_channel=by_channel
            )
            (y,) = onnxruntime.InferenceSession(file).run(None, {"x": x.numpy()})
            np.savez(HERE / f"{name}.npz", x=x.numpy(), y=y)


if __name__ == "__main__":
    main()
