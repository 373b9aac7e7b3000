"""No password of a URL or a connection string is shown, whatever its form, wherever it is shown."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from chop import cli
from chop.config.layers import Layers, layers_table
from chop.errors import ConfigError
from chop.logger import CurrentStdout, get_logger, only_results
from chop.markup import escape
from chop.masking import mask_passwords, masked_url, printable, without_secrets
from chop.runs import write_record
from chop.search.config import parse_search
from chop.search.study.storage import Place, masked_storage, open_store

FORMS = {
    "user information": "postgresql://me:hunter2@host/db",
    "no user": "redis://:hunter2@host:6379/0",
    "driver": "postgresql+psycopg://me:hunter2@host:5432/db?connect_timeout=1",
    "upper case": "POSTGRESQL://ME:hunter2@HOST/DB",
    "several hosts": "postgresql://me:hunter2@one:1,two:2/db?target_session_attrs=any",
    "signs that are not encoded": "postgresql://me:hun@ter:2/hunter2@host/db",
    "a space": "postgresql://me:hunter1 hunter2@host/db",
    "encoded signs": "postgresql://me:%68unter2%40hunter2@host/db",
    "an encoded colon": "postgresql://me%3Ahunter2@host/db",
    "encoded user": "postgresql://m%65:hunter2@host/db",
    "query": "postgresql://host/db?user=me&password=hunter2",
    "query first": "postgresql:///db?password=hunter2&host=one",
    "query with a space": "postgresql://host/db?password=hunter1 hunter2&user=me",
    "query in upper case": "mysql://host/db?PASSWORD=hunter2",
    "encoded name": "postgresql://host/db?p%61ssword=hunter2",
    "passwd": "mysql+pymysql://me@host/db?passwd=hunter2",
    "pass": "mysql://me@host/db?pass=hunter2",
    "pwd": "mssql://host/db?pwd=hunter2;Encrypt=yes",
    "key of TLS": "postgresql://me@host/db?sslkey=a.key&sslpassword=hunter2",
    "both": "mysql://me:hunter2@host/db?ssl_key_password=hunter2",
    "several queries": "postgresql://h/db?host=a:1&host=b:2&password=hunter2&password=hunter2",
    "options": "postgresql://me@host/db?options=-c%20my.password%3Dhunter2",
    "a string inside": "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dhunter2%3BUID%3Dme",
    "a URL inside": "grpc://host:13000?to=postgresql%3A%2F%2Fme%3Ahunter2%40host%2Fdb",
    "proxy": "grpc://me:hunter2@host:13000",
    "token": "https://host/study?access_token=hunter2",
    "key": "https://host/study?api_key=hunter2",
    "libpq": "host=one user=me password=hunter2 dbname=db",
    "libpq with spaces": "user = me password = hunter2 host = one",
    "libpq with quotes": r"password='hunter1 \' hunter2' host=one",
    "environment": "PGPASSWORD=hunter2 PGHOST=one",
}  # fmt: skip
AS_A_WHOLE = ("a space", "query with a space")
"""Forms that can only be told where it is known that the whole text is a URL."""
IN_A_TEXT = {name: url for name, url in FORMS.items() if name not in AS_A_WHOLE}
SECRETS = ("hunter1", "hunter2", "unter2", "ter:2")


def assert_no_secret(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text], text


@pytest.mark.parametrize("url", FORMS.values(), ids=FORMS)
def test_a_url_is_shown_without_its_password(url: str) -> None:
    assert_no_secret(masked_url(url))
    assert "…" in masked_url(url)
    assert masked_url(url) == masked_storage(Place(url, "search"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:secret@host:5432/db?x=1", "postgresql://me:…@host:5432/db?x=1"),
        ("postgresql://host/db?password=secret&x=1", "postgresql://host/db?password=…&x=1"),
        ("(got 'a://b?pwd=secret')", "(got 'a://b?pwd=…')"),
        ("storage a://b?password=secret: cannot be", "storage a://b?password=…: cannot be"),
    ],
)
def test_all_but_the_password_stays(url: str, expected: str) -> None:
    assert mask_passwords(url) == expected


@pytest.mark.parametrize("unit", ["a=", "a%3D", "%25", "://a:", "password=", "a='", "a=%25 "])
def test_long_texts_take_no_longer_than_their_length(unit: str) -> None:
    text = f"x={unit * 20_000}"
    assert len(mask_passwords(text)) <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "postgresql://me@host:5432/db?connect_timeout=3",
        "sqlite:////tmp/a=b/study.db",
        "grpc://localhost:13000",
        "https://www.openml.org/d/42468 as described in x",
        "[passes.quantize.default.config] bypass = true, data_in_width = 8, max_tokens=3",
        "50 %3 = x",
        "100 % of 3 passes=2, tokenizer=x",
    ],
)
def test_what_is_no_password_is_shown(text: str) -> None:
    assert mask_passwords(text) == text


class Broken(Exception):
    """A driver's error that repeats what it was given."""


