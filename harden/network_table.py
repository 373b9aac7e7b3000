"""What random networks are made of: one line for each way of writing a step.

A line is ``ranks | what is made | the call``. Ranks are those of the value that the step takes,
``*`` for any. What is made becomes attributes of the module, which the call names ``{a}``, ``{b}``
and so on; ``param(…)`` is a parameter of this shape. ``{v}`` is the value, ``{w}`` another one,
``{last}`` and ``{channels}`` are sizes of the value, ``{k}`` is a number from 1 to 4. A line that
does not fit its value is left out.
"""

from dataclasses import dataclass

ACTIVATIONS = """
ReLU() ReLU6() LeakyReLU(0.2) PReLU() RReLU() ELU() CELU() SELU() GELU() GELU("tanh") SiLU() Mish()
Sigmoid() LogSigmoid() Tanh() Tanhshrink() Hardtanh(-0.5,0.7) Hardswish() Hardsigmoid() Hardshrink()
Softshrink() Softplus() Softsign() Threshold(0.1,0.5) GLU(-1) Softmax(-1) Softmin(-1) LogSoftmax(-1)
Dropout(0.3) AlphaDropout(0.2) Identity() Flatten(1) ReLU(inplace=True) Hardtanh(inplace=True)
LeakyReLU(0.3,inplace=True) ELU(inplace=True)
"""

CALLS = """
F.relu({v}) | torch.relu({v}) | {v}.relu() | {v}.relu_() | F.relu({v}, inplace=True) | F.relu6({v})
F.leaky_relu({v}, 0.2) | F.leaky_relu({v}, negative_slope=0.3, inplace=True) | F.elu({v}, alpha=0.5)
F.gelu({v}) | F.gelu({v}, approximate="tanh") | F.silu({v}) | F.mish({v}) | F.softplus({v})
torch.sigmoid({v}) | {v}.sigmoid() | {v}.sigmoid_() | torch.tanh({v}) | {v}.tanh() | F.tanh({v})
F.logsigmoid({v}) | F.hardtanh({v}, -0.5, 0.5) | F.hardswish({v}) | F.threshold({v}, 0.1, 0.2)
F.softmax({v}, dim=-1) | torch.softmax({v}, -1) | {v}.softmax(dim=-1) | F.softmin({v}, dim=-1)
F.log_softmax({v}, -1) | {v}.log_softmax(-1) | F.softsign({v}) | F.glu({v}, -1) | F.selu({v})
F.dropout({v}, 0.5, False) | F.dropout({v}, p=0.2, training=False) | F.celu({v})
torch.exp({v}.clamp(max=2.0)) | torch.log({v}.abs() + 1) | torch.sqrt({v}.abs()) | torch.square({v})
torch.abs({v}) | abs({v}) | {v}.abs() | {v}.abs_() | torch.neg({v}) | -{v} | {v}.neg() | round({v})
torch.clamp({v}, -1.0, 1.0) | {v}.clamp(min=0.0) | {v}.clamp_(-1, 1) | torch.clip({v}, max=0.5)
torch.sin({v}) | {v}.cos() | torch.floor({v}) | {v}.ceil() | torch.erf({v})
torch.rsqrt({v}.abs() + 1)
{v}.reciprocal() | torch.reciprocal({v}.abs() + 0.5) | {v}.log1p() | {v}.square().sqrt()
{v} + 1.5 | 2 - {v} | {v} * 0.5 | {v} / 3 | 1 / ({v}.abs() + 1) | {v} ** 2 | 2 ** {v}.clamp(max=3)
{v} % 2 | {v} // 0.5 | {v} - 1 | 0.5 * {v} | {v}.add(1.0) | {v}.mul(2) | {v}.div(4.0) | {v}.pow(2)
{v}.add_(0.5) | {v}.mul_(0.5) | {v}.sub_(1) | torch.mul({v}, 3) | torch.add({v}, 2, alpha=0.5)
torch.div({v}, 0.3, rounding_mode="floor") | torch.div({v}, 2.0, rounding_mode=None)
torch.pow({v}, 2.0) | torch.pow({v}, exponent=2) | torch.pow(2.0, {v}.clamp(max=3))
{v}.remainder(2)
{v} + torch.tensor(2.0) | {v} * torch.ones(1) | {v} + torch.zeros_like({v})
torch.full_like({v}, 0.5)
{v} * ({v} > 0) | torch.where({v} > 0, {v}, -{v}) | {v}.masked_fill({v} > 1, 0.25)
{v}.masked_fill({v} > 1.5, float("-inf")) | {v} / math.sqrt({v}.size(-1)) | {v} * {v}.shape[-1]
{v}.contiguous() | {v}.clone() | {v}.detach() | {v}.double().float() | {v}.to(torch.float64).float()
{v}.view(-1) | {v}.reshape(-1) | {v}.unsqueeze(0) | {v}.unsqueeze(-1) | torch.flip({v}, (0,))
{v}.mean() | {v}.sum() | {v}.mean(-1) | {v}.mean(dim=-1, keepdim=True) | torch.mean({v}, -1)
{v}.sum(-1, keepdim=True) | torch.sum({v}, dim=-1) | {v}.amax(-1) | torch.amin({v}, dim=-1)
{v}.max(dim=-1)[0] | torch.max({v}, -1).values | {v}.min(-1).values | {v}.std(-1) | {v}.prod(-1)
torch.var({v}, dim=-1, unbiased=False) | torch.norm({v}, dim=-1) | {v}.norm() | {v}.logsumexp(-1)
{v}.cumsum(-1) | torch.topk({v}, 1).values | {v}.argmax(-1).float() | {v}.type_as({v}) | {v}.max()
F.layer_norm({v}, ({last},)) | F.rms_norm({v}, ({last},)) | F.normalize({v}, dim=-1)
{v} + torch.arange({v}.size(-1)) | {v}.new_ones(1) * {v} | {v}.expand_as({v}) | torch.tril({v})
"""

