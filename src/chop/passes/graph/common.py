"""The MASE types and which operations are of which type, derived from the operation table."""

from chop.ops.op import MaseType
from chop.ops.table import OPS

MASE_TYPES: list[str] = [str(mase_type) for mase_type in MaseType]
MASE_TYPE_MAP: dict[str, list[str]] = {
    mase_type: sorted(op.name for op in OPS.values() if op.mase_type == mase_type)
    for mase_type in MASE_TYPES
}
MASE_MODULE_RELATED_FUNCS = MASE_TYPE_MAP["module_related_func"]
MASE_MODULES = MASE_TYPE_MAP["module"]
MASE_BUILTIN_FUNCS = MASE_TYPE_MAP["builtin_func"]
MASE_IMPLICIT_FUNCS = MASE_TYPE_MAP["implicit_func"]
