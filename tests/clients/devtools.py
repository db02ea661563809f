"""Control Chromium through its DevTools protocol: pages, keys, screenshots, and errors
of the page.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

BROWSER = (
    shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
)
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "--lang=en-US",
    ),
    *("--force-color-profile=srgb", "--font-render-hinting=none", "--remote-debugging-port=0"),
)
PATIENCE = 60.0
"""Timeout in seconds of every action of a page."""

_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(
    `violated ${event.violatedDirective}: ${event.blockedURI} ` +
    `${event.sourceFile}:${event.lineNumber}`));
"""
_WAIT = """
new Promise((resolve) => {
  const end = Date.now() + MILLISECONDS;
  const look = () => {
    let value = false;
    try { value = EXPRESSION; } catch {}
    if (value || Date.now() > end) resolve(value instanceof Node || value);
    else setTimeout(look, 30);
  };
  look();
})
"""
_KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowRight": (39, ""),
    "ArrowLeft": (37, ""),
    "ArrowDown": (40, ""),
    "End": (35, ""),
    "Home": (36, ""),
    " ": (32, " "),
}


class PageError(AssertionError):
    """An exception in the page."""


class Page:
    """A browser tab.

    complaints: console errors and warnings, exceptions, CSP violations and failed
        loads.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ids = count(1)
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self.opened: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")
        # Violations that the console does not show.
        self.call("Page.addScriptToEvaluateOnNewDocument", source=_REPORT_VIOLATIONS)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        id = next(self._ids)
        self._connection.send(json.dumps({"id": id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(PATIENCE))
            if message.get("id") == id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {
                "method": "Runtime.consoleAPICalled",
                "params": {"type": "error" | "warning" | "assert", "args": args},
            }:
                self.complaints.append(
                    " ".join(str(arg.get("value", arg.get("description"))) for arg in args)
                )
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.complaints.append(
                    str(details.get("exception", details).get("description", details))
                )
            case {
                "method": "Log.entryAdded",
                "params": {"entry": {"level": "error" | "warning", "text": text, **rest}},
            }:
                self.complaints.append(f"{text} {rest.get('url', '')}")
            case {
                "method": "Audits.issueAdded",
                "params": {"issue": {"code": "ContentSecurityPolicyIssue", **issue}},
            }:
                self.complaints.append(str(issue))
            case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}}:
                self.requested.append(url)
            case _:
                pass

    def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        self.opened.append(url)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise PageError(
                f"{expression}\n{details.get('exception', details).get('description', details)}"
            )
        return result["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Poll an expression in the page every 30 ms until it is true, and return its
        value.
        """
        script = _WAIT.replace("EXPRESSION", expression).replace(
            "MILLISECONDS", str((PATIENCE - 10) * 1000)
        )
        found = self.evaluate(script)
        assert found, (
            f"timeout waiting for "
            f"{expression}\n{self.complaints}\n{self.evaluate('document.body.innerText')[:3000]}"
        )
        return found

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector: str, name: str | None = None) -> None:
        """Click the first element that matches a selector, and this text if given, at
        its position on the screen.
        """
        named = (
            ""
            if name is None
            else f".filter((one) => one.textContent.trim() === {json.dumps(name)})"
        )
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]{named}.find((one) => "
            f"one.checkVisibility())"
        )
        self.wait(found)
        place = self.evaluate(
            f"(() => {{ const one = {found}; one.scrollIntoView({{block: 'nearest'}});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + "
            "box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def press(self, *keys: str, shift: bool = False) -> None:
        for key in keys:
            code, text = _KEYS[key]
            event = {
                "key": key,
                "code": key,
                "windowsVirtualKeyCode": code,
                "modifiers": 8 if shift else 0,
            }
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """Replace the value of a field by typing."""
        self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); "
            f"one.select?.(); }})()"
        )
        if text:
            self.type(text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a <select>."""
        self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = "
            f"{json.dumps(value)};"
            "one.dispatchEvent(new Event('input', {bubbles: true}));"
            "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def resize(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """Return the visible part of the page as a PNG."""
        return base64.b64decode(
            self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        )


@contextmanager
def browsing(folder: Path) -> Generator[Page]:
    """Start a browser with an empty profile in the folder, and yield a tab."""
    command = (str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as browser:
        try:
            assert browser.stderr is not None
            address = next(
                line.split()[-1]
                for line in browser.stderr
                if line.startswith("DevTools listening on")
            )
            # With a full queue of unread events, closing would wait ten seconds.
            options: Any = {
                "max_size": None,
                "max_queue": None,
                "open_timeout": PATIENCE,
                "proxy": None,
            }
            with connect(address, **options) as control:
                target = _ask(control, "Target.createTarget", url="about:blank")["targetId"]
                host = address.split("/devtools/")[0]
                with connect(f"{host}/devtools/page/{target}", **options) as connection:
                    yield Page(connection)
        finally:
            browser.terminate()


def _ask(connection: Connection, method: str, **parameters: Any) -> Any:
    connection.send(json.dumps({"id": 1, "method": method, "params": parameters}))
    while (message := json.loads(connection.recv(PATIENCE))).get("id") != 1:
        pass
    return message["result"]