BATCHED_CALLS = """
{v}.view({v}.size(0), -1) | {v}.reshape({v}.shape[0], -1) | torch.flatten({v}, 1) | {v}.flatten(1)
{v}[:, :{k}] | {v}[:, -1] | {v}[..., 0] | {v}[:, None] | {v}[::2] | {v}.select(1, 0) | {v}[0]
{v}.narrow(1, 0, 1) | torch.split({v}, {k}, dim=1)[0] | {v}.split(1, 1)[-1] | {v}.unbind(1)[0]
{v}.chunk(2, dim=1)[0] | torch.chunk({v}, 2, 1)[-1] | torch.roll({v}, 1, 1) | {v}.transpose(0, 1)
torch.cat([{v}, {v}], 1) | torch.cat(({v}, -{v}), dim=-1) | torch.stack([{v}, {v}], 1)
{v}.squeeze(1)
torch.cat([{v}, {v}.relu(), {v}], dim=1) | torch.cat(tensors=[{v}, {v}], dim=1) | F.pad({v}, (1, 1))
{v}.mean(1) | {v}.mean(dim=1, keepdim=True) | {v}.sum(1) | {v}.max(1)[0] | {v}.softmax(1)
{v}.swapaxes(0, 1) | {v}.repeat_interleave(2, 1) | {v}.movedim(0, 1)
torch.gather({v}, 1, {v}.long() * 0)
{v}.index_select(1, torch.tensor([0])) | {v}.size(0) * {v} | {v}.flip(1) | {v}.expand({v}.shape)
"""

