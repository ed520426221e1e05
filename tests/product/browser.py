"""A real browser, driven over a pipe by the DevTools protocol: what a page shows, what it fetches, how it looks."""

import base64
import io
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from PIL import Image

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking"]


class Browser:
    """Chromium with one page, ``width`` x ``height`` CSS pixels. ``requests`` are the addresses that the page has asked for."""

    def __init__(self, width: int = 1100, height: int = 900) -> None:
        self.profile = tempfile.mkdtemp()
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        chromium = [str(CHROMIUM), *FLAGS, f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "--remote-debugging-pipe"]
        command = ["bash", "-c", f'exec "$@" 3<&{down} 4>&{up}', "bash", *chromium, "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(down)
        os.close(up)
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        self.requests: list[str] = []
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, address: str) -> None:
        """Go to ``address`` and wait until all of it is there."""
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"].get("value")

    def wait(self, condition: str, limit_s: float = 60.0) -> None:
        """Until the JavaScript ``condition`` holds; TimeoutError after ``limit_s``."""
        until = time.monotonic() + limit_s
        while not self.run(condition):
            if time.monotonic() > until:
                raise TimeoutError(f"{condition}: {self.text()[:500]}")
            time.sleep(0.1)

    def text(self) -> str:
        """What a reader sees, as text."""
        return str(self.run("document.body.innerText"))

    def prefer(self, *, scheme: str = "light", media: str = "screen", vision: str = "none") -> None:
        """``scheme``: light or dark; ``media``: screen or print; ``vision``: none, achromatopsia, deuteranopia, ..."""
        self._call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Emulation.setEmulatedVisionDeficiency", type=vision)

    def picture(self, *, whole: bool = False, of: str | None = None) -> Image.Image:
        """The page as it looks now: what is in view, the ``whole`` of it, or the first element that the selector ``of`` finds.

        Raises LookupError where there is no such element.
        """
        options: dict[str, Any] = {"captureBeyondViewport": whole or of is not None}
        if of is not None:
            found = f"document.querySelector({json.dumps(of)}).getBoundingClientRect()"
            box = f"(r => [r.x + scrollX, r.y + scrollY, r.width, r.height])({found})"
            place = self.run(box)
            if place is None:
                raise LookupError(f"the page has no {of} at the moment")
            options["clip"] = {**dict(zip(("x", "y", "width", "height"), place, strict=True)), "scale": 1}
        elif whole:
            size = self.run("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
            options["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        data = self._call("Page.captureScreenshot", format="png", **options)["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")

    def print(self, path: Path) -> None:
        """The page as a PDF, as a printer gets it."""
        path.write_bytes(base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 60
        while True:
            answer = self._message(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(message["params"]))
        return message
