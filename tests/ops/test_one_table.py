"""Facts about operations stand in the table, not in lists of names elsewhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import chop
import chop.lowering  # which gives operations their rules
from chop.ops import OPS, Op, Reads

SOURCE = Path(chop.__file__).parent
OTHER_LANGUAGES = {
    "ir/graph/aten.py": "operators of ATen, which torch.export leaves",
    "nn/dispatched.py": "operators of ATen, which torch dispatches",
    "nn/untraced.py": "Python's operators",
    "ir/stored/numbers.py": "functions of Python's numbers",
    "ir/stored/targets.py": "the names that a graph from a file may call",
}
"""Files that name functions which happen to be called like operations."""
FEWEST = 3
"""Names that make a list; fewer are words such as min and max."""


def names_in(node: ast.AST) -> list[str]:
    parts: list[ast.expr | None] = []
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        parts = [*node.elts]
    elif isinstance(node, ast.Dict):
        parts = [*node.keys]
    constants = (part.value for part in parts if isinstance(part, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def lists_of_operations() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE).as_posix()
        if inside.startswith("ops/") or inside in OTHER_LANGUAGES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = names_in(node)
            known = [name for name in names if name in OPS and len(name) > 2]  # not: gt, le
            if len(known) >= max(FEWEST, len(names) / 2):
                yield f"{inside}:{getattr(node, 'lineno', 0)}: {', '.join(names)}"


def test_no_list_of_operations_stands_outside_the_table() -> None:
    assert list(lists_of_operations()) == []


def test_what_a_row_says_of_its_channels_fits_its_operands() -> None:
    for op in OPS.values():
        assert {*op.channels} <= {*op.roles, "data_out"}, op.name
        assert {*(op.summed or ())} <= {*op.roles}, op.name


def test_channels_of_operands() -> None:
    def shape(op: Op, role: str, *sizes: int) -> tuple[int, ...]:
        return op.channel_shape(role, sizes)

    assert shape(OPS["linear"], "data_in", 8, 5) == (5,)
    assert shape(OPS["linear"], "weight", 3, 5) == (3, 1)
    assert shape(OPS["linear"], "bias", 3) == (3,)
    assert shape(OPS["conv2d"], "data_out", 8, 6, 9, 9) == (6, 1, 1)
    assert shape(OPS["conv2d"], "weight", 6, 4, 3, 3) == (6, 1, 1, 1)
    assert shape(OPS["conv_transpose2d"], "weight", 4, 6, 3, 3) == (6, 1, 1)
    assert shape(OPS["batch_norm2d"], "data_in", 8, 6, 9, 9) == (6, 1, 1)
    assert shape(OPS["matmul"], "weight", 4, 6) == ()
    assert shape(OPS["relu"], "data_in", 8, 5) == ()


def test_what_only_moves_or_describes_is_not_rounded() -> None:
    alike = (Reads.SAME, Reads.MOVED, Reads.SHAPE)
    assert [op.name for op in OPS.values() if op.reads in alike and op.quantizable] == []
    assert all(op.lowering is not None for op in OPS.values() if op.reads in (*alike, Reads.PLACE))
