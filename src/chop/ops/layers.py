"""Layers: operations with parameters, and pools."""

import torch
import torch.nn.functional as F
from torch import nn

from chop.ops import composed, cost, stepwise
from chop.ops.op import MaseType, Op, Order, Reads, takes
from chop.ops.torch_names import named_operators

RELATED, MODULE = MaseType.MODULE_RELATED_FUNC, MaseType.MODULE
AFFINE = ("weight", "bias")
BIAS_OPTIONAL = frozenset({"bias"})
ALL_OPTIONAL = frozenset(AFFINE)
DIMENSIONS = (1, 2, 3)
SECOND = {"data_in": 1, "data_out": 1}
BY_TABLES = ("data_in", stepwise.TABLE)
NO_SIGN = frozenset({stepwise.TABLE})
UPSAMPLINGS = (
    *(f"{kind}{dims}d" for kind in ("upsample_nearest", "_upsample_nearest_exact")
      for dims in DIMENSIONS),
    "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
)  # fmt: skip

LINEAR = Op(
    name="linear",
    mase_type=RELATED,
    description="Affine map of the last dimension",
    module=nn.Linear,
    functions=(F.linear,),
    arguments=takes("input:data_in", "weight:", "bias:"),
    params=AFFINE,
    optional=BIAS_OPTIONAL,
    cost=cost.linear_cost,
    order=Order.DENSE,
    summed={"data_in": -1, "weight": -1},
    channels={"data_in": -1, "weight": 0, "data_out": -1},
)
BILINEAR = Op(
    name="bilinear",
    mase_type=RELATED,
    description="Bilinear form of two inputs",
    module=nn.Bilinear,
    functions=(F.bilinear,),
    arguments=takes("input1:data_in", "input2:data_in", "weight:", "bias:"),
    inputs=("data_in", "data_in"),
    params=AFFINE,
    optional=BIAS_OPTIONAL,
    cost=cost.bilinear_cost,
)
EMBEDDING = Op(
    name="embedding",
    mase_type=RELATED,
    description="Rows of a table, chosen by integers",
    module=nn.Embedding,
    functions=(F.embedding,),
    arguments=takes("input", "weight:", "padding_idx", "max_norm"),
    inputs=(),
    params=("weight",),
    cost=cost.free,
    order=Order.DENSE,
)
MULTIHEAD_ATTENTION = Op(
    name="multihead_attention",
    mase_type=RELATED,
    description="Attention of several heads with its projections",
    module=nn.MultiheadAttention,
    functions=(F.multi_head_attention_forward,),
    arguments=takes(
        "query:",
        "key:",
        "value:",
        "embed_dim_to_check",
        "num_heads",
        "in_proj_weight",
        "in_proj_bias",
        "bias_k",
        "bias_v",
        "add_zero_attn",
        "dropout_p",
        "out_proj_weight",
        "out_proj_bias",
    ),
    inputs=("query", "key", "value"),
    quantizable=False,
    cost=cost.multihead_attention,
)
INTERPOLATE = Op(
    name="interpolate",
    mase_type=RELATED,
    description="Another resolution",
    module=nn.Upsample,
    functions=(F.interpolate,),
    aten=UPSAMPLINGS,
    arguments=takes("input:data_in", "size", "scale_factor", "mode"),
)
LAYER_NORM = Op(
    name="layer_norm",
    mase_type=RELATED,
    description="Normalisation over the last dimensions",
    module=nn.LayerNorm,
    functions=(F.layer_norm, torch.layer_norm),
    aten=("native_layer_norm",),
    arguments=takes("input:data_in", "normalized_shape", "weight:", "bias:", "eps"),
    params=AFFINE,
    optional=ALL_OPTIONAL,
    inner=BY_TABLES,
    unsigned=NO_SIGN,
    standardises=True,
    run=stepwise.layer_norm,
    forward=stepwise.layer_form(stepwise.layer_norm, "normalized_shape", "weight", "bias", "eps"),
    cost=cost.normalisation,
)
GROUP_NORM = Op(
    name="group_norm",
    mase_type=RELATED,
    description="Normalisation over groups of channels",
    module=nn.GroupNorm,
    functions=(F.group_norm, torch.group_norm),
    aten=("native_group_norm",),
    arguments=takes("input:data_in", "num_groups", "weight:", "bias:", "eps"),
    params=AFFINE,
    optional=ALL_OPTIONAL,
    inner=BY_TABLES,
    unsigned=NO_SIGN,
    standardises=True,
    run=stepwise.group_norm,
    forward=stepwise.layer_form(stepwise.group_norm, "num_groups", "weight", "bias", "eps"),
    cost=cost.normalisation,
)
RMS_NORM = Op(
    name="rms_norm",
    mase_type=RELATED,
    description="Division by the root mean square of the last dimensions",
    module=nn.RMSNorm,
    functions=(F.rms_norm, torch.rms_norm),
    aten=("_fused_rms_norm",),
    arguments=takes("input:data_in", "normalized_shape", "weight:", "eps"),
    params=("weight",),
    optional=ALL_OPTIONAL,
    inner=BY_TABLES,
    unsigned=NO_SIGN,
    standardises=True,
    run=stepwise.rms_norm,
    forward=stepwise.layer_form(stepwise.rms_norm, "normalized_shape", "weight", "eps"),
    cost=cost.rms_norm_cost,
)
BATCH_NORM = Op(
    name="batch_norm",
    mase_type=RELATED,
    description="Normalisation of each channel over the batch, as a function of any rank",
    functions=(F.batch_norm, torch.batch_norm),
    aten=(
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
    ),
    arguments=takes(
        "input:data_in", "running_mean", "running_var", "weight:", "bias:", "training", "momentum"
    ),
    params=AFFINE,
    optional=ALL_OPTIONAL,
    cost=cost.batch_norm_cost,
    reads=Reads.PLACE,
    channels=SECOND,
)
INSTANCE_NORM = Op(
    name="instance_norm",
    mase_type=RELATED,
    description="Normalisation of each channel of each sample, as a function of any rank",
    functions=(F.instance_norm, torch.instance_norm),
    arguments=takes(
        "input:data_in", "running_mean", "running_var", "weight:", "bias:", "use_input_stats"
    ),
    params=AFFINE,
    optional=ALL_OPTIONAL,
    cost=cost.normalisation,
)


