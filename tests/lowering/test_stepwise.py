"""Softmax, normalisation and attention by tables: how near they are, and that integers agree."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop
from chop.errors import ConfigError
from chop.lowering import lower
from chop.lowering.comparing import compare_with_integers
from chop.numerics import Integer
from chop.ops.composed import rounded_attention
from chop.ops.stepwise import TABLE, by_tables, layer_norm, rms_norm, softmax_by_tables
from chop.verbs.quantize.module import Quantized

BITS = 12
DATA = Integer(width=8, frac_width=4)
TABLES = Integer(width=BITS, frac_width=BITS, signed=False)
ROUNDERS = {"data_in": DATA, TABLE: TABLES}


def codes(rows: int, size: int, spread: float, offset: float = 0.0) -> Tensor:
    """Return rows of 8-bit numbers."""
    generator = torch.Generator().manual_seed(0)
    return DATA(torch.randn(rows, size, generator=generator) * spread + offset)


@pytest.mark.parametrize("size", [1, 2, 5, 64, 300])
@pytest.mark.parametrize("spread", [0.05, 1.0, 8.0])
def test_softmax_is_near_in_the_whole_range(size: int, spread: float) -> None:
    x = codes(50, size, spread)
    found = softmax_by_tables(x, -1, BITS)
    assert (found - x.double().softmax(-1)).abs().max() < 2**-9


@pytest.mark.parametrize("scale", [1.0, 0.125, 32**-0.5, 3.0])
def test_a_scale_is_part_of_the_table(scale: float) -> None:
    x = codes(50, 20, 3.0) / scale
    found = softmax_by_tables(x, -1, BITS, scale)
    assert (found - (x.double() * scale).softmax(-1)).abs().max() < 2**-8


def test_hidden_places_get_nothing_and_rows_that_see_nothing_are_zero() -> None:
    x, mask = codes(4, 6, 8.0), torch.ones(4, 6, dtype=torch.bool)
    mask[1, 3:], mask[2] = False, False
    found = softmax_by_tables(x, -1, BITS, mask=mask)
    assert not found[~mask].any()
    assert torch.allclose(found[[0, 1, 3]].sum(-1), torch.ones(3).double(), atol=2**-8)
    added = torch.zeros(4, 6).masked_fill(~mask, -torch.inf)
    assert torch.equal(softmax_by_tables(x, -1, BITS, mask=added), found)


@pytest.mark.parametrize("size", [7, 64, 768])
@pytest.mark.parametrize(("spread", "offset"), [(0.25, 0.5), (1.0, 0.0), (4.0, -2.0), (8.0, 0.0)])
def test_normalisation_is_near_in_the_whole_range(size: int, spread: float, offset: float) -> None:
    x = codes(50, size, spread, offset)
    found = layer_norm(x, (size,), rounders=ROUNDERS) - F.layer_norm(x, (size,))
    assert found.abs().max() < 2**-5
    assert found.pow(2).mean().sqrt() < 2**-6
    found = rms_norm(x, (size,), eps=1e-6, rounders=ROUNDERS) - F.rms_norm(x, (size,), eps=1e-6)
    assert found.abs().max() < 2**-6


def test_every_part_of_a_function_is_as_near_as_the_others() -> None:
    x = torch.logspace(-5, 11, 4001, base=2, dtype=torch.float64)
    found = by_tables(x, torch.rsqrt, -4, 7, 8, 24)
    wanted = x.clamp(2**-4, 2**10).rsqrt()
    assert ((found - wanted) / wanted).abs().max() < 2**-9


class Everything(nn.Module):
    """Each operation that has tables inside, with masks that vary and that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 12, padding_idx=0)
        self.places = nn.Embedding(4, 12)
        self.norm = nn.LayerNorm(12)
        self.mix = nn.Linear(12, 36)
        self.rms = nn.RMSNorm(12)
        self.groups = nn.GroupNorm(2, 4)
        self.soft = nn.Softmax(1)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = (x != 0)[:, None, None, :]
        vectors = self.norm(self.words(x) + self.places(torch.arange(x.shape[1])))
        q, k, v = self.mix(vectors).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        mixed = F.scaled_dot_product_attention(mixed, k, v, is_causal=True)
        vectors = self.rms(vectors + mixed.transpose(1, 2).flatten(2))
        return self.out(self.groups(vectors) * self.soft(vectors)).mean(1)


@pytest.fixture(scope="module")
def everything() -> tuple[Quantized, Tensor]:
    torch.manual_seed(0)
    rows = torch.randint(1, 9, (32, 4))
    rows[::3, 2:] = 0
    return chop.quantize(Everything().eval(), width=8, calibrate=[rows]), rows


def test_all_of_a_transformer_is_in_integers(everything: tuple[Quantized, Tensor]) -> None:
    quantised, rows = everything
    assert quantised.info["in_float"] == {}
    agreement = compare_with_integers(quantised.model, rows)
    assert agreement.promised
    assert agreement.different == 0
    kept = {step.node for step in lower(quantised.graph).steps if step.in_double}
    assert kept == {"norm", "rms", "groups", "soft", "scaled_dot_product_attention",
                    "scaled_dot_product_attention_1"}  # fmt: skip


@pytest.mark.parametrize("to", ["c", "onnx", "integer"])
def test_files_of_a_transformer_are_equal(
    everything: tuple[Quantized, Tensor], tmp_path: Path, to: str
) -> None:
    quantised, rows = everything
    done = chop.export(quantised, to, tmp_path / to, inputs={"x": rows}, rows=100)
    assert done.manifest["verified"]["compared"] == {"graph": 100, "file": 100, "engine": 100}


def test_without_tables_nothing_changes() -> None:
    x = codes(3, 12, 1.0)
    only = {"data_in": DATA}
    assert torch.equal(layer_norm(x, (12,), rounders=only), F.layer_norm(x, (12,)))
    q = codes(2 * 4, 6, 1.0).reshape(2, 1, 4, 6)
    near = rounded_attention(q, q, q, is_causal=True, rounders={"scores": lambda s: s})
    assert torch.allclose(near, F.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-6)


def test_tables_are_integers() -> None:
    fmt = chop.numerics.FORMATS["minifloat_ieee"](width=8, exponent_width=4)
    with pytest.raises(ConfigError, match="take 'integer'"):
        layer_norm(codes(3, 12, 1.0), (12,), rounders={"data_in": DATA, TABLE: fmt})
    with pytest.raises(ConfigError, match="data_in needs the format 'integer'"):
        layer_norm(codes(3, 12, 1.0), (12,), rounders={TABLE: TABLES})
