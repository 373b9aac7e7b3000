"""Another path to the quantised modules: ``chop.nn.quantized.modules.linear.LinearInteger``.

The module of each operation is made here from its row in the table.
"""

import sys
from types import ModuleType

from chop.nn.quantized.generic import named_classes
from chop.ops.table import OPS

for _op in OPS.values():
    if _op.module is not None and _op.quantizable:
        _module = ModuleType(f"{__name__}.{_op.name}", f"Every quantised form of `{_op.name}`.")
        _module.__getattr__ = named_classes(_op.name)  # type: ignore[method-assign]
        sys.modules[_module.__name__] = globals()[_op.name] = _module
