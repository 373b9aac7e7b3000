"""The names that a graph from a file may call: they compute, and do nothing else.

Nothing here reads or writes a file, prints, starts a process, talks to a device, looks at raw
memory or calls what it is given. A name that is not here is refused, also one that torch adds.
"""

import builtins
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from chop.nn.forward import HOME
from chop.nn.function import named_function
from chop.ops.op import op_of_function, op_of_method
from chop.ops.table import OPS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTS = """
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2
    arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip complex conj conj_physical
    copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2 expm1 fix float_power
    floor floor_divide fmax fmin fmod frac frexp gcd ge greater greater_equal gt heaviside hypot i0
    igamma igammac imag isclose isfinite isin isinf isnan isneginf isposinf isreal lcm ldexp le lerp
    less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not
    logical_or logical_xor logit lt maximum minimum mul multiply mvlgamma nan_to_num ne neg negative
    nextafter not_equal polar polygamma positive pow rad2deg real reciprocal remainder resolve_conj
    resolve_neg round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub subtract tan
    tanh true_divide trunc where xlogy
"""
_REDUCTIONS = """
    all allclose amax amin aminmax any argmax argmin argsort bincount count_nonzero cummax cummin
    cumprod cumsum cumulative_trapezoid dist equal histc histogram kthvalue logcumsumexp logsumexp
    max mean median min mode msort nanmean nanmedian nanquantile nansum norm prod quantile
    searchsorted bucketize sort std std_mean sum topk trapezoid trapz unique unique_consecutive var
    var_mean frobenius_norm nuclear_norm
"""
_MATRICES = """
    addbmm addmm addmv addr adjoint baddbmm bilinear bmm cdist chain_matmul cholesky
    cholesky_inverse cholesky_solve corrcoef cosine_similarity cov cross det dot einsum ger inner
    inverse kron logdet lu lu_solve matmul matrix_exp matrix_power mm mv outer pairwise_distance
    pdist pinverse qr renorm slogdet svd tensordot trace triangular_solve vander vdot
"""
_SHAPES = """
    argwhere as_strided as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag
    broadcast_shapes broadcast_tensors broadcast_to cartesian_prod cat chunk clone column_stack
    combinations concat concatenate constant_pad_nd contiguous detach diag diag_embed diagflat
    diagonal diagonal_scatter diff dsplit dstack expand expand_as fill fill_diagonal flatten flip
    fliplr flipud gather gradient hsplit hstack index_add index_copy index_fill index_put
    index_reduce index_select masked_fill masked_scatter masked_select meshgrid moveaxis movedim
    narrow narrow_copy nonzero permute put ravel repeat repeat_interleave reshape reshape_as roll
    rot90 row_stack scatter scatter_add scatter_reduce select select_scatter slice_scatter split
    split_with_sizes squeeze stack sum_to_size swapaxes swapdims t take take_along_dim tensor_split
    tile transpose tril triu unbind unflatten unfold unravel_index unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze view view_as view_as_complex view_as_real vsplit vstack zero
    copy
"""
_MADE = """
    arange as_tensor bartlett_window blackman_window empty empty_like eye full full_like
    hamming_window hann_window kaiser_window linspace logspace new_empty new_full new_ones new_zeros
    ones ones_like range scalar_tensor tensor tril_indices triu_indices zeros zeros_like
    bernoulli binomial cauchy exponential geometric log_normal multinomial normal poisson rand
    rand_like randint randint_like randn randn_like random randperm uniform
"""
_FACTS = """
    __and__ __contains__ __getitem__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__
    __or__ __rshift__ __xor__ bfloat16 bool can_cast chalf cpu dim double element_size float
    get_device half int is_complex is_contiguous is_floating_point is_inference is_nonzero
    is_same_size is_signed item long numel promote_types requires_grad_ result_type size stride to
    type type_as
"""
_NETWORKS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices
    adaptive_max_pool3d adaptive_max_pool3d_with_indices affine_grid affine_grid_generator
    alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm binary_cross_entropy
    binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d convolution cosine_embedding_loss
    cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu embedding embedding_bag
    fake_quantize_per_channel_affine fake_quantize_per_tensor_affine feature_alpha_dropout
    feature_dropout fold fractional_max_pool2d fractional_max_pool2d_with_indices
    fractional_max_pool3d fractional_max_pool3d_with_indices gaussian_nll_loss gelu glu grid_sample
    grid_sampler group_norm gru gru_cell gumbel_softmax hardshrink hardsigmoid hardswish hardtanh
    hinge_embedding_loss huber_loss instance_norm interpolate istft kl_div l1_loss layer_norm
    leaky_relu linear local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d lstm
    lstm_cell margin_ranking_loss max_pool1d max_pool1d_with_indices max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool1d max_unpool2d
    max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss native_batch_norm native_dropout native_group_norm native_layer_norm
    nll_loss normalize one_hot pad pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6
    rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell rrelu scaled_dot_product_attention selu
    silu smooth_l1_loss soft_margin_loss softmax softmin softplus softshrink softsign stft
    tanhshrink threshold triplet_margin_loss upsample upsample_bilinear upsample_nearest
