"""Import paths of the original whose code has another home here.

A path of this table is imported as any other module is; it is then the module that it stands for.
Code that lives on under the original's path needs no line here.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from chop.callables import callable_package

ANALYSIS = "chop.passes.graph.analysis"
TRANSFORMS = "chop.passes.graph.transforms"
ALIASES = {
    "chop.actions.search": "chop.verbs.search.job",
    "chop.actions.test": "chop.verbs.test.testing",
    "chop.actions.train": "chop.verbs.train.training",
    "chop.actions.transform": "chop.verbs.transform.passes",
    "chop.actions.comparing": "chop.verbs.search.comparing",
    "chop.actions.exporting": "chop.verbs.export.saved",
    "chop.actions.fronts": "chop.verbs.compare",
    "chop.actions.reporting": "chop.verbs.report",
    "chop.actions.searching": "chop.verbs.search.job",
    "chop.actions": "chop.labs.actions",
    "chop.ir.graph.mase_metadata": "chop.ir.graph.mase_graph",
    "chop.models.toy": "chop.models.toys",
    "chop.models.utils": "chop.models.info",
    "chop.passes.graph.mase_graph": "chop.ir.graph.mase_graph",
    "chop.passes.analysis": ANALYSIS,
    "chop.passes.transforms": TRANSFORMS,
    "chop.passes.utils": "chop.passes.graph.utils",
    f"{ANALYSIS}.init_metadata": f"{ANALYSIS}.add_metadata",
    f"{TRANSFORMS}.pruning.prune_detach_hook": f"{TRANSFORMS}.pruning.prune",
    f"{TRANSFORMS}.quantize.summary": f"{TRANSFORMS}.quantize",
    f"{TRANSFORMS}.utils.conv_bn_fusion": f"{TRANSFORMS}.fusion",
    f"{TRANSFORMS}.utils": TRANSFORMS,
    "chop.pipelines": "chop.passes.pipeline",
    "chop.tools.checkpoint_load": "chop.loading.networks",
    "chop.tools.get_input": "chop.dataset.inputs",
    "chop.tools.logger": "chop.logger",
    "chop.tools.tokenized": "chop.loading.tokenized",
    "chop.tools.user_code": "chop.loading.user_code",
    "chop.tools.utils": "chop.passes.graph.utils",
    "chop.tools": "chop.labs.tools",
}
"""Where the code of a path is, and with it that of all paths below it."""
CALLED = "chop.actions."
"""Paths that are functions, too: ``chop.actions.train(…)`` works after
``from chop.actions.train import train``."""


def home_of(path: str) -> str | None:
    """Return the module that a path of the original stands for, if it is not its own."""
    beginning = next((each for each in ALIASES if f"{path}.".startswith(f"{each}.")), None)
    return None if beginning is None else ALIASES[beginning] + path.removeprefix(beginning)


class AliasLoader:
    """Puts the module that a path stands for in the place of the path's own."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let Python make the module that is replaced."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__
        home = import_module(home_of(path) or path)
        if not hasattr(home, "__path__"):
            home.__path__ = []  # a path of the table may have others below it
        if path.startswith(CALLED):
            callable_package(home.__name__, home.__name__, path.removeprefix(CALLED))
        sys.modules[path] = home


class AliasFinder:
    """Finds the paths of the table, before Python looks for files below a home."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if home_of(fullname) is None:
            return None
        # A `Loader` of importlib.abc would cost each start of `ch` the import of that module.
        return ModuleSpec(fullname, AliasLoader())  # type: ignore[arg-type]


def install_aliases() -> None:
    """Let Python find the paths of the table."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
