"""Packages that are functions as well: ``chop.search(model, …)`` beside ``chop.search.runners``."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def callable_package(package: str, module: str, function: str) -> None:
    """Let calls of a package go to a function, whose module is imported with the first of them."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(module), function)(*args, **kwargs)

    CallablePackage.__call__.__doc__ = f"As `{module}.{function}`."
    sys.modules[package].__class__ = CallablePackage
