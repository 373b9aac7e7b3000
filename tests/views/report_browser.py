"""Chromium without a window, driven over its debugging pipe: real pointer, real keys, real print.

Playwright and Selenium would do this, too, and bring drivers of their own; the protocol is JSON
over two file descriptors, and the tests need a dozen of its commands.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 600.0  # seconds; a page that takes longer is stuck
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # the browser reads commands from descriptor 3 and answers on 4
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
        "ArrowDown": 40}  # fmt: skip


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def _high(descriptor: int) -> int:
    """The same file under a number that is not in the way of 3 and 4."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


class Browser:
    """A browser with one tab; what its pages complain about is collected."""

    def __init__(self, profile: Path) -> None:
        program = chromium()
        assert program is not None
        read, self._out = map(_high, os.pipe())
        self._in, write = map(_high, os.pipe())
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(read), str(write), *command],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        self._process.wait(timeout=PATIENCE)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(params["args"]))

    def open(self, page: Path, width: int = 1180, height: int = 900, **media: str) -> None:
        """Load a page at a size, with media features such as ``prefers-color-scheme``."""
        self.complaints.clear()
        self._events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": name.replace("_", "-"), "value": v} for name, v in media.items()]
        self.call("Emulation.setEmulatedMedia", media="screen", features=features)
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self._events):
            self._note(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
            userGesture=True,
        )  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def centre(self, selector: str) -> tuple[float, float]:
        """Where an element is, after scrolling to it."""
        found = self.run(
            f"(() => {{ const each = document.querySelector({json.dumps(selector)});"
            "each.scrollIntoView({block: 'center'}); const box = each.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return float(found[0]), float(found[1])

    def point(self, selector: str) -> None:
        """Move the mouse onto an element."""
        x, y = self.centre(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.centre(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, times: int = 1) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def allow_clipboard(self) -> None:
        self.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])

    @property
    def clipboard(self) -> str:
        return str(self.run("navigator.clipboard.readText()"))

    def screenshot(self, path: Path, selector: str | None = None) -> Path:
        """The whole page, or one element of it."""
        whole = "document.documentElement"
        where = f"document.querySelector({json.dumps(selector)})" if selector else whole
        x, y, width, height = self.run(
            f"(() => {{ const b = {where}.getBoundingClientRect();"
            "return [b.x + scrollX, b.y + scrollY, b.width, b.height]; })()"
        )
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return _stored(path, shot["data"])

    def pdf(self, path: Path) -> Path:
        """The page as it is printed on A4."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        size = {"paperWidth": 8.27, "paperHeight": 11.69}
        return _stored(path, self.call("Page.printToPDF", printBackground=True, **size)["data"])


def _stored(path: Path, data: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(data))
    return path


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
