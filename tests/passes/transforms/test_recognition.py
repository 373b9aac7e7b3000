"""Operations that are written out as several others become one node."""

import pytest
import torch
from torch import Tensor, nn

import chop
from chop.lowering.comparing import compare_with_integers


class WrittenOut(nn.Module):
    """A norm, GELU and an affine map of all places, as models of transformers write them."""

    def __init__(self, square: str) -> None:
        super().__init__()
        self.square = square
        self.first = nn.Linear(6, 8)
        self.scale, self.bias = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.rand(10))
        self.weight = nn.Parameter(torch.randn(8, 10) / 3)
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        squares = {"pow": x.pow(2), "mul": x * x, "square": x.square()}[self.square]
        x = self.scale * (x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        shape = (*x.shape[:-1], 10)
        x = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)
        inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
        return self.last(0.5 * x * (1.0 + torch.tanh(inner)))


@pytest.mark.parametrize("square", ["pow", "mul", "square"])
def test_what_is_written_out_becomes_one_node(square: str) -> None:
    torch.manual_seed(0)
    model, x = WrittenOut(square).eval(), torch.randn(30, 4, 6) * 3
    quantised = chop.quantize(model, width=8, calibrate=[x])
    assert quantised.info["in_float"] == {}
    kinds = set(quantised.info["quantized"].values())
    assert {"rms_norm_integer", "gelu_integer", "linear_integer"} <= kinds
    assert not kinds & {"rsqrt_integer", "tanh_integer", "addmm_integer", "mean_integer"}
    with torch.no_grad():
        wanted, found = model(x), quantised(x)
    assert (wanted.var() / (wanted - found).var()).log10() * 10 > 28
    assert compare_with_integers(quantised.model, x).different == 0


def test_other_formulas_stay_as_they_are() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            y = x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6)  # not of x itself
            return self.last(y + 0.5 * x * (1.0 + torch.tanh(x)))

    torch.manual_seed(0)
    quantised = chop.quantize(Other().eval(), width=8, calibrate=[torch.randn(30, 6)])
    assert not {"rms_norm_integer", "gelu_integer"} & set(quantised.info["quantized"].values())
