"""The registry of verbs: what ``ch`` and Python can be asked to do.

A verb is a request, whose fields are its flags, keys and keywords, and the function that does it.
Standard library only, as for `chop.config.option`: the verbs' heavy code is imported by their
functions.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from chop.config.option import Option, Setting, Word, declared_settings
from chop.config.run import GENERAL, RunConfig

CONFIG = Setting(
    "config", str | None, None,
    Option("TOML file of settings", GENERAL, ("--config",), names="file"),
)  # fmt: skip


@dataclass(frozen=True)
class Verb:
    """One verb.

    Args:
        request: its class; the docstring is the help of the verb.
        home: the module of a verb that runs on a model: it has `run_<verb>(session)`, and
            `check_<verb>(request)` to refuse mistakes before a model is built.
        function: what any other verb does with a request.
        quiet: what is shown with ``--quiet``.
        place: where it stands among the others.
        show: the text for a terminal, of a result and its request.
        python: the function that Python calls, as ``module:name``, where that takes objects in
            place of names; else the fields of the request are its arguments.
    """

    name: str
    request: type[Any]
    place: int
    quiet: str = ""
    home: str = ""
    function: Callable[[Any], Any] | None = None
    show: Callable[[Any, Any], str] | None = None
    python: str = ""

    @property
    def help(self) -> str:
        """A line that says what it does."""
        text = inspect.cleandoc(self.request.__doc__ or "").partition("\n\n")[0]
        text = " ".join(text.split()).removesuffix(".")
        return f"{text[:1].lower()}{text[1:]}"

    @property
    def takes_settings(self) -> bool:
        """Return whether it runs on a model, with the settings of a file and a record."""
        return issubclass(self.request, RunConfig)

    @property
    def words(self) -> dict[str, Word]:
        """The fields that it takes by position."""
        found = declared_settings(self.request).items()
        return {name: each.option.word for name, each in found if each.option.word is not None}

    @property
    def usage(self) -> str:
        """The words after ``ch`` and the verb, without options."""
        return " ".join(word.usage for word in self.words.values())

    @property
    def options(self) -> tuple[str, ...]:
        """The fields that have flags."""
        own = [
            name
            for name, each in declared_settings(self.request).items()
            if flags_of(each) and self.name in (each.option.actions or (self.name,))
        ]
        return (*["config"] * self.takes_settings, *own)

    @property
    def in_python(self) -> Callable[..., Any]:
        """The function that Python calls, of objects or of the fields of the request."""
        if not self.python:
            return self
        module, _, function = self.python.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), function)
        return found

    @property
    def work(self) -> Callable[[Any], Any]:
        """The function of its home that runs it in a session."""
        found: Callable[[Any], Any] = getattr(import_module(self.home), f"run_{self.name}")
        return found

    def refuse_mistakes(self, request: Any) -> None:
        """Check a request as its home does, if that has anything to check."""
        getattr(import_module(self.home), f"check_{self.name}", lambda _: None)(request)

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Do what the fields of a request say."""
        if self.function is None:
            raise TypeError(f"{self.name} takes objects: call chop.{self.name}")
        return self.function(self.request(*values, **named))


VERBS: dict[str, Verb] = {}


def add_verb(verb: Verb) -> Verb:
    """Add a verb to those of ``ch`` and of `chop`."""
    VERBS[verb.name] = verb
    return verb


def verbs() -> dict[str, Verb]:
    """Return all verbs in their order."""
    import_module("chop.verbs")  # whose modules add theirs
    return dict(sorted(VERBS.items(), key=lambda each: each[1].place))


def settings() -> dict[str, Setting]:
    """Return every key of a configuration file, which serves all verbs that run on a model."""
    found = dict(declared_settings(RunConfig))
    for verb in verbs().values():
        if verb.takes_settings:
            found |= declared_settings(verb.request)
    return found


def all_options() -> dict[str, Setting]:
    """Return all that stands on a command line, with a flag or by position."""
    found = {"config": CONFIG, **settings()}
    for verb in verbs().values():
        found |= declared_settings(verb.request)
    return found


def flags_of(setting: Setting) -> tuple[str, ...]:
    """The flags of a setting; none for a word given by position or a setting of files only."""
    if not setting.option.group or setting.option.word is not None:
        return ()
    return setting.option.flags or ("--" + setting.name.replace("_", "-"),)


def main_flag(setting: Setting) -> str:
    """The flag that stands for a setting in messages: the last long one."""
    return next((flag for flag in reversed(flags_of(setting)) if flag.startswith("--")), "")
