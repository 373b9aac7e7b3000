"""Small models with random weights, of many kinds: what `bench_zoo.py` measures on.

Each case is a function that makes a model and one that makes its inputs for a number of rows.
Models of transformers, timm and torchvision are there if the packages can be imported; nothing is
loaded.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = dict[str, Tensor]
WORDS, LENGTH = 99, 12


class Case(NamedTuple):
    """A model type."""

    name: str
    zoo: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]


TEXT = [
    "albert", "bert", "bert-generation", "big_bird", "bloom", "camembert", "canine", "codegen",
    "cohere", "convbert", "ctrl", "data2vec-text", "deberta", "deberta-v2", "distilbert",
    "electra", "ernie", "esm", "falcon", "flaubert", "fnet", "funnel", "gemma", "gemma2", "glm",
    "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite", "layoutlm", "llama",
    "megatron-bert", "mistral", "mixtral", "modernbert", "mpnet", "mpt", "nystromformer", "olmo",
    "olmo2", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen3", "roberta",
    "roberta-prelayernorm", "roformer", "splinter", "squeezebert", "stablelm", "starcoder2",
    "xlm", "xlm-roberta", "xlnet", "yoso", "mamba",
]  # fmt: skip
BOTH = [
    "bart", "blenderbot", "m2m_100", "marian", "mbart", "mt5", "pegasus", "plbart", "t5",
]  # fmt: skip
VISION = [
    "beit", "convnext", "convnextv2", "cvt", "deit", "dinov2", "efficientnet", "focalnet",
    "hiera", "ijepa", "levit", "mobilenet_v1", "mobilenet_v2", "mobilevit", "poolformer", "pvt",
    "regnet", "resnet", "segformer", "siglip_vision_model", "clip_vision_model", "swin", "swinv2",
    "vit", "vit_mae", "vit_msn",
]  # fmt: skip
TINY: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embedding_size": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "d_ff": 64, "ffn_dim": 64, "d_inner": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dff": 64, "hidden_dim": 64, "n_inner": 64,
    "vocab_size": WORDS, "max_position_embeddings": 64, "n_positions": 64, "head_dim": 8,
    "d_kv": 8, "rotary_dim": 8, "d_head": 8, "image_size": 32, "patch_size": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "num_local_experts": 2,
    "attention_types": [[["global", "local"], 1]], "state_size": 8, "block_sizes": [1, 1],
    "sep_token_id": 3, "cls_token_id": 4, "num_hash_functions": 4,
}  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {
    "xlm": {"emb_dim": 32}, "flaubert": {"emb_dim": 32}, "funnel": {"d_model": 32, "d_head": 8},
    "xlnet": {"d_head": 8}, "mpt": {"max_seq_len": 64}, "canine": {"local_attention_window": 8},
    "convbert": {"embedding_size": 32}, "mixtral": {},
    "efficientnet": {"image_size": 64, "hidden_dim": 2560},
    "levit": {"image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4],
              "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "resnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 16},
    "regnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 16,
               "groups_width": 8},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "convnextv2": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "focalnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "embed_dim": 16, "patch_size": 4,
                 "focal_levels": [2, 2], "focal_windows": [3, 3]},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4,
             "patch_size": 2},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4,
               "patch_size": 2},
    "pvt": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 64,
            "num_attention_heads": [1, 2, 2, 2], "patch_sizes": [4, 2, 2, 2]},
    "segformer": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 64,
                  "num_attention_heads": [1, 2, 2, 2]},
    "poolformer": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 64},
    "mobilevit": {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
                  "image_size": 64, "patch_size": 2},
    "cvt": {"embed_dim": [16, 16, 32], "depth": [1, 1, 1], "num_heads": [1, 2, 4]},
    "hiera": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": [32, 32],
              "patch_size": [4, 4], "patch_stride": [4, 4], "patch_padding": [1, 1],
              "masked_unit_size": [4, 4], "query_stride": [2, 2], "num_query_pool": 1},
    "mobilenet_v1": {"image_size": 64}, "mobilenet_v2": {"image_size": 64},
}  # fmt: skip
TIMM = [
    "resnet18", "resnext26ts", "densenet121", "efficientnet_b0", "mobilenetv3_small_050",
    "convnext_atto", "convnextv2_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224", "mixer_s32_224", "resmlp_12_224", "cait_xxs24_224",
    "coat_tiny", "crossvit_tiny_240", "levit_128s", "pit_ti_224", "poolformer_s12", "regnetx_002",
    "repvgg_a0", "ghostnet_100", "mobilevit_xxs", "xcit_nano_12_p16_224", "beit_base_patch16_224",
    "eva02_tiny_patch14_224", "maxvit_nano_rw_256", "twins_svt_small", "visformer_tiny", "vgg11",
    "inception_v3", "nf_resnet26", "sequencer2d_s",
]  # fmt: skip
SMALLER: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 2}, "deit_tiny_patch16_224": {"depth": 2},
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 48, "num_heads": 4},
    "eva02_tiny_patch14_224": {"depth": 2},
     "cait_xxs24_224": {"depth": 2},
    "xcit_nano_12_p16_224": {"depth": 2},
}  # fmt: skip


def importable(name: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None


def let_torchvision_import() -> None:
    """Name two operators that its wheels lack beside a torch for CPUs; nothing here calls them."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)