def convolution_row(dims: int) -> Op:
    """Convolution over `dims` dimensions."""
    return Op(
        name=f"conv{dims}d",
        mase_type=RELATED,
        description=f"{dims}-dimensional convolution",
        module=getattr(nn, f"Conv{dims}d"),
        functions=(getattr(F, f"conv{dims}d"),),
        arguments=takes(
            "input:data_in", "weight:", "bias:", "stride", "padding", "dilation", "groups"
        ),
        params=AFFINE,
        optional=BIAS_OPTIONAL,
        cost=cost.convolution_cost,
        order=Order.KEPT if dims == 1 else Order.DENSE,
        dims=dims,
        summed={"data_in": -1 - dims, "weight": -1 - dims},
        channels={"data_in": -1 - dims, "weight": 0, "data_out": -1 - dims},
    )


def transposed_convolution_row(dims: int) -> Op:
    """Transposed convolution over `dims` dimensions."""
    return Op(
        name=f"conv_transpose{dims}d",
        mase_type=RELATED,
        description=f"{dims}-dimensional transposed convolution",
        module=getattr(nn, f"ConvTranspose{dims}d"),
        functions=(getattr(F, f"conv_transpose{dims}d"),),
        arguments=takes(
            "input:data_in",
            "weight:",
            "bias:",
            "stride",
            "padding",
            "output_padding",
            "groups",
            "dilation",
        ),
        params=AFFINE,
        optional=BIAS_OPTIONAL,
        cost=cost.transposed_convolution_cost,
        dims=dims,
        channels={"data_in": -1 - dims, "weight": 1, "data_out": -1 - dims},
    )


def batch_norm_row(dims: int) -> Op:
    """Batch normalisation as a module; running statistics stay in floating point."""
    return Op(
        name=f"batch_norm{dims}d",
        mase_type=MODULE,
        description=f"{dims}-dimensional batch normalisation",
        module=getattr(nn, f"BatchNorm{dims}d"),
        params=AFFINE,
        optional=ALL_OPTIONAL,
        cost=cost.batch_norm_cost,
        reads=Reads.PLACE,
        dims=dims,
        channels=SECOND,
    )


def instance_norm_row(dims: int) -> Op:
    """Instance normalisation as a module."""
    return Op(
        name=f"instance_norm{dims}d",
        mase_type=MODULE,
        description=f"{dims}-dimensional instance normalisation",
        module=getattr(nn, f"InstanceNorm{dims}d"),
        params=AFFINE,
        optional=ALL_OPTIONAL,
        cost=cost.normalisation,
    )


