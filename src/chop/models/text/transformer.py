"""Two small transformers: one that classifies rows of tokens, one that continues them."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from chop.models.info import DataInfo, register_model, tokens_of


@dataclass(frozen=True)
class Size:
    """The size of a transformer."""

    layers: int = 2
    width: int = 32
    heads: int = 4
    hidden: int = 64


class Attention(nn.Module):
    """Attention of several heads, as products that the tracer sees one by one."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.width, size.width)
        self.key = nn.Linear(size.width, size.width)
        self.value = nn.Linear(size.width, size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        # Who continues a text looks back only; padding stands at the end, so nobody sees it.
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=seen is None
        )
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class TransformerBlock(nn.Module):
    """Attention and two linear layers, each added to what comes in."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.norm2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, size.hidden)
        self.gelu = nn.GELU()
        self.down = nn.Linear(size.hidden, size.width)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), seen)
        result: Tensor = x + self.down(self.gelu(self.up(self.norm2(x))))
        return result


class Transformer(nn.Module):
    """Words and places as vectors, some blocks, and a linear layer on each token."""

    def __init__(self, info: DataInfo, name: str, size: Size) -> None:
        super().__init__()
        tokens = tokens_of(info, name)
        self.pad_token_id = tokens.pad
        self.words = nn.Embedding(tokens.words, size.width, padding_idx=tokens.pad)
        self.places = nn.Parameter(nn.init.normal_(self.words.weight.new_empty(
            tokens.length, size.width), std=0.5))  # fmt: skip
        self.blocks = nn.ModuleList(TransformerBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, tokens.classes)

    def hidden(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """The vectors of all tokens after the last block."""
        vectors = self.words(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            vectors = block(vectors, seen)
        result: Tensor = self.norm(vectors)
        return result


@register_model(
    "encoder-tiny", model_source="manual", task_type="nlp", sequence_classification=True
)
class EncoderTiny(Transformer):
    """Encoder of 2 layers, width 32, 4 heads, that classifies by its first token; masks padding."""

    def __init__(self, info: DataInfo, size: Size = Size()) -> None:  # noqa: B008  (it is frozen)
        super().__init__(info, "encoder-tiny", size)

    def forward(self, x: Tensor) -> Tensor:
        seen = (x != self.pad_token_id)[:, None, None, :]
        scores: Tensor = self.head(self.hidden(x, seen)[:, 0])
        return scores


@register_model("decoder-tiny", model_source="manual", task_type="nlp", causal_LM=True)
class DecoderTiny(Transformer):
    """Decoder of 2 layers, width 32, 4 heads, with causal attention; predicts the next token."""

    def __init__(self, info: DataInfo, size: Size = Size()) -> None:  # noqa: B008  (it is frozen)
        super().__init__(info, "decoder-tiny", size)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.hidden(x, None))
        return scores


@register_model("decoder-small", model_source="manual", task_type="nlp", causal_LM=True)
class DecoderSmall(DecoderTiny):
    """Decoder of 3 layers, width 96, 4 heads: decoder-tiny for text of one's own, 0.4 million."""

    def __init__(self, info: DataInfo) -> None:
        super().__init__(info, Size(layers=3, width=96, heads=4, hidden=384))
