"""What `ch` does: train, test, transform, search. Each is also a function of plain arguments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chop.config.run import RunConfig

ACTIONS: dict[str, str] = {
    "train": "chop.actions.training",
    "test": "chop.actions.testing",
    "transform": "chop.actions.transforming",
    "search": "chop.actions.searching",
}
"""Where each action lives. Its module has a function of the action's name, for Python, and
`run(session)`, for the command line; a `check(config)` refuses mistakes before anything is built.
Modules are named otherwise (`training`), because importing a module `train` would put it in the
place of the function `chop.actions.train`."""


def run_action(name: str, config: "RunConfig", record: dict[str, Any]) -> None:
    """Run an action as the command line does; `record` tells what was run, to be stored."""
    from chop.actions.session import keep_record, open_session, project_folder
    from chop.files import nothing_left_behind

    module = import_module(ACTIONS[name])
    session = open_session(config, record, getattr(module, "check", None))
    with nothing_left_behind(project_folder(config)):
        keep_record(session, name, module.run(session))


def __getattr__(name: str) -> Any:
    """`chop.actions.train` and the others, imported when they are first asked for."""
    if name in ACTIONS:
        return getattr(import_module(ACTIONS[name]), name)
    raise AttributeError(f"module 'chop.actions' has no attribute {name!r}")
