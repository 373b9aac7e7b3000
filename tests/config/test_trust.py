import os
import re
from pathlib import Path

import pytest

from chop.config.layers import check_imports, load_config
from chop.errors import ConfigError

ITS, THEIR = (f"which would run {whose} code: add" for whose in ("its", "their"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, a link to it and a link to the folder itself, to be in."""
    (tmp_path / "own.py").touch()
    (tmp_path / "link.py").symlink_to("own.py")
    (tmp_path / "here").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", ["own.py", "./own.py", "link.py", "here/own.py", "FOLDER/own.py"])
@pytest.mark.parametrize("needed", ["own.py", "here/here/own.py", "FOLDER/./own.py"])
def test_one_file_has_many_spellings(folder: Path, needed: str, given: str) -> None:
    needed, given = (name.replace("FOLDER", str(folder)) for name in (needed, given))
    check_imports([needed], ["other.py", given], "my.toml")


def test_modules_go_by_their_names() -> None:
    check_imports(["package.module"], ["package.module"], "my.toml")
    for other in ("package", "package.other", "package/module.py", "module"):
        with pytest.raises(ConfigError, match="imports 'package.module'"):
            check_imports(["package.module"], [other], "my.toml")


@pytest.mark.parametrize(
    ("needed", "given", "message"),
    [
        (["own.py"], [], f"'own.py', {ITS} --import own.py if you trust it"),
        (["own.py", "b.py"], ["own.py"], f"'b.py', {ITS} --import b.py if you trust it"),
        (
            ["b.py", "own.py", "b.py"], ["c.py"],
            f"'b.py', 'own.py', {THEIR} --import b.py --import own.py if you trust them",
        ),
        (["sub/own.py"], ["own.py"], f"'sub/own.py', {ITS} --import sub/own.py if you trust it"),
        (["a b; rm x"], [], f"'a b; rm x', {ITS} --import 'a b; rm x' if you trust it"),
        ([""], [], f"'', {ITS} --import '' if you trust it"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_remedy(
    needed: list[str], given: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^my.toml: imports {re.escape(message)}$"):
        check_imports(needed, given, "my.toml")


@pytest.mark.parametrize("name", ["own.py\0", "\0", "x" * 5000, "loop.py", "/" * 5000, "NA", "-"])
def test_what_can_be_no_path_is_missing_like_any_other(name: str) -> None:
    os.symlink("loop.py", "loop.py")
    with pytest.raises(ConfigError, match="my.toml: imports"):
        check_imports([name], ["own.py"], "my.toml")


def test_what_needs_nothing_needs_no_import() -> None:
    check_imports([], [], "my.toml")
    check_imports([], ["own.py"], None)


def test_a_file_that_is_read_from_python_only_says_what_it_needs(folder: Path) -> None:
    (folder / "own.py").write_text("raise RuntimeError('it was run')\n")
    (folder / "run.toml").write_text('imports = ["own.py"]\n')
    assert load_config("run.toml") == {"imports": ["own.py"]}
