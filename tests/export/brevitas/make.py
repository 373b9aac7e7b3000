"""Writes the files beside it: pip install brevitas==0.13.4 onnxoptimizer, then run it here.

Brevitas is no dependency of the tests: they read what it wrote, and compare with what it computed.
"""

from pathlib import Path

import brevitas.nn as qnn
import numpy as np
import torch
from brevitas.export import export_qonnx
from brevitas.quant import (
    Int8ActPerTensorFixedPoint,
    Int8WeightPerChannelFloat,
    Int8WeightPerTensorFixedPoint,
    Uint8ActPerTensorFixedPoint,
)
from torch import nn

HERE = Path(__file__).parent


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    channels = {"weight_quant": Int8WeightPerChannelFloat}
    fixed = {"weight_quant": Int8WeightPerTensorFixedPoint}
    return {
        "mlp": (
            nn.Sequential(
                qnn.QuantIdentity(bit_width=6),
                qnn.QuantLinear(16, 8, bias=True, weight_bit_width=4),
                qnn.QuantReLU(bit_width=5),
                qnn.QuantLinear(8, 5, bias=True, weight_bit_width=3, **channels),
            ),
            (16,),
        ),
        "cnn": (
            nn.Sequential(
                qnn.QuantIdentity(bit_width=8),
                qnn.QuantConv2d(3, 4, 3, padding=1, bias=False, weight_bit_width=4),
                nn.BatchNorm2d(4),
                qnn.QuantReLU(bit_width=4),
                nn.MaxPool2d(2),
                qnn.QuantConv2d(4, 6, 3, stride=2, bias=True, weight_bit_width=4, **channels),
                qnn.QuantReLU(bit_width=4),
                nn.Flatten(),
                qnn.QuantLinear(24, 5, bias=True, weight_bit_width=8),
            ),
            (3, 12, 12),
        ),
        "fixed": (
            nn.Sequential(
                qnn.QuantIdentity(act_quant=Int8ActPerTensorFixedPoint, bit_width=6),
                qnn.QuantLinear(16, 8, bias=True, weight_bit_width=4, **fixed),
                qnn.QuantReLU(act_quant=Uint8ActPerTensorFixedPoint, bit_width=5),
                qnn.QuantLinear(8, 5, bias=False, weight_bit_width=3, **fixed),
            ),
            (16,),
        ),
    }


def main() -> None:
    torch.manual_seed(0)
    for name, (model, shape) in networks().items():
        model.train()
        for _ in range(3):  # scales and statistics
            model(torch.randn(64, *shape))
        model.eval()
        x = torch.randn(32, *shape)
        with torch.no_grad():
            y = model(x)
        export_qonnx(model, args=x[:1], export_path=str(HERE / f"{name}.onnx"), dynamo=False)
        np.savez_compressed(HERE / f"{name}.npz", x=x.numpy(), y=y.numpy())


if __name__ == "__main__":
    main()