KEPT: list[Any] = []


def words(rows: int) -> Tensor:
    return torch.randint(5, WORDS, (rows, LENGTH))


def text_inputs(rows: int) -> Inputs:
    return {"input_ids": words(rows), "attention_mask": torch.ones(rows, LENGTH, dtype=torch.long)}


def only_words(rows: int) -> Inputs:
    return {"input_ids": words(rows)}


def both_inputs(rows: int) -> Inputs:
    return {**text_inputs(rows), "decoder_input_ids": words(rows)}


def images(size: int, name: str = "pixel_values") -> Callable[[int], Inputs]:
    return lambda rows: {name: torch.randn(rows, 3, size, size)}


def from_config(kind: str) -> nn.Module:
    """A small model of transformers of one type."""
    import transformers

    plain = transformers.CONFIG_MAPPING[kind]()
    wanted = {**TINY, **SPECIAL.get(kind, {})}
    fitting = {key: value for key, value in wanted.items() if fits(plain, key, value)}
    fitting |= SPECIAL.get(kind, {})
    return transformers.AutoModel.from_config(transformers.CONFIG_MAPPING[kind](**fitting)).eval()


def fits(config: Any, key: str, value: Any) -> bool:
    """Whether a configuration has a setting, and of this kind."""
    if not hasattr(config, key) or isinstance(getattr(type(config), key, None), property):
        return False
    known = getattr(config, key)
    return known is None or isinstance(known, list | tuple) == isinstance(value, list | tuple)


def transformers_cases() -> Iterator[Case]:
    """Models of transformers."""
    for kind in TEXT:
        inputs = only_words if kind in ("fnet", "mamba", "ctrl", "mpt") else text_inputs
        yield Case(kind, "transformers", lambda kind=kind: from_config(kind), inputs)
    for kind in BOTH:
        yield Case(kind, "transformers", lambda kind=kind: from_config(kind), both_inputs)
    for kind in VISION:
        size = SPECIAL.get(kind, {}).get("image_size", 32)
        side = size[0] if isinstance(size, list) else size
        yield Case(kind, "transformers", lambda kind=kind: from_config(kind), images(side))
    for name, make, inputs in heads():
        yield Case(name, "transformers", make, inputs)