"""
COMPUTES = _words(" ".join((_ELEMENTS, _REDUCTIONS, _MATRICES, _SHAPES, _MADE, _FACTS, _NETWORKS)))
"""Functions of torch and of `torch.nn.functional`, methods of tensors and operators of ATen.

An underscore at the end, which stands for the same in place, is left out.
"""
OF_ATEN = _words(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_scalar _assert_tensor_metadata _log_softmax
    _native_batch_norm_legit_no_training _safe_softmax _softmax _to_copy _unsafe_view alias col2im
    cross_entropy_loss im2col index lift_fresh_copy linalg_vector_norm log_sigmoid nll_loss_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d slice
    sym_numel sym_size upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """
)
"""Operators that only graphs of torch.export have."""
OF_PYTHON = {
    "builtins": _words("abs float getattr int len max min pow round sum"),
    "operator": _words(
        """
        abs add and_ concat contains countOf delitem eq floordiv ge getitem gt iadd iand iconcat
        ifloordiv ilshift imatmul imod imul index indexOf inv invert ior ipow irshift is_ is_not
        isub itruediv ixor le length_hint lshift lt matmul mod mul ne neg not_ or_ pos pow rshift
        setitem sub truediv truth xor
        """
    ),
    "math": _words(
        """
        acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees dist erf erfc exp
        exp2 expm1 fabs floor fmod frexp fsum gamma gcd hypot isclose isfinite isinf isnan isqrt lcm
        ldexp lgamma log log10 log1p log2 modf nextafter pow prod radians remainder sin sinh sqrt
        tan tanh trunc ulp
        """
    ),
}
"""Functions of Python by their module."""
ATTRIBUTES = frozenset(
    {
        "shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "is_cuda",
        "requires_grad", "T", "mT", "H", "mH", "real", "imag", "values", "indices",
    }
)  # fmt: skip
"""What `getattr` in a graph may ask for: facts about a tensor, and parts of what `max` gives."""
LAYERS = _words(
    """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss
    BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle CircularPad1d
    CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Conv1d Conv2d Conv3d
    ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity
    CrossEntropyLoss CrossMapLRN2d Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag
    FeatureAlphaDropout Flatten Fold FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell
    GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss
    Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LPPool1d LPPool2d
    LPPool3d LSTM LSTMCell LayerNorm LeakyReLU Linear LocalResponseNorm LogSigmoid LogSoftmax
    MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish
    MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention NLLLoss
    PReLU PairwiseDistance PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNCell
    RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d
    ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax
    Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold TripletMarginLoss
    Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """
)
"""Classes of `torch.nn` that are built from numbers and words alone.

Those with layers inside (`Transformer`, `TransformerEncoder`) and those that spread over devices
(`DataParallel`, `SyncBatchNorm`) come from a graph that is given, like custom classes.
"""


