import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from chop.errors import UnknownNameError
from chop.logger import (
    RESULT,
    get_logger,
    only_results,
    root_logger,
    set_logging_verbosity,
)


@pytest.fixture(autouse=True)
def _at_info() -> Iterator[None]:
    root_logger.setLevel(logging.INFO)
    yield
    root_logger.setLevel(logging.INFO)


def test_messages_are_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("chop").info("Initialising model %s...", "'jsc-tiny'")
    get_logger("chop.part").warning("careful")
    assert (
        capsys.readouterr().out == "INFO     Initialising model 'jsc-tiny'...\nWARNING  careful\n"
    )


def test_verbosity(capsys: pytest.CaptureFixture[str]) -> None:
    set_logging_verbosity("info")
    set_logging_verbosity("error")
    get_logger("chop").warning("unseen")
    assert capsys.readouterr().out == "INFO     Set logging level to info\n"


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(UnknownNameError, match="logging level 'inof': did you mean 'info'"):
        set_logging_verbosity("inof")


def test_a_message_appears_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        get_logger("chop")
    get_logger("chop").info("once")
    assert capsys.readouterr().out.count("once") == 1


HOSTILE = "a\x1b[31mb\u202ec\x9bd\rINFO\n     forged"
DEFUSED = "a\\x1b[31mb\\u202ec\\x9bd\\rINFO\\n     forged"


@pytest.mark.parametrize(
    ("message", "values", "wanted"),
    [
        ("The results are in %s", (HOSTILE,), f"The results are in {DEFUSED}"),
        ("%s and %s", (Path(HOSTILE), HOSTILE), f"{DEFUSED} and {DEFUSED}"),
        ("%d%% of %s", (5, HOSTILE), f"5% of {DEFUSED}"),
        ("Result\n%s\n\nIn %s", ("| a |\n| b |", HOSTILE), f"Result\n| a |\n| b |\n\nIn {DEFUSED}"),
        ("%s", ("| a\x1b |\n| b |",), "| a\\x1b |\n| b |"),
        (HOSTILE.replace("\n", ""), (), DEFUSED.replace("\\n", "")),
        ("%(name)s", ({"name": "a\x1b"},), "a\\x1b"),
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_obeys_nothing_in_a_message(
    quiet: bool, message: str, values: tuple[object, ...], wanted: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with only_results(quiet):
        get_logger("chop").info(message, *values, extra=RESULT)
    assert capsys.readouterr().out == ("" if quiet else "INFO     ") + wanted + "\n"
