"""Every module operation in every number format."""

import copy
import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
from operator import attrgetter
from typing import Any

import pytest
import torch
from ops.examples import FORMAT_NAMES, MODULE_OPS, config_of, module_example
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import chop.passes.graph.transforms.quantize.quantized_modules as quantized_modules
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedModule, module_class, quantize_module
from chop.numerics import FORMATS
from chop.ops.op import Op, op_of_module

every_op = pytest.mark.parametrize("op", MODULE_OPS, ids=attrgetter("name"))


def quantised(
    module: nn.Module, op: Op, format_name: str, **more: Any
) -> tuple[QuantizedModule, QuantConfig]:
    quant = parse_quant_config(op, config_of(format_name, **more), "test")
    return quantize_module(module, op, quant), quant


def run(module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    torch.default_generator.manual_seed(1)  # fractional pools choose their windows at random
    parts = tree_leaves(module(*inputs))  # recurrent layers give their state as well
    result: Tensor = parts[0] if len(parts) == 1 else torch.cat([x.flatten() for x in parts])
    return result


def explicitly_rounded(
    module: nn.Module, inputs: tuple[Tensor, ...], quant: QuantConfig
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A float module whose parameters, and inputs, hold the rounded values."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(quant.operands[name](parameter))
    rounded = (quant.operands["data_in"](x) if x.is_floating_point() else x for x in inputs)
    return module, tuple(rounded)


# Recurrent layers round inside, too: tests/nn/test_recurrent.py.
@pytest.mark.parametrize("op", [op for op in MODULE_OPS if not op.inner], ids=attrgetter("name"))
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_it_is_the_float_operation_on_rounded_operands(op: Op, bias: bool) -> None:
    module, inputs = module_example(op, bias)
    for format_name in FORMAT_NAMES:
        new, quant = quantised(module, op, format_name)
        result = run(new, inputs)
        assert result.isfinite().all(), format_name
        expected = run(*explicitly_rounded(module, inputs, quant))
        assert torch.equal(result, expected), format_name


@every_op
def test_bypass_is_the_float_operation(op: Op) -> None:
    module, inputs = module_example(op)
    for format_name in FORMAT_NAMES:
        new, _ = quantised(module, op, format_name, bypass=True)
        assert torch.equal(run(new, inputs), run(module, inputs))


@every_op
def test_state_survives_and_copies_compute_alike(op: Op) -> None:
    module, inputs = module_example(op)
    for format_name in FORMAT_NAMES:
        new, quant = quantised(module, op, format_name)
        plain = [name for name in new.state_dict() if not name.startswith("quantizers.")]
        assert plain == list(module.state_dict())
        assert (plain == list(new.state_dict())) == (not new.quantizers_by_role)
        expected = run(new, inputs)
        for twin in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
            assert type(twin) is type(new)
            assert twin.quant == quant
            assert torch.equal(run(twin, inputs), expected)


@every_op
def test_what_users_see(op: Op) -> None:
    module, _ = module_example(op)
    assert op.module is not None
    for format_name in FORMAT_NAMES:
        new, _ = quantised(module, op, format_name)
        cls = type(new)
        assert cls.__name__ == op.module.__name__ + FORMATS[format_name].label
        assert getattr(importlib.import_module(cls.__module__), cls.__name__) is cls
        assert cls is module_class(op, FORMATS[format_name])
        assert isinstance(new, op.module)
        assert op_of_module(new) is op
        assert repr(new).startswith(cls.__name__ + "(")
        assert parse_quant_config(op, new.config, "test") == new.quant


def test_the_printed_class_is_that_of_the_labs() -> None:
    op = next(op for op in MODULE_OPS if op.name == "linear")
    new, _ = quantised(nn.Linear(3, 2), op, "integer")
    home = "chop.passes.graph.transforms.quantize.quantized_modules.linear"
    assert str(type(new)) == f"<class '{home}.LinearInteger'>"
    assert repr(new) == (
        "LinearInteger(in_features=3, out_features=2, bias=True;"
        " data_in, weight, bias: width=8, frac_width=4)"
    )


def test_there_is_a_module_for_every_module_operation() -> None:
    inside = {name for name, value in vars(quantized_modules).items() if inspect.ismodule(value)}
    assert inside == {op.name for op in MODULE_OPS}
    for name in inside:
        path = f"{quantized_modules.__name__}.{name}"
        module = importlib.import_module(path)
        assert module is sys.modules[path] is getattr(quantized_modules, name)
        assert module.__name__ == path
        assert importlib.util.find_spec(path) is module.__spec__


IMPORTS = """
import pickle
import subprocess
import sys
import chop.passes.graph.transforms.quantize.quantized_modules.linear as first
from chop.passes.graph.transforms.quantize.quantized_modules import linear as second
from chop.passes.graph.transforms.quantize.quantized_modules.linear import LinearInteger
from chop.passes.graph.transforms.quantize.quantized_modules.conv2d import Conv2dBlockFP
assert first is second and first.LinearInteger is LinearInteger
assert pickle.loads(pickle.dumps(LinearInteger)) is LinearInteger
print(LinearInteger, Conv2dBlockFP)
"""


def test_every_way_to_import_works_in_a_fresh_python() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTS], text=True, capture_output=True)
    home = quantized_modules.__name__
    expected = f"<class '{home}.linear.LinearInteger'> <class '{home}.conv2d.Conv2dBlockFP'>\n"
    assert found.stdout == expected, found.stderr


def test_a_class_that_does_not_exist_names_the_nearest() -> None:
    linear = importlib.import_module(f"{quantized_modules.__name__}.linear")
    with pytest.raises(AttributeError, match="did you mean 'LinearInteger'"):
        _ = linear.LinearIntegr
