"""People's own models, data sets and passes: files whose decorators add to the registries."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from chop.errors import ChopError, RegistrationError, suggestion
from chop.files import check_nameable

PACKAGE = "chop_user"


_MODELS: set[tuple[str, str]] = set()
"""Files and the names in them that were made models."""


def import_user_code(names: list[str]) -> list[ModuleType]:
    """Import each file or module, once however often it is named.

    ``my_net.py:Net`` also makes `Net` of that file a model, which needs no decorator.
    """
    return [_import_named(name) for name in names]


def _import_named(name: str) -> ModuleType:
    path, _, model = name.rpartition(":")
    if path.endswith(".py"):
        return _import_model(path, model)
    return _import_file(Path(name)) if name.endswith(".py") or "/" in name else _import(name)


def _import_model(path: str, name: str) -> ModuleType:
    """Import a file, and make a class or function in it a model, unless a decorator does."""
    from chop.models.info import MODELS, register_model

    was_there = name in MODELS
    module = _import_file(Path(path))
    if was_there and (module.__name__, name) in _MODELS:
        return module
    builder = getattr(module, name, None)
    if not callable(builder):
        own = [key for key, value in vars(module).items() if _is_made_in(value, module)]
        raise RegistrationError(
            f"{path}: has no class or function {name!r}: {suggestion(name, own)}"
        )
    if was_there or name not in MODELS:
        register_model(name)(builder)
    _MODELS.add((module.__name__, name))
    return module


def _is_made_in(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def _import_file(path: Path) -> ModuleType:
    check_nameable(path, "--import")
    if not path.is_file():
        raise RegistrationError(f"{path}: there is no such Python file to import")
    module_name = f"{PACKAGE}.{path.resolve()}"  # by place, so that two files may share a name
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RegistrationError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(PACKAGE, ModuleType(PACKAGE))  # or other processes could not be sent it
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        raise _failure(str(path), error) from error
    return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise _failure(name, error) from error
        message = f"no module {name!r}: give a file ending in .py or an installed module"
        raise RegistrationError(message) from None
    except Exception as error:
        raise _failure(name, error) from error


def _failure(name: str, error: BaseException) -> BaseException:
    """One line for whatever a user's file does wrong; Ctrl-C stays what it is."""
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, ChopError):
        return RegistrationError(f"{name}: {error}")
    line = _line_in(name, error)
    return RegistrationError(f"{name}{line}: {type(error).__name__}: {error}")


def _line_in(name: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith(Path(name).name)]
    return f", line {lines[-1]}" if lines else ""
