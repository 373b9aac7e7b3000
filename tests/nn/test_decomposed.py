"""Attention and transformers in terms of their products are what torch computes."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph, MaseTracer
from chop.nn.decomposed import DecomposedAttention, decompose
from chop.nn.function import quantized_function
from chop.ops.composed import rounded_attention
from chop.ops.table import OPS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

N, L, S, E, H = 2, 5, 6, 8, 2
CAUSAL = torch.ones(L, S).triu(2).bool()
PADDING = torch.tensor([[False] * S, [False] * 4 + [True] * 2])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "separate": {"kdim": 3, "vdim": 7, "batch_first": True},
    "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
    "no bias": {"bias": False, "batch_first": True},
}
MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "truth": {"attn_mask": CAUSAL},
    "numbers": {"attn_mask": torch.randn(L, S)},
    "for each head": {"attn_mask": torch.randn(N * H, L, S)},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
}


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_torchs(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, **KINDS[kind]).eval()
    nn.init.normal_(layer.in_proj_bias) if layer.in_proj_bias is not None else None
    twin = decompose(layer)
    assert type(twin) is DecomposedAttention
    assert type(layer) is nn.MultiheadAttention
    widths = (E, layer.kdim, layer.vdim)
    sizes = zip((L, S, S), widths, strict=True)
    batch = [torch.randn(N, size, width) for size, width in sizes]
    given = batch if layer.batch_first else [x.transpose(0, 1) for x in batch]
    for masks in MASKS.values():
        for how in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            wanted = layer(*given, **masks, **how)
            torch.testing.assert_close(twin(*given, **masks, **how), wanted)
    if layer._qkv_same_embed_dim:
        own = given[0]
        torch.testing.assert_close(twin(own, own, own), layer(own, own, own))
    single = [x[0] for x in batch]
    one = {"attn_mask": torch.randn(H, L, S), "key_padding_mask": PADDING[1]}
    torch.testing.assert_close(twin(*single, **one), layer(*single, **one))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched")
def test_transformers_are_torchs() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(N, L, E), torch.randn(N, S, E)
    causal = nn.Transformer.generate_square_subsequent_mask(S)
    for norm_first in (False, True):
        model = nn.Transformer(E, H, 1, 1, 16, norm_first=norm_first, batch_first=True).eval()
        twin = decompose(model)
        assert twin is not model
        assert type(model.encoder.layers[0].self_attn) is nn.MultiheadAttention
        torch.testing.assert_close(twin(x, y), model(x, y))
        masks = {"tgt_mask": causal, "src_key_padding_mask": PADDING[:, :L]}
        torch.testing.assert_close(twin(x, y, **masks), model(x, y, **masks))
        assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(E, H, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attend = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.encoder(x, src_key_padding_mask=padding)
        return self.attend(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def graph_of(model: nn.Module) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model, example_inputs=INPUTS))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": INPUTS})
    return graph


INPUTS = {"x": torch.randn(N, S, E), "padding": PADDING}
CONFIG = {
    "name": "integer", "data_in_width": 12, "data_in_frac_width": 6, "weight_width": 10,
    "weight_frac_width": 7, "scores_width": 8, "scores_frac_width": 7,
}  # fmt: skip


def test_a_graph_has_every_product_as_a_node() -> None:
    model = Net().eval()
    graph = graph_of(model)
    ops = [n.meta["mase"]["common"]["mase_op"] for n in graph.nodes]
    assert ops.count("linear") == 3 * (1 + 1) + 2 * 2  # three projections of one input are one
    assert ops.count("scaled_dot_product_attention") == 3
    torch.testing.assert_close(graph.model(**INPUTS), model(**INPUTS))
    rule = {"by": "type", "default": {"config": CONFIG, "only": ["linear"]}}
    quantize_transform_pass(graph, rule)
    names = dict(graph.model.named_parameters())
    assert names.keys() == dict(model.named_parameters()).keys()


def test_dropout_of_the_weights_follows_the_mode() -> None:
    graph = graph_of(Net(dropout=0.5).train())
    graph.model.train()
    assert not torch.equal(graph.model(**INPUTS), graph.model(**INPUTS))
    graph.model.eval()
    assert torch.equal(graph.model(**INPUTS), graph.model(**INPUTS))


def test_a_class_that_is_to_stay_whole_does() -> None:
    tracer = MaseTracer(custom_leaf_modules=(nn.MultiheadAttention, nn.TransformerEncoder))
    graph = MaseGraph(Net(), tracer=tracer)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["encoder", "attend"]


class Own(nn.MultiheadAttention):
    """A custom forward is the user's business."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query + key + value


def test_custom_forwards_stay() -> None:
    model = nn.Sequential(Own(E, H))
    assert decompose(model) is model
    plain = nn.Sequential(nn.Linear(2, 2))
    assert decompose(plain) is plain


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.randn(3, 5)},
        {"attn_mask": torch.tensor([[True] * 5, [False] * 5, [True] * 2 + [False] * 3])},
    ],
    ids=["plain", "causal", "scale", "added mask", "mask of booleans"],
)
def test_attention_with_rounded_scores(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    exact = rounded_attention(
        query, key, value, **how, enable_gqa=True, rounders={"scores": lambda scores: scores}
    )
    wanted = F.scaled_dot_product_attention(query, key, value, **how, enable_gqa=True)
    torch.testing.assert_close(exact, wanted)
    seen: list[Tensor] = []

    def rounder(scores: Tensor) -> Tensor:
        seen.append(copy.deepcopy(scores))
        return torch.ones_like(scores)

    ones = rounded_attention(
        query, key, value, **how, enable_gqa=True, rounders={"scores": rounder}
    )
    torch.testing.assert_close(ones[0, 0, 0], value[0, 0].sum(0))
    assert seen[0].shape == (2, 4, 3, 5)


def test_scores_are_rounded_only_where_they_are_mentioned() -> None:
    op = OPS["scaled_dot_product_attention"]
    x = torch.randn(1, 2, 4, 8)
    without = {k: v for k, v in CONFIG.items() if not k.startswith("scores")}
    function = quantized_function(op, "integer")
    plain = function(x, x, x, config=without)
    rounded = (x * 64).round() / 64
    assert torch.equal(plain, F.scaled_dot_product_attention(rounded, rounded, rounded))
    coarse = {**CONFIG, "scores_width": 3, "scores_frac_width": 2}
    assert not torch.allclose(function(x, x, x, config=coarse), plain, atol=1e-3)
