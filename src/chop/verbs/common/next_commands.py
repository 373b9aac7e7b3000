"""The last lines of a command: what to run next, built from what is known to work."""

import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chop.errors import ChopError, GraphError
from chop.files import seen_from_here
from chop.loading.records import HUB
from chop.logger import get_logger

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

logger = get_logger("chop")


def show_next(commands: Iterable[str]) -> None:
    """Print what to run next."""
    for place, command in enumerate(commands):
        logger.info("%s %s", "Next:" if place == 0 else "or:  ", command)


def command(action: str, *words: str | Path, imports: Sequence[str] = ()) -> str:
    """Return a command as it can be typed here.

    Args:
        words: what follows the action; paths are shortened.
        imports: code of the user's that is to be run.
    """
    said = [seen_from_here(word) if isinstance(word, Path) else word for word in words]
    code = [part for each in imports for part in ("--import", each)]
    return shlex.join(["ch", action, *said, *code])


def command_on(
    action: str, load: Path, *more: str, model: str | None, imports: Sequence[str] = ()
) -> str:
    """Return a command on what a run has saved; the record of its project tells the rest.

    A model is named only if a file of the user's defines it, or if it would have to be fetched:
    neither happens unasked.

    Args:
        more: further words.
    """
    words = [each for each in imports if each.endswith(f":{model}")][:1]
    name = str(model)
    if name.startswith(HUB) and not Path(name.removeprefix(HUB)).expanduser().exists():
        words = [name]
    others = [each for each in imports if each not in words]
    return command(action, *words, "--load", load, *more, imports=others)


def export_words(graph: "MaseGraph") -> list[str]:
    """Return what ``ch export`` has to be told to write a graph as C; nothing is written here.

    Raises:
        GraphError: it cannot be written; the message says why.
    """
    from chop.lowering import lower

    checked = [] if shutil.which("cc") else ["--rows", "0"]
    try:
        lower(graph)
    except ChopError as error:
        if not ends_in_floats(graph):
            raise GraphError(str(error).partition("\n")[0]) from None
        return ["--to", "c", "--cut-tail", *checked]
    return ["--to", "c", *checked]


def ends_in_floats(graph: "MaseGraph") -> bool:
    """Return whether all that keeps a graph from being exported is without products, at its end."""
    from chop.lowering import lower
    from chop.ops.op import op_of_node

    try:
        tail = lower(graph, cut_tail=True).tail
    except ChopError:
        return False
    found = [op_of_node(node, graph.modules) for node in graph.nodes if node.name in tail]
    return all(op is not None and not op.multiplies for op in found)


def next_of_graph(
    graph: "MaseGraph", place: Path, *, model: str | None, imports: Sequence[str] = ()
) -> list[str]:
    """Return what to do with a saved graph: test it, and export it if its integers are known.

    What is not quantised has no integers; where something else is in the way that is said.
    """
    from chop.nn.quantized import QuantizedModule

    test = command_on("test", place, model=model, imports=imports)
    if not any(isinstance(part, QuantizedModule) for part in graph.model.modules()):
        return [test]
    try:
        words = export_words(graph)
    except GraphError as error:
        logger.info("It cannot be exported as it is: %s", error)
        return [test]
    return [command("export", "--load", place, *words), test]
