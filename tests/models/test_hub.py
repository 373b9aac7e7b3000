"""Nothing but a name that the user gave leaves the machine; a listener stands for hub and proxy."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chop.cli import main
from chop.errors import ChopError
from chop.loading.networks import load_model
from chop.models import from_transformers, get_model
from chop.models.info import DataShape
from chop.runs import write_record
from harden.security_source import findings

hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("transformers")
ROWS = DataShape(16, 2, vocab_size=50)
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 50}
HOSTILE: dict[str, dict[str, Any]] = {
    "backbone": {"model_type": "upernet", "backbone": "some/net", "use_pretrained_backbone": True},
    "other": {"model_type": "detr", "backbone": "some/net", "use_timm_backbone": False},
    "kernel": {"model_type": "bert", "attn_implementation": "some/kernel", **SMALL},
    "code": {"model_type": "bert", "auto_map": {"AutoConfig": "some/net--a.B"}, **SMALL},
    "name": {"model_type": "bert", "_name_or_path": "some/net", **SMALL},
}
Asked = list[bytes]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Asked]:
    """The first lines of all requests that reach the hub or a proxy; all are answered with 404."""
    seen: Asked = []
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                seen.append(connection.recv(4000).partition(b"\r\n")[0])
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    for name in ("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, url)
        monkeypatch.setenv(name.lower(), url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for name, value in (("HF_HUB_OFFLINE", False), ("ENDPOINT", url)):
        monkeypatch.setattr(hub.constants, name, value)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    hub.close_session()
    yield seen
    hub.close_session()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


WAYS: dict[str, Callable[[Path], object]] = {
    "from_transformers": from_transformers,
    "load": lambda folder: load_model(folder, "hf"),
    "by name": lambda folder: get_model(f"hf:{folder}", "cls", ROWS),
    "trained": lambda folder: get_model(f"hf:{folder}", "cls", ROWS, pretrained=True),
    "a file": lambda folder: from_transformers(folder / "config.json"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_folder_sends_nobody_to_a_hub(kind: str, way: str, tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HOSTILE[kind]))
    refused = ""
    try:
        WAYS[way](tmp_path)
    except ChopError as error:
        refused = str(error)
    assert asked == []
    if kind in ("backbone", "other"):
        assert "names another model, which is not fetched because a file says so" in refused
    assert not hub.constants.HF_HUB_OFFLINE  # as the user had it


def settings(tmp_path: Path) -> list[str]:
    """The best of a search, as somebody else might have written it."""
    folder = tmp_path / "project" / "software" / "search_ckpts"
    folder.mkdir(parents=True)
    passes = '[passes.quantize]\nby = "type"\n[passes.quantize.default.config]\nname = "integer"\n'
    text = 'model = "hf:some/net"\ndataset = "agreement"\ntask = "cls"\nproject = "p"\n'
    (folder / "best_0.toml").write_text(text + passes)
    (folder / "log.json").write_text("[]")
    return ["--config", str(folder / "best_0.toml"), "--project-dir", str(tmp_path)]


def project(tmp_path: Path) -> str:
    """A project whose best is of a model on a hub, with a record that says so."""
    settings(tmp_path)
    folder = tmp_path / "project" / "software"
    names = {"model": "hf:some/net", "dataset": "agreement", "task": "cls"}
    listed = [{"name": name, "effective": value} for name, value in names.items()]
    (folder / "best.pt").write_bytes(b"")
    write_record(folder, "train", {"settings": listed, "command": ["ch"]})
    return str(tmp_path / "project")


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "settings": lambda folder: ["export", "--load", settings(folder)[1], "--to", "c"],
    "a project": lambda folder: ["export", "--load", project(folder), "--to", "c"],
    "train": lambda folder: ["train", *settings(folder)],
    "pretrained": lambda folder: ["test", "--pretrained", *settings(folder)],
    "a record": lambda folder: [
        "test",
        "--load",
        f"{project(folder)}/software/best.pt",
        "--project-dir",
        str(folder),
    ],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_a_stranger_sends_nobody_to_a_hub(
    command: str, tmp_path: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMANDS[command](tmp_path)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "hf:some/net" in line
    assert "is fetched only if it is named" in line
    assert asked == []


def test_a_name_of_the_user_is_asked_for(
    tmp_path: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that the tests above would see a request if there were one."""
    with pytest.raises(ChopError, match=r"^hf:some/net: .*hf:FOLDER names a local one$"):
        get_model("hf:some/net", "cls", ROWS)
    assert any(b"/some/net" in line for line in asked)
    asked.clear()
    assert main(["train", "hf:some/other", "agreement", "--project-dir", str(tmp_path)]) == 2
    assert "hf:some/other: " in capsys.readouterr().err
    assert any(b"/some/other" in line for line in asked)


@pytest.mark.parametrize(
    "text",
    [
        "from chop.models import get_model\nget_model(name, task)",
        "from chop.models.info import get_model\nget_model(name, task, pretrained=True)",
        "import transformers",
        "from huggingface_hub import hf_hub_download",
    ],
)
def test_another_door_in_the_source_would_be_found(text: str) -> None:
    assert len(findings(text, "actions/some.py")) == 1