PAIRS = """
{v} + {w} | {v} - {w} | {v} * {w} | {v} / ({w}.abs() + 1) | torch.add({v}, {w}) | {v}.add({w})
torch.add({v}, other={w}) | torch.add(other={w}, input={v}) | torch.add({v}, {w}, alpha=2)
{v}.mul({w})
torch.sub(input={v}, other={w}) | torch.sub(other={w}, input={v}) | {v}.sub_({w}) | {v}.add_({w})
torch.maximum({v}, {w}) | torch.minimum({w}, {v}) | torch.max({v}, {w}) | {v}.min({w})
{v} % ({w}.abs() + 1)
torch.where({v} > {w}, {v}, {w}) | torch.stack([{v}, {w}]).sum(0) | torch.cat([{v}, {w}], -1)
{v}.div({w})
torch.stack(({v}, {w}), dim=-1) | torch.pow({v}.abs() + 0.1, {w}.clamp(-1, 1))
torch.mul({v}, {w}) + {v}
{v} @ {w}.transpose(-2, -1) | torch.matmul(other={w}.transpose(-2, -1), input={v})
{v} // ({w}.abs() + 1)
torch.einsum("...i,...i->...", {v}, {w}) | {v}.masked_fill({w} > 0, 0.5) | {v}.copy_({w})
"""

