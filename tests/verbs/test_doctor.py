"""`ch doctor` tells what is there and what is missing, and never fails because of it."""

import builtins
import hashlib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from chop.verbs import doctor as module
from chop.verbs.doctor import Requirement, doctor, find_package, numbers, requirements


def state_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.split()[:1] == [name])


def test_this_machine_is_described() -> None:
    text = doctor()
    for title in ("Machine", "Packages", "Extras", "Data"):
        assert f"\n{title}\n" in f"\n{text}"
    for name in ("python", "cores", "threads", "devices", "torch", "optuna", "cache"):
        assert state_of(text, name)
    assert " ok " in state_of(text, "torch")
    assert " ok " in state_of(text, "jsc-sim")


def test_what_is_needed_is_read_from_the_metadata() -> None:
    wanted = {each.name: each for each in requirements()}
    assert wanted["torch"].extra == ""
    assert wanted["torch"].at_least
    assert wanted["wandb"].extra == "wandb"


def test_a_missing_package_comes_with_the_line_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name in ("wandb", "optuna"):
            raise PackageNotFoundError(name)
        return "0.0.1" if name == "rich" else "999.0+cpu"

    monkeypatch.setattr(module, "version", version)
    text = doctor()
    assert "missing" in state_of(text, "wandb")
    assert "pip install 'wandb>=" in text
    assert "pip install 'optuna>=" in text
    assert "too old" in state_of(text, "rich")


def test_a_broken_torch_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise OSError("libtorch.so: cannot open shared object file")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    text = doctor()
    assert "torch cannot be imported: libtorch.so" in text


def test_a_folder_that_is_not_installed_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "requires", none)
    assert "pip install -e ." in doctor()


def test_the_jsc_file_is_found_or_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CHOP_JSC", raising=False)
    text = doctor()
    assert "missing" in state_of(text, "jsc")
    assert "export CHOP_JSC=" in text
    assert "made when it is first needed" in state_of(text, "cache")
    assert not (tmp_path / "cache").exists()
    file = tmp_path / "jets.h5"
    file.write_bytes(b"x")
    monkeypatch.setenv("CHOP_JSC", str(file))
    assert " ok " in state_of(doctor(), "jsc")


def test_damaged_data_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "sha256", lambda content: hashlib.sha512(content[:1]))
    assert "damaged" in state_of(doctor(), "jsc-sim")


@pytest.mark.parametrize(
    ("version", "expected"), [("2.13.0+cpu", [2, 13, 0]), ("5.0.0rc1", [5, 0, 0]), ("x", [])]
)
def test_versions_are_compared_by_number(version: str, expected: list[int]) -> None:
    assert numbers(version) == expected


def test_ten_is_more_than_nine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda name: "2.10")
    assert find_package(Requirement("x", "2.9", ""), "").state == "ok"


def test_what_exports_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "requires", lambda name: ["qonnx>=1.0; extra == 'onnx'"])
    monkeypatch.setattr(module, "version", lambda name: "1.0.0")
    assert "(extra onnx)" in state_of(doctor(), "qonnx")
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/cc")
    assert " ok " in state_of(doctor(), "cc")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert "apt install gcc" in doctor(missing_only=True)


def test_a_torchvision_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(module, "version", lambda name: "0.29.2")
    monkeypatch.setattr(module, "import_module", refuse)
    text = doctor()
    assert "broken" in state_of(text, "torchvision")
    assert "torchvision::nms does not exist" in text
    assert "pip uninstall torchvision" in doctor(missing_only=True)


def test_a_machine_without_torchvision_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torchvision":
            raise PackageNotFoundError(name)
        return "999.0"

    monkeypatch.setattr(module, "version", version)
    assert "torchvision" not in doctor()
