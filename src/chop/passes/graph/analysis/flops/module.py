"""The cost of one module from the tensors that go in and come out, in the units of the labs."""

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.recorder import preserve_model
from chop.ops.cost import Cost
from chop.ops.op import call_of_module, op_of_module

Tensors = Tensor | Sequence[Tensor | None] | None


def calculate_flops_pass(module: nn.Module, in_data: Tensors, out_data: Tensors) -> dict[str, int]:
    """The cost of a module on a whole batch, under the names that the labs use.

    One multiply-accumulate is one computation here, a bias adds one for each output, and whatever
    else a layer does adds its FLOPs. Backward takes twice the computations for a layer with
    products and as many as forward for any other. `count_operations` is the pass for whole graphs.
    """
    inputs, outputs = tensors(in_data), tensors(out_data)
    work = module_work(module, inputs, outputs)
    bias = getattr(module, "bias", None)
    additions = outputs[0].numel() if work.macs and isinstance(bias, Tensor) else 0
    computations = work.macs + work.other_flops + additions
    return {
        "total_parameters": sum(parameter.numel() for parameter in module.parameters()),
        "computations": computations,
        "backward_computations": computations * (2 if work.macs else 1),
        "input_buffer_size": sum(prod(tensor.shape) for tensor in inputs),
        "output_buffer_size": sum(prod(tensor.shape) for tensor in outputs),
    }


def tensors(data: Any) -> list[Tensor]:
    """The tensors among what a module was given or gave."""
    given = [data] if isinstance(data, Tensor) else list(data or ())
    return [each for each in given if isinstance(each, Tensor)]


def module_work(module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> Cost:
    """The work of a module, or an error that names the module."""
    op, kind = op_of_module(module), type(module).__name__
    if not inputs or not outputs:
        raise GraphError(f"the cost of {kind} needs an input tensor and an output tensor")
    with preserve_model(module):
        call = op and call_of_module(op, module, tuple(inputs), outputs[0])
        work = op.cost(call) if op and call else None
    if work is None:
        raise GraphError(f"the operations of {kind} cannot be counted: there is no rule for it")
    return work
