"""The device and the threads of a network on this machine, and torch's compiler."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from chop.errors import ConfigError


def device_of(accelerator: str) -> torch.device:
    """The device that an accelerator setting stands for."""
    if accelerator in ("gpu", "auto") and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator in ("mps", "auto") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


SMALL_FLOPS = 10_000_000
"""Below this many operations for a batch, a second thread costs more than it brings.

Measured with multilayer perceptrons and small convolutional networks on two cores: 1.0 times the
speed at 3 million operations, 1.1 to 1.4 at 10 million, 1.6 at 140 million. The choice depends on
the network alone and not on a measurement, as the number of threads can change the last bit of a
sum, and a seed must give the same weights every time.
"""


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts by torch's own table, as its `FlopCounterMode` does.

    That one imports torch's compiler when it is used, which takes longer than testing does.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # asked by torch: to skip the compiler it would first be imported

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what is asked, and count it, or what it consists of."""
        kwargs = kwargs or {}
        count = flop_registry.get(func.overloadpacket)
        if count is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if parts is NotImplemented else parts
        result = func(*args, **kwargs)
        self.total += int(count(*args, **kwargs, out_val=result))
        return result


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as the operations it consists of: torch counts nothing for the whole."""
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


def forward_operations(model: nn.Module, features: Tensor, axes: int = 1) -> tuple[int, int]:
    """The multiplications and additions of one batch, and the numbers that come out for each row.

    Args:
        axes: of what is predicted: 1 for something for each row, 2 for each token; 0 also takes a
            single number for each row.
    """
    with OperationCounter() as counter, torch.no_grad(), _plain_attention():
        logits = model(features.clone())  # a model may change what it is given
    if isinstance(logits, Tensor) and axes == 0 and logits.ndim == 1:
        return counter.total, 1
    if not isinstance(logits, Tensor) or logits.ndim != max(axes, 1) + 1:
        each = "token" if axes == 2 else "row"
        raise ValueError(f"it does not return one row of numbers for each {each}")
    return counter.total, logits.shape[-1]


@contextlib.contextmanager
def using_threads(count: int | None, operations: int) -> Iterator[int]:
    """Run with `count` threads, or with as many as the network is worth."""
    before = torch.get_num_threads()
    chosen = count or (1 if operations < SMALL_FLOPS else before)
    torch.set_num_threads(chosen)
    try:
        yield chosen
    finally:
        torch.set_num_threads(before)


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
def compile_calls(model: nn.Module, wanted: bool) -> Iterator[None]:
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
