from pathlib import Path

import pytest
from jet_files import JetFiles


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, and no file that the machine may have."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CHOP_CACHE", str(folder))
    for name in ("JSC", "MNIST", "CIFAR10", "CIFAR100"):
        monkeypatch.delenv(f"CHOP_{name}", raising=False)
    return folder


@pytest.fixture
def jets(tmp_path: Path) -> JetFiles:
    return JetFiles(tmp_path)