LAYERS = """
* | nn.Linear({last}, {k}) | {a}({v})
* | nn.Linear({last}, {k}, bias=False) | {a}({v})
* | nn.Linear({last}, {last}) | {v} + {a}({v})
* | nn.Sequential(nn.Linear({last}, {k}), nn.ReLU(), nn.Linear({k}, {last})) | {v} + {a}({v})
* | nn.Sequential(nn.LayerNorm({last}), nn.Linear({last}, {k}), nn.GELU()) | {a}({v})
* | nn.Linear({last}, {k}); nn.Linear({last}, {k}) | {a}({v}) * torch.sigmoid({b}({v}))
* | nn.Linear({last}, {k}); nn.Linear({k}, {last}) | {b}(F.relu({a}({v})))
* | nn.Linear({last}, {last}) | {a}({a}({v}))
* | nn.Linear({last}, {k}) | {a}(input={v})
* | nn.LayerNorm({last}) | {a}({v})
* | nn.LayerNorm({last}, elementwise_affine=False) | {a}({v})
* | nn.LayerNorm({last}, bias=False) | {a}({v})
* | nn.RMSNorm({last}) | {a}({v})
* | nn.Embedding(7, {k}) | {a}(({v} * 2).long().clamp(0, 6))
* | nn.Embedding(7, {k}, padding_idx=0) | {a}({v}.abs().long() % 7)
* | param({last}) | {v} + {a}
* | param({last}) | {a} * {v} - {a}
* | nn.Buffer(torch.randn({last})) | {v} * {a}
* | param({last}, {k}) | {v} @ {a}
* | param({last}, {k}) | torch.matmul({v}, {a})
* | param({last}, {k}) | torch.matmul(other={a}, input={v})
* | param({last}, {k}) | {v}.matmul({a})
* | param({k}, {last}); param({k}) | F.linear({v}, {a}, {b})
* | param({k}, {last}); param({k}) | F.linear({v}, bias={b}, weight={a})
* | param({k}, {last}) | F.linear({v}, {a})
* | param({last}); param({last}) | F.layer_norm({v}, ({last},), {a}, {b})
* | param({last}) | F.rms_norm({v}, ({last},), weight={a})
* | param(7, {k}) | F.embedding(({v} * 2).long().clamp(0, 6), {a})
2 | param({last}, {k}) | torch.mm({v}, {a})
2 | param({last}, {k}) | {v}.mm(mat2={a})
2 | param({last}) | torch.mv({v}, {a})
2 | param({last}, {k}); param({k}) | torch.addmm({b}, {v}, {a})
2 | param({last}, {k}) | torch.einsum("ij,jk->ik", {v}, {a})
2 | nn.Bilinear({last}, {last}, {k}) | {a}({v}, {v}.relu())
2 | nn.BatchNorm1d({last}) | {a}({v})
2 | nn.BatchNorm1d({last}, affine=False) | {a}({v})
2 | nn.BatchNorm1d({last}, track_running_stats=False) | {a}({v})
2 | nn.Sequential(nn.Linear({last}, {k}), nn.BatchNorm1d({k}), nn.ReLU(inplace=True)) | {a}({v})
2 | nn.GroupNorm(1, {last}) | {a}({v})
2 | nn.PReLU({last}) | {a}({v})
2 | nn.Unflatten(1, (1, {last})) | {a}({v})
3 | nn.Conv1d({channels}, {k}, 3, padding=1) | {a}({v})
3 | nn.Conv1d({channels}, {k}, 2, bias=False) | {a}({v})
3 | nn.Conv1d({channels}, {channels}, 3, padding="same", groups={channels}) | {v} + {a}({v})
3 | nn.ConvTranspose1d({channels}, {k}, 2, stride=2) | {a}({v})
3 | nn.BatchNorm1d({channels}) | {a}({v})
3 | nn.InstanceNorm1d({channels}, affine=True) | {a}({v})
3 | nn.GroupNorm(1, {channels}) | {a}({v})
3 | nn.MaxPool1d(2) | {a}({v})
3 | nn.AvgPool1d(2, 1) | {a}({v})
3 | nn.LPPool1d(2, 2) | {a}({v}.abs())
3 | nn.AdaptiveAvgPool1d(2) | {a}({v})
3 | nn.AdaptiveMaxPool1d(1) | {a}({v})
3 | nn.Upsample(scale_factor=2) | {a}({v})
3 | nn.MultiheadAttention({last}, 1, batch_first=True) | {a}({v}, {v}, {v})[0]
3 | nn.MultiheadAttention({last}, 1) | {a}({v}, {v}, {v}, need_weights=False)[0]
3 | nn.LSTM({last}, {k}, batch_first=True) | {a}({v})[0]
3 | nn.GRU({last}, {k}) | {a}({v})[0]
3 | nn.RNN({last}, {k}) | {a}({v})[1]
3 | param({k}, {channels}, 2) | F.conv1d({v}, {a}, stride=1)
3 | param({channels}); param({channels}) | F.group_norm({v}, 1, {a}, {b})
3 | | torch.bmm({v}, {v}.transpose(1, 2))
3 | | torch.baddbmm({v}, {v} @ {v}.mT, {v})
3 | | {v}.bmm({v}.permute(0, 2, 1)).softmax(-1).bmm({v})
3 | | F.scaled_dot_product_attention({v}, {v}, {v})
3 | | F.scaled_dot_product_attention({v}, {v}, value={v}, is_causal=True)
3 | | torch.einsum("bij,bkj->bik", {v}, {v})
3 | | {v}.permute(0, 2, 1)
3 | | F.max_pool1d({v}, 2)
3 | | F.avg_pool1d({v}, kernel_size=2, stride=1)
3 | | F.adaptive_avg_pool1d({v}, 1)
4 | nn.Conv2d({channels}, {k}, 3, padding=1) | {a}({v})
4 | nn.Conv2d({channels}, {k}, 1, bias=False) | {a}({v})
4 | nn.Conv2d({channels}, {k}, (2, 1), stride=2, dilation=1) | {a}({v})
4 | nn.Conv2d({channels}, {k}, 3, padding=1, padding_mode="circular") | {a}({v})
4 | nn.Conv2d({channels}, {channels}, 3, padding=1, groups={channels}) | {v} + {a}({v})
4 | nn.Sequential(nn.Conv2d({channels}, {k}, 3), nn.BatchNorm2d({k}), nn.ReLU()) | {a}({v})
4 | nn.ConvTranspose2d({channels}, {k}, 2, stride=2) | {a}({v})
4 | nn.BatchNorm2d({channels}) | {a}({v})
4 | nn.InstanceNorm2d({channels}) | {a}({v})
4 | nn.InstanceNorm2d({channels}, affine=True, track_running_stats=True) | {a}({v})
4 | nn.GroupNorm(1, {channels}) | {a}({v})
4 | nn.GroupNorm({channels}, {channels}, affine=False) | {a}({v})
4 | nn.PReLU({channels}) | {a}({v})
4 | nn.MaxPool2d(2) | {a}({v})
4 | nn.MaxPool2d(2, return_indices=True) | {a}({v})[0]
4 | nn.AvgPool2d(2, stride=1) | {a}({v})
4 | nn.LPPool2d(2, 2) | {a}({v}.abs())
4 | nn.AdaptiveAvgPool2d(1) | {a}({v})
4 | nn.AdaptiveAvgPool2d((None, 2)) | {a}({v})
4 | nn.AdaptiveMaxPool2d((2, 1)) | {a}({v})
4 | nn.Upsample(scale_factor=2, mode="bilinear") | {a}({v})
4 | nn.Dropout2d(0.5) | {a}({v})
4 | nn.Softmax2d() | {a}({v})
4 | nn.ZeroPad2d(1) | {a}({v})
4 | nn.Buffer(torch.rand({channels})) | F.batch_norm({v}, {a}, {a} + 1)
4 | param({k}, {channels}, 3, 3); param({k}) | F.conv2d({v}, {a}, {b}, padding=1)
4 | param({k}, {channels}, 1, 1) | F.conv2d({v}, weight={a})
4 | param({channels}, {k}, 2, 2) | F.conv_transpose2d({v}, {a}, stride=2)
4 | param({channels}); param({channels}) | F.instance_norm({v}, weight={a}, bias={b})
4 | | F.max_pool2d({v}, 2)
4 | | F.avg_pool2d({v}, (2, 2), stride=1)
4 | | F.adaptive_avg_pool2d({v}, 1)
4 | | F.adaptive_max_pool2d({v}, 2)
4 | | F.interpolate({v}, scale_factor=2.0)
4 | | {v}.permute(0, 2, 3, 1)
4 | | {v}.contiguous(memory_format=torch.channels_last)
4 | | {v}.mean((2, 3))
4 | | {v}.mean(dim=[-2, -1], keepdim=True)
4 | | {v}.amax(dim=(2, 3))
4 | | F.unfold({v}, 2)
4 | | torch.matmul({v}, {v}.transpose(-1, -2))
4 | | F.scaled_dot_product_attention({v}, {v}, {v})
"""


