"""A verb is added by one module: its request and its function are all that is needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest

import chop
from chop.cli import main
from chop.config.option import Option, Word
from chop.config.run import Debug, Quiet, RunConfig
from chop.config.verb import VERBS, Verb, add_verb, all_options, settings, verbs


@dataclass(frozen=True)
class GreetRequest:
    """Greet some people."""

    who: Annotated[str | None, Word("NAME", "who is greeted", needed=True)] = None
    times: Annotated[int, Option("how often", "greeting", above=0)] = 1
    quiet: Quiet = False
    to_debug: Debug = False


def greet(request: GreetRequest) -> list[str]:
    return [f"Hello {request.who}"] * request.times


@pytest.fixture
def verb() -> Iterator[Verb]:
    verbs()
    yield add_verb(
        Verb(
            "greet", GreetRequest, place=99, quiet="the greeting", function=greet,
            show=lambda lines, request: "\n".join(lines) + "\n",
        )
    )  # fmt: skip
    del VERBS["greet"]


@pytest.mark.usefixtures("verb")
class TestAdded:
    def test_the_command_line_runs_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["greet", "Ada", "--times", "2"]) == 0
        assert capsys.readouterr().out == "Hello Ada\nHello Ada\n"

    def test_python_runs_it(self) -> None:
        assert chop.greet("Ada", times=3) == ["Hello Ada"] * 3

    def test_the_help_shows_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--help"]) == 0
        assert "greet        greet some people" in capsys.readouterr().out
        assert main(["greet", "--help"]) == 0
        said = capsys.readouterr().out
        assert "ch greet NAME [options]" in said
        assert "--times N" in said

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["greet", "Ada", "--times", "0"], "--times: "),
            (["greet", "Ada", "Bob"], "unexpected argument 'Bob': write ch greet NAME [options]"),
            (["greet", "--width", "8"], "--width means nothing to greet: it is for quantize"),
            (["train", "--times", "2"], "--times means nothing to train: it is for greet"),
            (["gret"], "unknown action 'gret': did you mean 'greet'?"),
        ],
    )
    def test_its_mistakes_are_told(
        self, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words) == 2
        assert line in capsys.readouterr().err

    def test_it_is_not_a_key_of_files(self) -> None:
        assert "times" in all_options()
        assert "times" not in settings()


def test_every_verb_says_what_it_does_and_what_is_left_when_quiet() -> None:
    known = verbs()
    assert [name for name, each in known.items() if not (each.help and each.quiet)] == []
    assert len({each.place for each in known.values()}) == len(known)


def test_a_verb_either_runs_on_a_model_or_has_a_function() -> None:
    for verb in verbs().values():
        assert issubclass(verb.request, RunConfig) == bool(verb.home) == (verb.function is None)


def test_an_option_of_several_verbs_is_stated_once() -> None:
    from chop.config.option import declared_settings

    known = all_options()
    for verb in verbs().values():
        for name, each in declared_settings(verb.request).items():
            if name in verb.options:
                assert each.option is known[name].option, f"{verb.name}: {name}"
