"""Tensors of torchao and ours, where torchao is installed: the same numbers both ways."""

import pytest
import torch

from chop.numerics import MXFP4, MXFP6, MXFP8, NVFP4, Encoded
from chop.numerics.block import BlockFormat

mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")

ELEMENTS = [
    (MXFP8(), torch.float8_e4m3fn),
    (MXFP8(element="e5m2"), torch.float8_e5m2),
    (MXFP6(), "fp6_e2m3"),
    (MXFP6(element="e3m2"), "fp6_e3m2"),
    (MXFP4(), getattr(torch, "float4_e2m1fn_x2", None)),
]


def weights(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(24, 128, generator=generator) * torch.logspace(-3, 3, 24)[:, None]


def halves(packed: torch.Tensor) -> torch.Tensor:
    """Two codes of a byte, the low one first."""
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


@pytest.mark.parametrize(("fmt", "element"), ELEMENTS, ids=str)
def test_microscaling(fmt: BlockFormat, element: object) -> None:
    x = weights(1)
    theirs = mx.MXTensor.to_mx(x, element)
    assert torch.equal(theirs.dequantize(torch.float32), fmt.round_to(x))
    codes = theirs.qdata.view(torch.uint8)
    codes = halves(codes) if fmt.element_bits == 4 else codes
    encoded = fmt.encode(x)
    assert torch.equal(codes, encoded.codes)
    assert encoded.shared is not None
    assert torch.equal(theirs.scale.view(torch.uint8), encoded.shared)
    back = Encoded(codes, theirs.scale.view(torch.uint8), torch.float32)
    assert torch.equal(fmt.decode(back), theirs.dequantize(torch.float32))


def test_nvfp4() -> None:
    fmt, x = NVFP4(), weights(2)
    encoded = fmt.encode(x)
    assert encoded.shared is not None
    packed = encoded.codes[:, ::2] | encoded.codes[:, 1::2] << 4
    ours = nv.NVFP4Tensor(packed, encoded.shared.view(torch.float8_e4m3fn), 16, torch.float32,
                          per_tensor_scale=encoded.overall)  # fmt: skip
    assert torch.equal(ours.dequantize(torch.float32), fmt.round_to(x))
    theirs = nv.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=encoded.overall)
    back = Encoded(
        halves(theirs.qdata), theirs.scale.view(torch.uint8), torch.float32, theirs.per_tensor_scale
    )
    assert torch.equal(fmt.decode(back), theirs.dequantize(torch.float32))
    # They multiply by a rounded reciprocal, so a number at a tie may get the code beside it.
    assert float((halves(theirs.qdata) != encoded.codes).float().mean()) < 1e-3
    assert float((theirs.scale.view(torch.uint8) != encoded.shared).float().mean()) < 1e-2
