"""Networks compiled by torch while they are trained or tested."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator

import torch
from torch import nn

from chop.errors import ConfigError

USUAL = "clang++" if sys.platform == "darwin" else "g++"


def require_compiler() -> None:
    """Refuse to compile where torch would find no C++ compiler."""
    named = os.environ.get("CXX") or USUAL  # as torch looks for it
    if shutil.which(named) is None:
        raise ConfigError(
            f"compile: torch needs a C++ compiler, and {named!r} was not found: install it, name "
            "another in the variable CXX, or leave out --compile"
        )


@contextlib.contextmanager
def compiled(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Calls of `model` run what torch makes of it; afterwards it is as it was.

    There is a program for each batch size, so that what is computed does not depend on the sizes
    that came before: a run that is resumed takes the same steps.
    """
    if not wanted:
        yield
        return
    require_compiler()
    from torch._dynamo.exc import TorchDynamoException

    torch._dynamo.reset()
    model.compile(dynamic=False)
    try:
        yield
    except TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"compile: torch cannot compile the network ({reason}); leave out --compile"
        ) from error
    finally:
        model._compiled_call_impl = None
