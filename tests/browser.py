"""A real Chromium without a window, spoken to by the DevTools protocol over pipes; no package is needed for it."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def _chromium() -> str | None:
    """The system's browser, else one that Playwright installed."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    return next((str(path) for path in sorted(cache.glob("chromium*/chrome-linux*/chrome"))), None)


CHROMIUM = _chromium()
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


class Tab:
    """One tab. ``complaints`` gathers what its console and security policy say."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._count, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.received = 0
        """Bytes of all files that the page loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._hear(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            block = os.read(self._read, 1 << 20)
            assert block, "the browser ended"
            self._rest += block
        raw, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(raw))

    def _hear(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"])[:600])
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if parameters["type"] == "error":
                self.complaints.append(json.dumps(parameters["args"])[:600])
            case "Network.dataReceived":
                self.received += int(parameters["dataLength"])

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Go to an address in a window of some size."""
        self.size(width, height)
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.received = 0
        self.send("Page.navigate", url=url)

    def size(self, width: int, height: int) -> None:
        """Make the window so large, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, expression: str) -> Any:
        """Value of an expression on the page; promises are waited for."""
        done = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true on the page; returns its value."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.run(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()")
            if found:
                return found
            assert time.monotonic() < deadline, f"not so after {seconds} s: {expression}; {self.complaints[-3:]}"
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        """Visible text of the first element that a selector matches."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click where an element is, as a hand would: something that lies above it gets the click."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}.get(name, 0)
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Insert text where the focus is."""
        self.send("Input.insertText", text=text)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """A browser with a profile of its own."""
    assert CHROMIUM is not None
    to_browser, our_end = os.pipe()
    our_read, from_browser = os.pipe()
    # Chromium wants the pipes at 3 and 4, so they must not begin there; sh need not know two digits, bash does.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_browser, from_browser)]
    script = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]} {ends[0]}<&- {ends[1]}>&-'
    command = ["bash", "-c", script, CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in (to_browser, from_browser, *ends):
        os.close(end)
    try:
        yield Tab(our_read, our_end)
    finally:
        os.close(our_end)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_read)
