"""Attention and transformers of torch in terms of their products, which can be traced and rounded.

torch's own layers choose between a fused kernel and several ways in Python by looking at values and
gradients. These share the parameters of the layer they take the place of, and compute the same.
"""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.nn.quantized.generic import own_shell
from chop.ops.composed import attention_mask

fx.wrap("attention_mask")


class DecomposedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` as projections, scores, softmax and weighted sum.

    Dimensions are counted from the end, so that it takes a batch or a single sequence. The dropout
    of the weights is a layer, so that it follows train and eval in a graph too.
    """

    weights_dropout: nn.Dropout

    def forward(  # noqa: PLR0913, PLR0917  # as torch has them
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The results of attention, and its weights if they are asked for."""
        if query is key and key is value and self._qkv_same_embed_dim:  # one product, not three
            whole = F.linear(self.first(query), self.in_proj_weight, self.in_proj_bias)
            parts = whole.chunk(3, -1)
            q, k, v = (self.split(parts[place]) for place in range(3))
        else:
            q, k, v = (self.project(x, place) for place, x in enumerate((query, key, value)))
        k, v = self.with_extra(k, self.bias_k), self.with_extra(v, self.bias_v)
        mask = self.mask(attn_mask, key_padding_mask, q)
        weights = None
        if need_weights or self.dropout:
            scores = torch.matmul(q, k.transpose(-2, -1)) * self.head_dim**-0.5
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = self.weights_dropout(weights)
            heads = torch.matmul(weights, v)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask)
        output = self.out_proj(heads.transpose(-3, -2).flatten(-2))
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = weights.mean(-3)  # type: ignore[union-attr]
        return self.first(output), weights

    def first(self, x: Tensor) -> Tensor:
        """The batch first, if there is one."""
        return x if self.batch_first else x.transpose(0, -2)

    def project(self, x: Tensor, place: int) -> Tensor:
        """Queries, keys or values (0, 1, 2) of each head."""
        rows = slice(place * self.embed_dim, (place + 1) * self.embed_dim)
        if self._qkv_same_embed_dim:
            weight = self.in_proj_weight[rows]
        else:
            weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[place]
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        return self.split(F.linear(self.first(x), weight, bias))

    def split(self, projected: Tensor) -> Tensor:
        """Features divided among the heads: (..., heads, places, features)."""
        parts: Tensor = projected.unflatten(-1, (self.num_heads, self.head_dim))  # type: ignore[no-untyped-call]
        return parts.transpose(-3, -2)

    def with_extra(self, heads: Tensor, bias: Tensor | None) -> Tensor:
        """Keys or values with the learned one and the one of zeros, if the layer has them."""
        extra = []
        if bias is not None:
            own = bias.view(self.num_heads, 1, self.head_dim)
            extra.append(torch.zeros_like(heads[..., :1, :]) + own)
        if self.add_zero_attn:
            extra.append(torch.zeros_like(heads[..., :1, :]))
        return torch.cat([heads, *extra], -2) if extra else heads

    def mask(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, like: Tensor
    ) -> Tensor | None:
        """Both masks as one to be added; extra keys are seen by all."""
        if attn_mask is None and key_padding_mask is None:
            return None
        found = attention_mask(attn_mask, key_padding_mask, self.num_heads, like)
        extra = (self.bias_k is not None) + self.add_zero_attn
        return F.pad(found, (0, extra)) if extra else found  # type: ignore[arg-type]


class DecomposedEncoderLayer(nn.TransformerEncoderLayer):
    """`nn.TransformerEncoderLayer` without its fused kernel."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attention to itself and two linear layers, each added to its input."""
        masks = (src_mask, src_key_padding_mask)
        if self.norm_first:
            src = src + self._sa_block(self.norm1(src), *masks)
            return src + self._ff_block(self.norm2(src))
        src = self.norm1(src + self._sa_block(src, *masks))
        found: Tensor = self.norm2(src + self._ff_block(src))
        return found


class DecomposedEncoder(nn.TransformerEncoder):
    """`nn.TransformerEncoder` without nested tensors."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """One layer after the other."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


class DecomposedDecoderLayer(nn.TransformerDecoderLayer):
    """`nn.TransformerDecoderLayer`, whose own forward asks for nothing but its parts."""


class DecomposedDecoder(nn.TransformerDecoder):
    """`nn.TransformerDecoder` that does not look into its mask."""

    def forward(  # noqa: PLR0913, PLR0917  # as torch has them
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """One layer after the other."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
            )
        return tgt if self.norm is None else self.norm(tgt)


class DecomposedTransformer(nn.Transformer):
    """`nn.Transformer` without checks of shapes."""

    def forward(  # noqa: PLR0913, PLR0917  # as torch has them
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The encoder, and the decoder on what it gives."""
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        found: Tensor = self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        )
        return found


FORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: DecomposedAttention,
    nn.TransformerEncoderLayer: DecomposedEncoderLayer,
    nn.TransformerEncoder: DecomposedEncoder,
    nn.TransformerDecoderLayer: DecomposedDecoderLayer,
    nn.TransformerDecoder: DecomposedDecoder,
    nn.Transformer: DecomposedTransformer,
}


def decompose(model: nn.Module, whole: Collection[type[nn.Module]] = ()) -> nn.Module:
    """A model in which attention and transformers of torch have their decomposed forms.

    `model` itself is not changed. If it has none of them, it is returned; else a model with its
    own containers on the way to them, which shares all else.

    Args:
        whole: classes that are to stay as they are.
    """
    made: dict[nn.Module, nn.Module] = {}
    return _with_forms(model, tuple(whole), made)


def _with_forms(
    module: nn.Module, whole: tuple[type[nn.Module], ...], made: dict[nn.Module, nn.Module]
) -> nn.Module:
    if module in made:
        return made[module]
    made[module] = module
    form = None if isinstance(module, whole) else FORMS.get(type(module))
    children: dict[str, Any] = {
        name: child if child is None else _with_forms(child, whole, made)
        for name, child in module._modules.items()
    }
    same = all(children[name] is child for name, child in module._modules.items())
    if form is not None or not same:
        shell = made[module] = own_shell(module, form)
        shell._modules.update(children)
        if isinstance(shell, DecomposedAttention):
            shell.weights_dropout = nn.Dropout(shell.dropout).train(shell.training)
            # torch marks this layer for its own quantisation by a class that is a plain one else.
            shell._modules["out_proj"] = own_shell(shell.out_proj, nn.Linear)
    return made[module]