def recurrent_row(module: type[nn.Module]) -> Op:
    """A recurrent layer; quantised, it is computed step by step on a rounded hidden state."""
    return Op(
        name=module.__name__.lower(),
        mase_type=MODULE,
        description=f"Recurrent layer {module.__name__}",
        module=module,
        aten=("rnn_tanh", "rnn_relu") if module is nn.RNN else (),
        arguments=takes("input:data_in", "hx:hidden"),
        inputs=("data_in", "hidden"),
        params=AFFINE,
        optional=BIAS_OPTIONAL,
        inner=("data_in", "hidden", stepwise.TABLE),
        unsigned=NO_SIGN,
        parameters=composed.recurrent_parameters,
        forward=composed.run_recurrent,
        cost=cost.recurrent_cost,
    )


def recurrent_cell_row(module: type[nn.Module]) -> Op:
    """One step of a recurrent layer."""
    kind = module.__name__.removesuffix("Cell")
    name = f"{kind.lower()}_cell"
    modes = ("rnn_tanh_cell", "rnn_relu_cell") if module is nn.RNNCell else (name,)
    return Op(
        name=name,
        mase_type=RELATED,
        description=f"One step of the recurrent layer {kind}",
        module=module,
        functions=tuple(getattr(torch, mode) for mode in modes),
        aten=modes,
        arguments=takes("input:data_in", "hx:hidden", "w_ih:weight", "w_hh:weight", "b_ih:bias",
                        "b_hh:bias"),
        inputs=("data_in", "hidden"),
        params=AFFINE,
        optional=BIAS_OPTIONAL,
        inner=("hidden", stepwise.TABLE),
        unsigned=NO_SIGN,
        parameters=composed.recurrent_parameters,
        forward=composed.run_cell,
        cost=cost.recurrent_cell_cost,
    )  # fmt: skip


def pool_row(kind: str, dims: int, rule: cost.CostRule, *settings: str) -> Op:
    """A pool, such as ``adaptive_avg_pool2d``, whose function takes `settings` after the input."""
    name = f"{kind}_pool{dims}d"
    class_name = "".join(part.capitalize() for part in kind.split("_")).replace("Lp", "LP")
    found = (
        getattr(place, name + ending, None)
        for ending in ("", "_with_indices")
        for place in (F, torch)
    )
    return Op(
        name=name,
        mase_type=RELATED,
        description=f"{dims}-dimensional {kind.replace('_', ' ')} pool",
        module=getattr(nn, f"{class_name}Pool{dims}d"),
        functions=tuple(dict.fromkeys(function for function in found if function)),
        aten=named_operators(f"{name}_with_indices", f"_{name}"),
        arguments=takes("input:data_in", *settings),
        cost=rule,
        reads=Reads.SUMMED if kind.endswith("avg") else Reads.CHANNEL,
        selects=kind.endswith("max"),
        homogeneous=kind.endswith(("avg", "max")),
        dims=dims,
    )


WINDOWS = ("kernel_size", "stride", "padding")


def pool_rows_of_torch() -> list[Op]:
    """Every pool of torch."""
    sliding = [
        pool_row(kind, dims, cost.pooling(dims), *settings)
        for kind, settings in (
            ("avg", (*WINDOWS, "ceil_mode", "count_include_pad", "divisor_override")),
            ("max", (*WINDOWS, "dilation", "ceil_mode", "return_indices")),
            ("lp", ("norm_type", "kernel_size", "stride")),
        )
        for dims in DIMENSIONS
    ]
    adaptive = [
        pool_row(kind, dims, cost.reduction_cost, "output_size")
        for kind in ("adaptive_avg", "adaptive_max")
        for dims in DIMENSIONS
    ]
    fractional = [
        pool_row("fractional_max", dims, cost.pooling(dims), "kernel_size", "output_size")
        for dims in (2, 3)
    ]
    return sliding + adaptive + fractional


LAYERS = [
    LINEAR,
    BILINEAR,
    EMBEDDING,
    MULTIHEAD_ATTENTION,
    INTERPOLATE,
    *map(recurrent_row, (nn.RNN, nn.LSTM, nn.GRU)),
    *map(recurrent_cell_row, (nn.RNNCell, nn.LSTMCell, nn.GRUCell)),
    *map(convolution_row, DIMENSIONS),
    *map(transposed_convolution_row, DIMENSIONS),
    *map(batch_norm_row, DIMENSIONS),
    *map(instance_norm_row, DIMENSIONS),
    BATCH_NORM,
    INSTANCE_NORM,
    LAYER_NORM,
    GROUP_NORM,
    RMS_NORM,
    *pool_rows_of_torch(),
]
