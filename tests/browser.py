"""Headless Chromium for tests, controlled through its debugging pipe."""

import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Browser:
    """One page of a running Chromium; messages are JSON, each followed by a zero byte."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self.reading, self.writing = reading, writing
        self.number, self.session = 0, ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the browser and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        self.writing.write(json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        self.writing.flush()
        while (answer := self.read_message()).get("id") != self.number:
            self.note_complaint(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, place: Path | str) -> None:
        """Open a file or an address and wait until it is loaded; the current page is left first."""
        self.complaints.clear()
        address = place.as_uri() if isinstance(place, Path) else place
        if self.run("return location.href.split('#')[0]") == address.partition("#")[0]:
            self.call("Page.navigate", url="about:blank")
            self.wait_for_load()
        self.call("Page.navigate", url=address)
        self.wait_for_load()

    def reload(self) -> None:
        """Reload the page."""
        self.call("Page.reload")
        self.wait_for_load()

    def wait_for_load(self) -> None:
        while (event := self.read_message()).get("method") != "Page.loadEventFired":
            self.note_complaint(event)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of a function body, which is called with `arguments`."""
        call = f"(function () {{ {script} }})(...{json.dumps(arguments)})"
        answer = self.call("Runtime.evaluate", expression=call, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """Return the text of every element."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)  # type: ignore[no-any-return]

    def text(self, selector: str) -> str:
        """Return the text of the first element, which must exist."""
        return self.texts(selector)[0]

    def count(self, selector: str) -> int:
        """Return the number of elements."""
        return len(self.texts(selector))

    def fill(self, selector: str, value: str) -> None:
        """Set the value of a field, as if it were typed or selected."""
        script = "const field = document.querySelector(arguments[0]); field.value = arguments[1]; "
        kinds = "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, { bubbles: true }))"
        self.run(script + kinds, selector, value)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse button at one position and release it at another."""
        steps = (("mouseMoved", start), ("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end))
        for kind, (x, y) in steps:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def mouse_click(self, selector: str) -> None:
        """Click at the centre of an element with the mouse, even if another element covers it."""
        script = "const b = document.querySelector(arguments[0]).getBoundingClientRect(); "
        x, y = self.run(script + "return [b.x + b.width / 2, b.y + b.height / 2];", selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wait(self, condition: str, *, seconds: float = 30) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < until, f"timed out after {seconds} s waiting for {condition}; {self.complaints}"
            time.sleep(0.03)

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window size and the colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def hover(self, selector: str, *, across: float = 0.5, down: float = 0.5) -> None:
        """Move the mouse over an element, to a position relative to its width and height."""
        script = "const e = document.querySelector(arguments[0]); e.scrollIntoView({ block: 'nearest' }); "
        box = self.run(script + "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height];", selector)
        x, y = box[0] + across * box[2], box[1] + down * box[3]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click an element."""
        self.run("document.querySelector(arguments[0]).click()", selector)

    def type(self, text: str) -> None:
        """Type text into the focused element."""
        self.call("Input.insertText", text=text)

    def compose(self, *steps: str, result: str) -> None:
        """Type through an input method: its intermediate texts, then the result."""
        for text in steps:
            self.call("Input.imeSetComposition", text=text, selectionStart=len(text), selectionEnd=len(text))
        self.call("Input.insertText", text=result)

    def tap(self, selector: str) -> None:
        """Touch the centre of an element."""
        script = "const b = document.querySelector(arguments[0]).getBoundingClientRect(); "
        x, y = self.run(script + "return [b.x + b.width / 2, b.y + b.height / 2];", selector)
        self.call("Emulation.setTouchEmulationEnabled", enabled=True)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.call("Emulation.setTouchEmulationEnabled", enabled=False)

    def press(self, key: str, *commands: str) -> None:
        """Press a key by its name, such as ArrowRight; `commands` are its editing commands, such as undo."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "Tab": 9}
        codes |= {"End": 35, "Home": 36, "Enter": 13}
        code = codes.get(key) or ord(key.upper())
        for kind in ("rawKeyDown", "keyUp"):
            given = {"commands": list(commands)} if commands and kind == "rawKeyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **given)

    def choose(self, selector: str, *files: Path) -> None:
        """Select files in a file input."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        self.call("DOM.setFileInputFiles", files=[str(file) for file in files], objectId=found["result"]["objectId"])

    def screenshot(self, path: Path) -> None:
        """Save a screenshot of the window as PNG."""
        path.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def read_message(self) -> Any:
        held = bytearray()
        while (byte := self.reading.read(1)) != b"\0":
            assert byte, "the browser has exited"
            held += byte
        return json.loads(held)

    def note_complaint(self, event: Any) -> None:
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["params"]["entry"]["text"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """Start a browser; skip the test if none is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on the PATH; on Debian: apt-get install chromium")
    commands, answers = os.pipe(), os.pipe()

    def pass_descriptors() -> None:  # the browser reads from descriptor 3 and writes to 4
        kept = os.dup(commands[0]), os.dup(answers[1])
        for descriptor, place in zip(kept, (3, 4), strict=True):
            os.dup2(descriptor, place, inheritable=True)

    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(arguments, preexec_fn=pass_descriptors, pass_fds=(3, 4), **quiet)  # type: ignore[call-overload]
        os.close(commands[0])
        os.close(answers[1])
        try:
            with os.fdopen(answers[0], "rb") as reading, os.fdopen(commands[1], "wb") as writing:
                yield Browser(reading, writing)
        finally:
            process.terminate()
            process.wait(timeout=20)


def axe() -> str:
    """Return axe-core: installed by npm into build/, else from a Python package."""
    own = Path(__file__).parents[1] / "build" / "node_modules" / "axe-core" / "axe.min.js"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    found = find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs axe-core: pip install axe-core-python, or npm install --prefix build axe-core")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(browser: Browser) -> list[Any]:
    """Return the accessibility violations that axe finds on the page: impact, rule and elements."""
    browser.run(axe().replace("\u2028", " ") + "; return 1;")
    return browser.run(  # type: ignore[no-any-return]
        "return axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html).slice(0, 3)]))"
    )
