from pathlib import Path

import pytest

from chop.config import layers as toml
from chop.config.layers import na_to_none, none_to_na, read_toml, write_toml
from chop.errors import ConfigError


def test_none_survives_writing_and_reading(tmp_path: Path) -> None:
    tables = {"a": None, "b": [1, None], "c": {"d": None, "e": "text"}}
    write_toml(tmp_path / "x.toml", tables)
    assert read_toml(tmp_path / "x.toml") == tables
    assert tables["a"] is None


def test_the_originals_name_for_reading(tmp_path: Path) -> None:
    from chop.tools import load_config

    write_toml(tmp_path / "x.toml", {"a": None})
    assert load_config(str(tmp_path / "x.toml")) == {"a": None}


def test_only_the_string_na_means_none() -> None:
    value = {"x": "na", "y": 0, "z": False, "w": ["NA"]}
    assert na_to_none(value) == {"x": "na", "y": 0, "z": False, "w": [None]}
    assert none_to_na(na_to_none(value)) == value


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("")
    assert read_toml(tmp_path / "x.toml") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"not toml", "not valid TOML"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"x.toml: {message}"):
        read_toml(path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbfseed = 1")
    assert read_toml(tmp_path / "x.toml") == {"seed": 1}


def test_huge_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml, "MAX_BYTES", 10)
    (tmp_path / "x.toml").write_text("seed = 1234567")
    with pytest.raises(ConfigError, match="so not a configuration"):
        read_toml(tmp_path / "x.toml")


@pytest.mark.parametrize(("name", "message"), [("", "is a folder"), ("no.toml", "no such file")])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_toml(tmp_path / name)
