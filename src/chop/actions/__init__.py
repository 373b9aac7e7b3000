"""What `ch` does: train, test, transform, search. Each is also a function of plain arguments.

`quantizing` is a transform in one line; `searching.one_by_one` measures each layer by itself.

`session` is what every action starts from: settings, model, data, output folder, random numbers.
`comparing` runs searches side by side and `reporting` writes the page of a run; `doctor` looks at
the machine, and `schema` describes configuration files for editors.
"""

from importlib import import_module
from typing import Any

ACTIONS: dict[str, str] = {
    "train": "chop.actions.training",
    "test": "chop.actions.testing",
    "transform": "chop.actions.transforming",
    "search": "chop.actions.searching",
    "quantize": "chop.actions.quantizing",
    "sensitivity": "chop.actions.searching.one_by_one",
}
"""Where each action lives. Its module has a function of the action's name, for Python, and
`run(session)`, for the command line; a `check(config)` refuses mistakes before anything is built.
Modules are named otherwise (`training`), because importing a module `train` would put it in the
place of the function `chop.actions.train`; that path of the original is one of `chop.aliases`."""


def __getattr__(name: str) -> Any:
    """`chop.actions.train` and the others, imported when they are first asked for."""
    if name in ACTIONS:
        return getattr(import_module(ACTIONS[name]), name)
    raise AttributeError(f"module 'chop.actions' has no attribute {name!r}")
