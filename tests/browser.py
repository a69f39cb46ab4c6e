"""Headless Chromium, driven through its DevTools protocol by a pipe: no port, no driver."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Of things that a page loads or says, those that mean that it's broken.
_BAD = {"Network.loadingFailed", "Runtime.exceptionThrown"}
#: Images that are there and have no pixels.
_BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth || !i.complete).map(i => i.src)"
#: Text outside the page that can't be scrolled to by scrolling the box that it's in; the page itself mustn't scroll
#: sideways. What a narrow page moves out of sight on purpose (menus) is not shown text.
_OUTSIDE = """(() => {
  const found = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) found.push('the page: ' + document.documentElement.scrollWidth);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const parent = node.parentElement;
    if (!node.data.trim() || !parent.checkVisibility({visibilityProperty: true}) || parent.closest('[class*=drawer]'))
      continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || box.right <= width + 1) continue;
    let around = parent;
    while (around && !['auto', 'scroll'].includes(getComputedStyle(around).overflowX)) around = around.parentElement;
    if (!around || around === document.body || around === document.documentElement)
      found.push(node.data.trim().slice(0, 60) + ': ' + Math.round(box.right));
  }
  return found;
})()"""


def installed() -> str | None:
    """The browser's path; None: there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """One tab."""

    _to: int
    _from: Iterator[dict[str, Any]]
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _session: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises RuntimeError: the browser refuses it, or is gone."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps({"id": number, "method": method, "params": params, **session}).encode() + b"\0")
        for message in self._from:
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)
        raise RuntimeError(f"the browser ended during {method}")

    def attach(self) -> None:
        """Open a tab, and listen to all that it says."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int, dark: bool = False) -> None:
        """Show a file, so many CSS pixels wide, and wait until it's loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            for event in self._from:
                self.events.append(event)
                if event.get("method") == "Page.loadEventFired":
                    break

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def faults(self) -> list[str]:
        """What is wrong with the page: `complaints`, images without pixels, text that leaves the page."""
        return [*self.complaints(), *self.evaluate(_BROKEN), *self.evaluate(_OUTSIDE)]

    def picture(self, path: Path) -> None:
        """Write the whole page, down to its end, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors on the console, exceptions, and what couldn't be loaded, since the page was opened."""
        return [said for event in self.events if (said := _complaint(event))]


def _complaint(event: dict[str, Any]) -> str | None:
    method, params = event["method"], event.get("params", {})
    entry = params.get("entry", {})
    if method in _BAD or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert")):
        return f"{method}: {json.dumps(params)[:2000]}"
    return f"console: {entry['text']} {entry.get('url', '')}" if entry.get("level") == "error" else None


@contextlib.contextmanager
def opened(browser: str, folder: Path) -> Iterator[Page]:
    """A tab of a browser of its own, whose profile is in `folder`."""
    (their_in, to), (ours, their_out) = _pipe(), _pipe()
    options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
    options += " --hide-scrollbars"  # as phones do, and so that a picture is as wide as the page
    process = os.posix_spawn(
        browser,
        [browser, *options.split(), f"--user-data-dir={folder}"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, their_in, 3),  # where it reads commands
            (os.POSIX_SPAWN_DUP2, their_out, 4),
        ],
    )
    os.close(their_in)
    os.close(their_out)
    try:
        page = Page(to, _messages(ours))
        page.attach()
        yield page
    finally:
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(to)
        os.close(ours)


def _pipe() -> tuple[int, ...]:
    """A pipe whose ends have numbers above those that the browser uses."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


def _messages(pipe: int) -> Iterator[dict[str, Any]]:
    """What the browser sends, until it ends. A message ends with a zero byte."""
    rest = b""
    while chunk := os.read(pipe, 1 << 16):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from map(json.loads, whole)
