"""Quantised modules built like their float classes, with `config`, and the paths to them."""

from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
import torch
from ops.examples import FORMAT_NAMES, MODULE_OPS, config_of, module_example
from torch import nn
from torch.utils._pytree import tree_leaves

from chop.errors import ConfigError
from chop.ir.stored.layers import argument, argument_names
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import QuantizedModule, module_class, quantize_module
from chop.numerics import FORMATS
from chop.ops.op import Op
from chop.ops.table import OPS

CONFIG = {"data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8, "weight_frac_width": 4}
every_op = pytest.mark.parametrize("op", MODULE_OPS, ids=attrgetter("name"))


def integer(op_name: str) -> type[QuantizedModule]:
    return module_class(OPS[op_name], FORMATS["integer"])


@every_op
def test_a_module_built_directly_computes_as_a_quantised_one(op: Op) -> None:
    module, inputs = module_example(op, True)
    arguments = {name: argument(module, name) for name in argument_names(module)}
    for format_name in FORMAT_NAMES:
        config = config_of(format_name)
        expected = quantize_module(module, op, parse_quant_config(op, config, "test"))
        built = module_class(op, FORMATS[format_name])(**arguments, config=config)
        learned = {k: v for k, v in built.state_dict().items() if k.startswith("quantizers.")}
        built.train(module.training).load_state_dict(module.state_dict() | learned)
        results = []
        for each in (built, expected):
            torch.default_generator.manual_seed(1)  # fractional pools choose windows at random
            results.append(tree_leaves(each(*inputs)))
        assert all(map(torch.equal, *results)), format_name
        assert type(built) is type(expected)
        assert built.config == expected.config


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("linear", (16, 5), {}),
        ("linear", (16, 5, False), {"dtype": torch.float64}),
        ("conv2d", (3, 8, 3), {"padding": 1, "bias": False}),
        ("relu", (), {"inplace": True}),
        ("batch_norm1d", (4,), {"affine": False}),
    ],
)
def test_arguments_are_those_of_the_float_class(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    built = integer(op)(*args, config=CONFIG, **kwargs)
    torch.manual_seed(0)
    plain = integer(op).base(*args, **kwargs)
    assert {k: v.tolist() for k, v in built.state_dict().items()} == {
        k: v.tolist() for k, v in plain.state_dict().items()
    }
    assert built.config["data_in_width"] == 8


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "message"),
    [
        ("linear", (4, 4), {}, r"LinearInteger needs config=\{\.\.\.\}"),
        ("linear", (4, 4), {"config": {"data_in_widht": 8}}, "LinearInteger: unknown key"),
        ("linear", (4, 4), {"config": {"name": "log"}}, "LinearInteger"),
        ("embedding", (4, 4), {"config": CONFIG, "max_norm": 1.0}, "Embedding with max_norm"),
    ],
)
def test_mistakes_are_named(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        integer(op)(*args, **kwargs)


@every_op
def test_both_paths_lead_to_the_same_class(op: Op) -> None:
    """Printed paths stay those of the labs."""
    lab = import_module(f"chop.passes.graph.transforms.quantize.quantized_modules.{op.name}")
    later = import_module(f"chop.nn.quantized.modules.{op.name}")
    assert op.module is not None
    name = f"{op.module.__name__}Integer"
    assert getattr(later, name) is getattr(lab, name)
    assert getattr(import_module("chop.nn.quantized.modules"), op.name) is later
    assert getattr(later, name).__module__ in (lab.__name__, "chop.nn.quantized")
    with pytest.raises(AttributeError, match="LinearInteger'|is called 'Nothing'"):
        later.Nothing  # noqa: B018


def test_functions_have_a_second_path_too() -> None:
    functional = import_module("chop.nn.quantized.functional")
    lab = import_module("chop.passes.graph.transforms.quantize.quantized_funcs")
    assert functional.add_integer is lab.add_integer


def test_a_directly_built_module_in_a_network() -> None:
    from chop.ir.graph.mase_graph import MaseGraph

    model = nn.Sequential(integer("linear")(4, 3, config=CONFIG), nn.ReLU())
    graph = MaseGraph(model)
    x = torch.randn(2, 4)
    assert [node.op for node in graph.nodes].count("call_module") == 2
    assert torch.equal(graph.model(x), model(x))
    graph.model(x).sum().backward()
    assert model[0].weight.grad is not None