PLACES: Mapping[str, types.ModuleType] = {
    "torch.nn.functional": F,
    "torch": torch,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}
QUANTIZED = "chop.quantized"
TABLE = "chop.ops"
ATEN = "aten"
# What torch's own parser of arguments takes besides the names in the schema.
ALIASES = {"self": ("input", "x"), "dim": ("axis",), "keepdim": ("keepdims",)}
# Where a result is written, a source of random numbers, memory of a device: none of it is data.
NOT_DATA = frozenset({"out", "generator", "pin_memory", "rounders"})
_CAST, _SECTIONS = ("memory_format",), ("indices_or_sections",)
# Keywords of functions written in C that are in no schema, by the last part of their names.
STATED: Mapping[str, tuple[str, ...]] = {
    "builtins.max": ("default",), "builtins.min": ("default",), "builtins.sum": ("start",),
    "builtins.pow": ("base", "exp", "mod"), "builtins.round": ("ndigits",),
    "builtins.int": ("base",), "math.isclose": ("rel_tol", "abs_tol"), "math.prod": ("start",),
    "tensor": ("data", "dtype", "device", "requires_grad"), "nonzero": ("as_tuple",),
    "as_tensor": ("data", "dtype", "device"), "type": ("dtype", "non_blocking"),
    "unique": ("input", "sorted", "return_inverse", "return_counts", "dim"),
    "lu": ("A", "pivot", "get_infos"), "hsplit": _SECTIONS, "vsplit": _SECTIONS,
    "dsplit": _SECTIONS, "tensor_split": _SECTIONS, "float": _CAST, "double": _CAST,
    "half": _CAST, "bfloat16": _CAST, "bool": _CAST, "int": _CAST, "long": _CAST, "cpu": _CAST,
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def _functions(rows: int) -> dict[str, Callable[..., Any]]:
    """Every function that graphs may call while the table has so many rows."""
    found = {
        f"{place}.{name}": value
        for place, module in PLACES.items()
        for name, value in vars(module).items()
        if is_harmless(place, name, value)
    }
    known = set(map(id, found.values()))
    for op in OPS.values():  # rows that users add have custom functions
        for function in op.functions:
            if id(function) not in known:
                found[f"{TABLE}.{op.name}.{getattr(function, '__name__', '')}"] = function
    return found


def functions_by_name() -> dict[str, Callable[..., Any]]:
    """Every function that graphs from files may call, by each of its names."""
    return _functions(len(OPS))


@functools.lru_cache(maxsize=1)
def _names(rows: int) -> dict[Callable[..., Any], str]:
    """The first name of each function."""
    found: dict[Callable[..., Any], str] = {}
    for name, value in functions_by_name().items():
        found.setdefault(value, name)
    return found


def is_harmless(place: str, name: str, function: Any) -> bool:
    """True if a function of a place is on the list of those that compute."""
    if place in OF_PYTHON:
        return name in OF_PYTHON[place]
    known = isinstance(function, types.FunctionType | types.BuiltinFunctionType)
    return known and (op_of_function(function) is not None or computes(name))


def computes(name: str) -> bool:
    """True if a name of torch, in place or not, is on the list."""
    return name in COMPUTES or name.removesuffix("_") in COMPUTES


def function_name(function: Any) -> str | None:
    """The name under which a function is stored; None for a custom one."""
    if getattr(function, "__module__", None) == f"{HOME}.quantized_funcs":
        return f"{QUANTIZED}.{function.__name__}"
    if isinstance(function, torch._ops.OpOverload) and function.namespace == ATEN:
        name = function._schema.name.partition("::")[2]
        return f"{ATEN}.{name}.{function._overloadname}" if is_operator(function) else None
    try:
        first = _names(len(OPS)).get(function)
    except TypeError:  # not hashable
        return None
    # torch.mm equals torch.dsmm, which computes the same, but its code is to read as before.
    own = f"{str(first).rpartition('.')[0]}.{getattr(function, '__name__', '')}"
    return own if first and functions_by_name().get(own) == function else first


def function_by_name(name: str) -> Callable[..., Any]:
    """The function stored under a name; any other name raises ValueError."""
    place, _, last = name.rpartition(".")
    if place == QUANTIZED:
        try:
            return named_function(last)
        except AttributeError as error:
            raise ValueError(str(error)) from None
    if name.startswith(f"{ATEN}.") and name.count(".") == 2:
        return _aten(*name.split(".")[1:])
    if name not in functions_by_name():
        raise ValueError(f"{name!r:.60} is not a function that a graph may call")
    return functions_by_name()[name]


def _aten(name: str, overload: str) -> Callable[..., Any]:
    listed = computes(name) or name in OF_ATEN
    packet = getattr(torch.ops.aten, name, None) if listed else None
    found = getattr(packet, overload, None) if overload.isidentifier() else None
    if not isinstance(found, torch._ops.OpOverload) or not is_operator(found):
        raise ValueError(
            f"'aten.{name:.40}.{overload:.40}' is not a function that a graph may call"
        )
    return found


def is_operator(overload: torch._ops.OpOverload) -> bool:
    """True if an operator of ATen is on the list, and is not one of TorchScript's for texts."""
    schema = overload._schema
    name = schema.name.partition("::")[2]
    writes = any(argument.is_out for argument in schema.arguments)
    listed = computes(name) or name in OF_ATEN
    return listed and not writes and full_name(schema) in _operator_names()


def full_name(schema: torch.FunctionSchema) -> str:
    """The name of an operator with its overload."""
    return ".".join(filter(None, (schema.name, schema.overload_name)))


@functools.cache
def _operator_names() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def is_method(name: str) -> bool:
    """True if a graph from a file may call this method of tensors."""
    listed = computes(name) or op_of_method(name) is not None
    return listed and callable(getattr(torch.Tensor, name, None))


@functools.cache
def keywords(op: str, target: str) -> frozenset[str]:
    """The keywords that a function or method on the list takes, by its stored name."""
    place, _, last = target.rpartition(".")
    if place in OF_PYTHON:
        return frozenset(STATED.get(target, ()))
    method = op == "call_method"
    function: Any = getattr(torch.Tensor, target) if method else function_by_name(target)
    row = op_of_method(target) if method else op_of_function(function)
    if isinstance(function, torch._ops.OpOverload):  # whose schema says all
        row = None
    found = {*STATED.get(last, ()), *_parameters(function)}
    if row is not None:
        found |= {argument.name for argument in row.arguments}
    if place == QUANTIZED:
        assert row is not None
        found |= {"config", "inplace"}
        for each in (row.function, *row.functions):
            found |= _parameters(each)
    return frozenset(found - NOT_DATA - {"self"})


def _parameters(function: Any) -> set[str]:
    """The names of a function's arguments, from its source and from its schema."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return _of_schemas(function)
    found = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # one of two functions, chosen by a flag
        whole = getattr(F, f"{getattr(function, '__name__', '')}_with_indices", None)
        found |= set() if whole is None else _parameters(whole)
    return found | _of_schemas(function)


def _of_schemas(function: Any) -> set[str]:
    """The names of the arguments of all operators that go by a function's name."""
    if isinstance(function, torch._ops.OpOverload):
        return {argument.name for argument in function._schema.arguments}
    name = getattr(function, "__name__", "")
    spelt = {"logsigmoid": "log_sigmoid"}.get(name, name)
    names = {
        argument.name
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{spelt}")
        for argument in schema.arguments
        if not argument.is_out and full_name(schema) in _operator_names()
    }
    made = {"requires_grad"} if {"dtype", "device"} <= names else set()
    return names | made | {alias for each in names for alias in ALIASES.get(each, ())}