@dataclass(frozen=True)
class Template:
    """One way of writing a step."""

    makes: tuple[str, ...]
    call: str
    rank: int | None = None
    """The rank of the value it takes; None for any."""

    def takes(self, rank: int) -> bool:
        """Whether a value of this rank will do."""
        return self.rank is None or self.rank == rank


def listed(text: str) -> list[str]:
    """The calls of a text in which they stand several in a line."""
    return [call.strip() for line in text.strip().splitlines() for call in line.split(" | ")]


def layer_template(line: str) -> Template:
    """The template of a line of `LAYERS`."""
    ranks, makes, call = (part.strip() for part in line.split("|"))
    made = tuple(parameter(part.strip()) for part in makes.split("; ") if part.strip())
    return Template(made, call, None if ranks == "*" else int(ranks))


def parameter(text: str) -> str:
    """What is made, spelt out."""
    shape = text.removeprefix("param")
    return text if shape == text else f"nn.Parameter(torch.randn{shape})"


PLAIN = [Template((), call) for call in listed(CALLS)]
BATCHED = [Template((), call, rank) for call in listed(BATCHED_CALLS) for rank in (2, 3, 4)]
ACTIVE = [Template((f"nn.{made}",), "{a}({v})") for made in ACTIVATIONS.split()]
WITH_LAYERS = [layer_template(line) for line in LAYERS.strip().splitlines()]
OF_PAIRS = [Template((), call) for call in listed(PAIRS)]
