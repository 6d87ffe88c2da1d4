"""A headless Chromium, driven over its own pipe: no port, no driver, no package beyond the browser.

The browser is started with ``--remote-debugging-pipe``: it reads commands of the DevTools protocol from file
3 and answers on file 4, each message ended by a zero byte. Nothing waits longer than ``PATIENCE`` seconds,
and the browser is ended by its own process id.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
PATIENCE = 60.0
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--mute-audio", "--hide-scrollbars",
)  # fmt: skip
PAINTED = """new Promise((done) => new PerformanceObserver((list) => {
  for (const paint of list.getEntriesByName("first-contentful-paint")) done(paint.startTime);
}).observe({type: "paint", buffered: true}))"""
PAPER = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}  # A4, in inches


def program() -> str | None:
    """Where a Chromium is installed, if one is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with a profile of its own."""

    def __init__(self, path: str, profile: Path) -> None:
        self._last, self._buffer, self.events = 0, b"", []
        theirs, self._out = os.pipe()
        self._in, given = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        nothing = [(os.POSIX_SPAWN_OPEN, i, os.devnull, os.O_RDWR, 0) for i in (0, 1, 2)]
        # ends of 10 and above first, so that neither copy overwrites the other's source
        far = [os.dup2(end, 200 + i) for i, end in enumerate((theirs, given))]
        pipes = [(os.POSIX_SPAWN_DUP2, far[0], 3), (os.POSIX_SPAWN_DUP2, far[1], 4)]
        argv = [path, *flags, "about:blank"]
        self.pid = os.posix_spawn(path, argv, os.environ, file_actions=[*nothing, *pipes], setpgroup=0)
        for end in (theirs, given, *far):
            os.close(end)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._send("Browser.close", {}, None)
        ended, until = 0, time.monotonic() + 10
        while not ended and time.monotonic() < until:
            ended, _status = os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0.02)
        if not ended:
            os.killpg(self.pid, signal.SIGKILL)  # the group that this browser was started as
            os.waitpid(self.pid, 0)
        os.close(self._out)
        os.close(self._in)

    def page(self, file: Path, **view) -> Page:
        """A file in a tab of its own, loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Page(self, target, session, file, **view)

    def call(self, method: str, params: dict | None = None, session: str | None = None) -> dict:
        number = self._send(method, params or {}, session)
        until = time.monotonic() + PATIENCE
        while True:
            message = self._read(until, method)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def wait(self, event: str, session: str) -> None:
        """Until the event has come, now or before."""
        until = time.monotonic() + PATIENCE
        while not self.seen(event, session):
            self.events.append(self._read(until, event))

    def seen(self, event: str, session: str) -> list[dict]:
        return [
            m["params"] for m in self.events if m.get("method") == event and m.get("sessionId") == session
        ]

    def _send(self, method: str, params: dict, session: str | None) -> int:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._out, left) :]
        return self._last

    def _read(self, until: float, what: str) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._in, 1 << 20) if ready else b""
            assert more, f"Chromium did not answer: {what}"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """A loaded file in a tab."""

    def __init__(self, browser: Chromium, target: str, session: str, file: Path, **view) -> None:
        self.browser, self.target, self.session = browser, target, session
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")
        self.call("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.view(**view)
        self.call("Page.navigate", {"url": file.resolve().as_uri()})
        browser.wait("Page.loadEventFired", session)
        self.settle()

    def view(
        self,
        *,
        width: int = 1280,
        height: int = 900,
        zoom: float = 1,
        scheme: str = "light",
        media: str = "",
    ) -> None:
        """How it is looked at: ``width`` in CSS pixels of an unzoomed window, ``zoom`` as a person sets it (2
        is 200%)."""
        size = {"width": int(width / zoom), "height": int(height / zoom), "deviceScaleFactor": zoom}
        self.call("Emulation.setDeviceMetricsOverride", size | {"mobile": False})
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def settle(self) -> None:
        """Until what was drawn is on screen."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.call("Target.closeTarget", {"targetId": self.target})

    def call(self, method: str, params: dict | None = None) -> dict:
        return self.browser.call(method, params, self.session)

    def run(self, script: str) -> object:
        """The value of a script."""
        given = {"expression": script, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", given)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code} | text
            self.call("Input.dispatchKeyEvent", event)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", PAPER)["data"])

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [m["request"]["url"] for m in self.browser.seen("Network.requestWillBeSent", self.session)]

    @property
    def messages(self) -> list[dict]:
        """Everything the console shows."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [message for kind in kinds for message in self.browser.seen(kind, self.session)]

    @property
    def first_paint(self) -> float:
        """Milliseconds from navigation to the first content on screen."""
        return float(self.run(PAINTED))