def _as_an_error(url: str, _: Path) -> str:
    return str(ConfigError(f"storage {url}: cannot be opened"))


def _as_a_message(url: str, _: Path) -> str:
    record = logging.makeLogRecord({"msg": "study in %s", "args": (url,)})
    return CurrentStdout().format(record)


def _as_settings(url: str, folder: Path) -> str:
    layers = Layers({"dataset_path": url}, {"load_name": url}, f"{folder}/run.toml")
    record = layers.record(["ch", "search", "--load", url, f"--load={url}"])
    written = write_record(folder, "search", record).read_text()
    assert json.loads(written)["command"][:2] == ["ch", "search"]
    table = layers_table(layers, colour=False)
    return "".join(line.replace("|", "").replace(" ", "") for line in table.split("\n")) + written


def _as_a_page(url: str, _: Path) -> str:
    return escape(f"ch search {url}")


PLACES: list[Callable[[str, Path], str]] = [_as_an_error, _as_a_message, _as_settings, _as_a_page]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("url", IN_A_TEXT.values(), ids=IN_A_TEXT)
def test_no_place_shows_a_password(
    url: str, place: Callable[[str, Path], str], tmp_path: Path
) -> None:
    text = place(url, tmp_path)
    assert_no_secret(text)
    assert "…" in text


@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["", "debug"])
@pytest.mark.parametrize("kind", [Broken, ConfigError])
@pytest.mark.parametrize("url", IN_A_TEXT.values(), ids=IN_A_TEXT)
def test_no_traceback_shows_a_password(
    url: str,
    kind: type[Exception],
    debug: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: list[str]) -> int:
        try:
            raise Broken(url)
        except Broken:
            raise kind(f"no way to {url}") from None

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["search", *debug]) == (2 if kind is ConfigError else 1)
    text = capsys.readouterr().err
    assert_no_secret(text)
    assert ("Traceback" in text) == bool(debug)


def test_quiet_runs_do_not_show_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    logger = get_logger("chop")
    with only_results():
        logger.error("lost %s", FORMS["query"])
    assert capsys.readouterr().out == "lost postgresql://host/db?user=me&password=…\n"


@pytest.mark.parametrize("url", FORMS.values(), ids=FORMS)
def test_a_storage_that_cannot_be_opened_keeps_its_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setup = {"storage": url, "sum_scaled_metrics": True}  # and no direction
    with pytest.raises(ConfigError) as caught:
        parse_search({"search_space": {"name": "x"}, "strategy": {"setup": setup, "metrics": {}}})
    assert_no_secret(str(caught.value))
    if "://" not in url:  # it would be the name of a file
        return
    monkeypatch.setattr("chop.search.study.storage._database", _repeating)
    monkeypatch.setattr("chop.search.study.storage._proxy", _repeating)
    with pytest.raises(ConfigError, match="cannot be opened") as caught:
        open_store(Place(url, "search"), ["minimize"], {})
    assert_no_secret(str(caught.value))


def _repeating(url: str) -> None:
    host = url.partition("@")[2] or url  # where a driver takes the first @ for the last
    raise Broken(f"no host {host!r} of {url}; port {url.rpartition(':')[2]!r}")


@pytest.mark.parametrize("url", [url for url in FORMS.values() if "://" not in url])
def test_a_connection_string_is_no_file(url: str) -> None:
    setup = {"storage": url}
    tables = {"search_space": {"name": "x"}, "strategy": {"setup": setup, "metrics": {}}}
    with pytest.raises(ConfigError, match="storage: a URL is expected, such as") as caught:
        parse_search(tables)
    assert_no_secret(str(caught.value))


def test_parts_of_a_password_are_not_repeated() -> None:
    url = "postgresql://me:hun@ter2/x@host/db"
    assert without_secrets("failed to resolve host 'ter2'", url) == "failed to resolve host '…'"


def test_control_characters_of_files_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[31mé\n") == "a\\x1b[31mé\\n"
