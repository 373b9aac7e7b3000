"""Another path to the quantised functions: ``add_integer``, ``matmul_block_fp``."""

from chop.nn.function import named_function

__getattr__ = named_function
