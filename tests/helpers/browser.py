"""Minimal client of the W3C WebDriver protocol, to use a page in headless Chromium like a person."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Space": "\ue00d"}
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


def missing() -> str:
    """Say why there is no browser here; empty if there is one."""
    browser = next(filter(shutil.which, ("chromium", "google-chrome", "chromium-browser")), None)
    lacking = [
        name for name, found in (("chromium", browser), ("chromedriver", shutil.which("chromedriver"))) if not found
    ]
    return f"needs {' and '.join(lacking)} on the PATH" if lacking else ""


class Browser:
    """A browser with one page; use it in a ``with`` statement.

    Args:
        profile: Empty folder for the browser's files.
        width: Width of the window.
        height: Height of the window.
    """

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        self._profile, self._size = profile, (width, height)

    def __enter__(self) -> Browser:
        command = ["chromedriver", "--port=0"]
        self._driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._driver.stdout is not None
        line = next(line for line in self._driver.stdout if "successfully on port" in line)
        self._url = f"http://127.0.0.1:{line.rsplit('port ', 1)[1].strip().rstrip('.')}"
        binary = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))))
        options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={self._profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"
        self.resize(*self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._send("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=10)
            assert self._driver.stdout is not None
            self._driver.stdout.close()

    def _send(self, verb: str, path: str, content: dict[str, Any] | None = None) -> Any:
        body = json.dumps(content or {}).encode() if verb == "POST" else None
        request = urllib.request.Request(self._url + path, body, {"Content-Type": "application/json"}, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, page: Path) -> None:
        """Load a file."""
        self._send("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *values: Any) -> Any:
        """Run a script and return its value."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(values)})

    def click(self, selector: str) -> None:
        """Click on the first element that matches."""
        self._send("POST", f"/element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Replace the content of a field."""
        element = self._find(selector)
        self._send("POST", f"/element/{element}/clear")
        self._send("POST", f"/element/{element}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        codes = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": code} for code in codes for kind in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def _find(self, selector: str) -> str:
        return self._send("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def resize(self, width: int, height: int) -> None:
        """Set the exact size of the viewport, for example that of a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Ask for ``light`` or ``dark`` pages."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def devtools(self, command: str, values: dict[str, Any]) -> Any:
        """Send a command of the DevTools protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": values})

    def messages(self) -> list[str]:
        """Console messages since the last call, including loading errors."""
        time.sleep(0.2)  # they arrive from another process
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save the visible part, or the whole page."""
        picture = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(picture["data"]))
