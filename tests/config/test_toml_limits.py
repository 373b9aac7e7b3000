"""Files of settings that are too deep, too large or not files: each is refused in one line."""

import os
from pathlib import Path

import pytest

from chop.config.layers import DEEPEST, read_toml
from chop.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a" + ".a" * 50 + " = 1", "nested more than"),
        ("a" + ".a" * 900_000 + " = 1", "a key has more than"),
        ("b = {a" + ".a" * 900_000 + " = 1}", "a key has more than"),
        ("a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested more than"),
        (f"a = {'9' * 5000}", "not valid TOML"),
        (f"a = [{2**63}]", "more than 64 bits"),
        ('[a]\nb = ["c\\u0000d"]', "holds a zero byte"),
        ("[a]\nb = [1, {c = 2024-02-29}]", r"a\.b\.1\.c is the date or time 2024-02-29"),
        ("a = 01:02:03", "a is the date or time 01:02:03"),
        ("a = 2024-02-29T00:00:00Z", "a is the date or time 2024-02-29 00:00:00"),
    ],
    ids=[
        "dotted",
        "endless dotted",
        "inline",
        "lists",
        "long number",
        "65 bits",
        "zero byte",
        "date",
        "time",
        "moment",
    ],
)
def test_what_no_configuration_says_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.toml: .*{message}"):
        read_toml(path)


def test_what_is_deep_or_large_enough_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"a = {'[' * (DEEPEST - 1)}{']' * (DEEPEST - 1)}\nb = {2**63 - 1}")
    assert read_toml(path)["b"] == 2**63 - 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_toml(tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_toml(Path("/dev/zero"))
