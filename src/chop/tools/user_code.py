"""People's own models, data sets and passes: files whose decorators add to the registries."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from chop.errors import ChopError, RegistrationError

PACKAGE = "chop_user"


def import_user_code(names: list[str]) -> list[ModuleType]:
    """Import each file or module, once however often it is named."""
    return [
        _import_file(Path(name)) if name.endswith(".py") or "/" in name else _import(name)
        for name in names
    ]


def _import_file(path: Path) -> ModuleType:
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
