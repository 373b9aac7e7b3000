"""The one table of operations, filled row by row."""

from chop.ops.activations import ACTIVATIONS
from chop.ops.data_movement import DATA_MOVEMENT
from chop.ops.functions import FUNCTIONS
from chop.ops.layers import LAYERS
from chop.ops.op import OPS

__all__ = ["OPS"]

for _op in (*LAYERS, *ACTIVATIONS, *FUNCTIONS, *DATA_MOVEMENT):
    OPS.add(_op.name, _op)
