"""Pages read back, and runs made by hand."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "br"}
HOSTILE = '<script>document.title="taken"</script><img src=x onerror=alert(1)>"\'&\ud800'


class Page(HTMLParser):
    """A page as sections, tags and text; it fails if tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: list[str] = []
        self.texts: dict[str, str] = {}
        self.json: dict[str, Any] = {}
        self._json_id: str | None = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "section":
            self.sections.append(str(given["id"]))
        if tag == "script" and given.get("type") == "application/json":
            self._json_id = given["id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._json_id = None

    def handle_data(self, data: str) -> None:
        if self._json_id:
            self.json[self._json_id] = json.loads(data)
        elif self.sections and not {"script", "style"} & set(self.open):
            where = self.sections[-1]
            self.texts[where] = self.texts.get(where, "") + data + " "

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.tags)


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def put(path: Path, content: Any) -> Path:
    """Write a file and the folders that lead to it; tables become JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def a_result(**changes: Any) -> dict[str, Any]:
    return {
        "test_acc_epoch": 0.75,
        "test_loss_epoch": 0.5,
        "rows": 8,
        "accuracy_95_percent_interval": [0.4, 0.93],
        "class_names": ["cat", "dog"],
        "confusion_matrix": [[3, 1], [1, 3]],
    } | changes


def logged(number: int, accuracy: float | None, width: int, **changes: Any) -> dict[str, Any]:
    """A trial as log.json has it; without an accuracy it failed."""
    failed = accuracy is None
    return {
        "number": number,
        "values_0": accuracy,
        "values_1": None if failed else width,
        "user_attrs_software_metrics": None if failed else {"accuracy": accuracy},
        "user_attrs_hardware_metrics": None if failed else {"average_bitwidth": width},
        "user_attrs_sampled_config": {
            "fc": {"config": {"name": "integer", "weight_width": width, "weight_frac_width": None}},
            "default": {"config": {"name": None}},
        },
        "state": "FAIL" if failed else "COMPLETE",
        **({"user_attrs_reason": "out of memory"} if failed else {}),
        **changes,
    }


def with_script(page: Path, script: str) -> Path:
    """A copy of a page with one more script at its end."""
    text = page.read_text(encoding="utf-8")
    copy = page.with_name(f"{page.stem}-probed.html")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return copy
