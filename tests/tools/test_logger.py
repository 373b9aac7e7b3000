import logging
from collections.abc import Iterator

import pytest

from chop.errors import UnknownNameError
from chop.tools.logger import get_logger, root_logger, set_logging_verbosity


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
