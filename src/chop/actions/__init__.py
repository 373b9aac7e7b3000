"""What `ch` does: train, test, transform, search. Each is also a function of plain arguments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chop.actions.session import Session

ACTIONS: dict[str, str] = {}
"""Where each action lives. Its module has a function of the action's name, for Python, and
`run(session)`, for the command line. Modules are named otherwise (`training`), because importing a
module `train` would put it in the place of the function `chop.actions.train`."""


def run_action(name: str, session: "Session") -> None:
    """Run an action as the command line does."""
    import_module(ACTIONS[name]).run(session)


def __getattr__(name: str) -> Any:
    """`chop.actions.train` and the others, imported when they are first asked for."""
    if name in ACTIONS:
        return getattr(import_module(ACTIONS[name]), name)
    raise AttributeError(f"module 'chop.actions' has no attribute {name!r}")
