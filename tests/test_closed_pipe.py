"""Nobody reads any more: the program hears of it, and no traceback of logging is printed."""

import logging

import pytest

from chop.logger import ToReader


class Closed:
    def write(self, text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_reader_that_has_gone_is_heard_of(capsys: pytest.CaptureFixture[str]) -> None:
    handler = ToReader(Closed())
    with pytest.raises(BrokenPipeError):
        handler.emit(logging.makeLogRecord({"msg": "hello"}))
    assert capsys.readouterr().err == ""


def test_other_mistakes_of_logging_end_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ToReader(Closed()).emit(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
    assert "--- Logging error ---" in capsys.readouterr().err
