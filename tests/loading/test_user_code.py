from pathlib import Path

import pytest

from chop.errors import RegistrationError
from chop.loading.user_code import import_user_code


def test_a_file_is_imported_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("with open(__file__ + '.ran', 'a') as ran:\n    ran.write('x')")
    first, second = import_user_code([str(path), str(tmp_path / "." / "mine.py")])
    assert first is second
    assert (tmp_path / "mine.py.ran").read_text() == "x"


def test_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"NAME = {folder!r}")
    modules = import_user_code([str(tmp_path / folder / "mine.py") for folder in ("a", "b")])
    assert [module.NAME for module in modules] == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ny = nowhere", "line 2: NameError: name 'nowhere' is not defined"),
        ("def f(:", "line 1: SyntaxError"),
        ("import no_such_package", "line 1: ModuleNotFoundError"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        (
            "from chop.registry import Registry\nr = Registry('model')\n" + "r.add('a', 1)\n" * 2,
            "model 'a' is already registered",
        ),
    ],
)
def test_a_file_that_fails_is_one_line(tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(RegistrationError) as caught:
        import_user_code([str(path)])
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_modules_by_name() -> None:
    (module,) = import_user_code(["json.tool"])
    assert module.__name__ == "json.tool"
    with pytest.raises(RegistrationError, match="no module 'no_such_module_here'"):
        import_user_code(["no_such_module_here"])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RegistrationError, match="nowhere.py: there is no such Python file"):
        import_user_code(["nowhere.py"])