def heads() -> Iterator[tuple[str, Callable[[], nn.Module], Callable[[int], Inputs]]]:
    """Models with a head, and of speech."""
    import transformers as t

    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    layers |= {"intermediate_size": 64}
    words_too = {**layers, "vocab_size": WORDS}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
    whisper = {key: value for key, value in TINY.items() if key != "hidden_size"}
    whisper |= {"num_mel_bins": 8, "max_source_positions": 16}
    waves = {**layers, "conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4)}
    waves |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    yield (
        "bert-classifier",
        headed(t.BertForSequenceClassification, t.BertConfig(**words_too)),
        text_inputs,
    )
    yield "llama-lm", headed(t.LlamaForCausalLM, t.LlamaConfig(**words_too)), text_inputs
    yield "gpt2-lm", headed(t.GPT2LMHeadModel, t.GPT2Config(**gpt2)), text_inputs
    vit = t.ViTConfig(**layers, image_size=32, patch_size=8)
    yield "vit-classifier", headed(t.ViTForImageClassification, vit), images(32)
    known = t.WhisperConfig()
    small = {key: value for key, value in whisper.items() if fits(known, key, value)}
    yield "whisper", headed(t.WhisperModel, t.WhisperConfig(**small)), spoken
    speech = t.Wav2Vec2Config(**waves, apply_spec_augment=False)
    yield "wav2vec2", headed(t.Wav2Vec2Model, speech), rows_of(400, name="input_values")


def headed(cls: Any, config: Any) -> Callable[[], nn.Module]:
    return lambda: cls(config).eval()


def spoken(rows: int) -> Inputs:
    return {"input_features": torch.randn(rows, 8, 32), "decoder_input_ids": words(rows)}


FULL_SIZE = {"crossvit_tiny_240": 240, "levit_128s": 224, "inception_v3": 160, "coat_tiny": 224}
SIDE = 64


def timm_cases() -> Iterator[Case]:
    """Models of timm, at a small resolution where they take one."""
    import timm

    known = set(timm.list_models())
    for name in TIMM:
        if name in known:

            def make(name: str = name) -> nn.Module:
                facts = {"num_classes": 10, **SMALLER.get(name, {})}
                with contextlib.suppress(TypeError, AssertionError):
                    if name not in FULL_SIZE:
                        return timm.create_model(name, img_size=SIDE, **facts).eval()
                return timm.create_model(name, **facts).eval()

            yield Case(name, "timm", make, images(FULL_SIZE.get(name, SIDE), "x"))


def torchvision_cases() -> Iterator[Case]:
    """Models of torchvision."""
    from torchvision import models

    for name in ("resnet18", "mobilenet_v2", "squeezenet1_1", "shufflenet_v2_x0_5", "googlenet",
                 "swin_t", "mnasnet0_5"):  # fmt: skip

        def make(name: str = name) -> nn.Module:
            extra = {"init_weights": False} if name == "googlenet" else {}
            return models.get_model(name, weights=None, num_classes=10, **extra).eval()

        side = 224 if name in ("vit_b_16", "swin_t") else SIDE
        yield Case(f"{name} (torchvision)", "torchvision", make, images(side, "x"))


class Tagger(nn.Module):
    """A recurrent network over words."""

    def __init__(self, layer: type[nn.RNNBase], **facts: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layer = layer(16, 24, batch_first=True, **facts)
        self.out = nn.Linear(24 * (2 if facts.get("bidirectional") else 1), 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, _ = self.layer(self.words(input_ids))
        return self.out(hidden)


class Cells(nn.Module):
    """A loop over the columns by hand."""

    def __init__(self, cell: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell, self.out = cell(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` on one sequence."""

    def __init__(self, need_weights: bool = False, **facts: Any) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, **facts)
        self.out = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=self.need_weights)[0])


class Encoder(nn.Module):
    """`nn.TransformerEncoder` over words."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **facts)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.out(self.encoder(self.words(input_ids)).mean(1))


class Translator(nn.Module):
    """`nn.Transformer`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model(x, y)


class Einsum(nn.Module):
    """Attention by einsum with an ellipsis."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("...id,...jd->...ij", self.q(x), self.k(x)) / 4
        return torch.einsum("...ij,...jd->...id", scores.softmax(-1), self.v(x))


class Unet(nn.Module):
    """Down and up again, with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 8, 2, 2)
        self.norm, self.out = nn.GroupNorm(2, 8), nn.Conv2d(11, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.interpolate(F.silu(self.norm(self.down(x))), scale_factor=1.0)
        return self.out(torch.cat([x, self.up(inner)], 1))


class Loop(nn.Module):
    """What fx cannot trace: a loop over a size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, _ in zip(self.layers, range(x.shape[1]), strict=False):
            x = self.drop(self.norm(F.relu(layer(x))))
        return x


def rows_of(*shape: int, name: str = "x") -> Callable[[int], Inputs]:
    return lambda rows: {name: torch.randn(rows, *shape)}


def torch_cases() -> Iterator[Case]:
    """Networks of plain torch."""
    sequence = rows_of(10, 32)
    plain: list[tuple[str, Callable[[], nn.Module], Callable[[int], Inputs]]] = [
        ("mlp", lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5)),
         rows_of(16, name="input")),
        ("lstm", lambda: Tagger(nn.LSTM, num_layers=2), only_words),
        ("lstm-both-ways", lambda: Tagger(nn.LSTM, bidirectional=True), only_words),
        ("gru", lambda: Tagger(nn.GRU, num_layers=2), only_words),
        ("rnn", lambda: Tagger(nn.RNN), only_words),
        ("rnn-relu", lambda: Tagger(nn.RNN, nonlinearity="relu"), only_words),
        ("lstm-cells", lambda: Cells(nn.LSTMCell), rows_of(5, 4)),
        ("gru-cells", lambda: Cells(nn.GRUCell), rows_of(5, 4)),
        ("rnn-cells", lambda: Cells(nn.RNNCell), rows_of(5, 4)),
        ("attention", SelfAttention, sequence),
        ("attention-with-weights", lambda: SelfAttention(need_weights=True), sequence),
        ("attention-extra-keys", lambda: SelfAttention(add_bias_kv=True, add_zero_attn=True),
         sequence),
        ("encoder", Encoder, only_words),
        ("encoder-norm-first", lambda: Encoder(norm_first=True, activation="gelu"), only_words),
        ("transformer", Translator,
         lambda rows: {"x": torch.randn(rows, 9, 32), "y": torch.randn(rows, 7, 32)}),
        ("einsum", Einsum, rows_of(10, 16)),
        ("unet", Unet, rows_of(3, 16, 16)),
        ("loop", Loop, rows_of(8)),
    ]  # fmt: skip
    for name, make, inputs in plain:
        yield Case(name, "torch", lambda make=make: make().eval(), inputs)


def cases(only: str = "") -> Iterator[Case]:
    """Every case whose package can be imported."""
    found = [torch_cases()]
    if importable("transformers"):
        found.append(transformers_cases())
    if importable("torchvision"):
        let_torchvision_import()
        found.append(torchvision_cases())
        if importable("timm"):
            found.append(timm_cases())
    for each in found:
        yield from (case for case in each if not only or case.zoo == only or case.name == only)
