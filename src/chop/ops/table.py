"""The one table of operations."""

from chop.ops.activations import ACTIVATIONS
from chop.ops.functions import FUNCTIONS
from chop.ops.layers import LAYERS
from chop.ops.op import Op
from chop.ops.shapes import SHAPES
from chop.registry import Registry

OPS: Registry[Op] = Registry("operation")

for _op in (*LAYERS, *ACTIVATIONS, *FUNCTIONS, *SHAPES):
    OPS.add(_op.name, _op)
