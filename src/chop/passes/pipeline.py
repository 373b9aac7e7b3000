"""Pipelines: passes that run one after the other on a graph."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info, Pass
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_transform_pass,
    quantize_transform_pass,
)

OUTPUT_OF = "self/"
"""Begins a text that stands for what an earlier pass has found."""
Skip = str | Callable[..., Any]


class AutoPipeline:
    """Passes in their order, called as ``graph, found = pipeline(graph, pass_args)``.

    Args:
        pass_list: the passes. One that changes the graph and is given no arguments is left out.
    """

    def __init__(self, pass_list: Sequence[Pass]) -> None:
        if not pass_list or not all(isinstance(each, Pass) for each in pass_list):
            raise ConfigError("a pipeline is made of a list of passes")
        self.pass_list = tuple(pass_list)

    def __call__(
        self,
        mg: MaseGraph,
        pass_args: Mapping[str, Any] | None = None,
        skip_passes: Collection[Skip] = (),
    ) -> tuple[MaseGraph, dict[str, Info]]:
        """Run the passes; the graph, and what each pass has found, by its name.

        Args:
            pass_args: arguments of each pass by its name, ``quantize_transform_pass`` or
                ``quantize``. In them, ``"self/<name of a pass>"`` stands for what that has found.
            skip_passes: passes to leave out, or their names.
        """
        given = {
            self.function_name(name): dict(args or {}) for name, args in (pass_args or {}).items()
        }
        skipped = {self.function_name(each if isinstance(each, str) else each.__name__)
                   for each in skip_passes}  # fmt: skip
        found: dict[str, Info] = {}
        for each in self.pass_list:
            name = each.__name__
            needless = each.kind == "transform" and name not in given
            if name not in skipped and not needless:
                mg, found[name] = each(mg, self.fill(given.get(name, {}), found))
        return mg, found

    def function_name(self, name: str) -> str:
        """The name of the function of a pass, from that or from the name it has in a file."""
        names = {key: each.__name__ for each in self.pass_list for key in (each.name,)}
        names |= {each.__name__: each.__name__ for each in self.pass_list}
        if name not in names:
            raise UnknownNameError("pass", name, names, f"{type(self).__name__}")
        return names[name]

    def fill(self, args: Mapping[str, Any], found: Mapping[str, Info]) -> dict[str, Any]:
        """Arguments in which each reference has become what it stands for."""
        return {key: self.value(value, found) for key, value in args.items()}

    def value(self, value: Any, found: Mapping[str, Info]) -> Any:
        """An argument, or what it refers to."""
        if not (isinstance(value, str) and value.startswith(OUTPUT_OF)):
            return value
        name = self.function_name(value.removeprefix(OUTPUT_OF))
        if name not in found:
            raise ConfigError(f"{value!r}: that pass has not run before")
        return found[name]


class CompressionPipeline(AutoPipeline):
    """Metadata, then quantise, then prune: each of the two if it is given arguments."""

    def __init__(self) -> None:
        super().__init__(
            [
                init_metadata_analysis_pass,
                add_common_metadata_analysis_pass,
                quantize_transform_pass,
                prune_transform_pass,
            ]
        )
