"""A real browser without a window, spoken to through two pipes (--remote-debugging-pipe): no package is needed."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    """One page. `complaints` is what it wrote on its console, errors and failed or refused requests included."""

    def __init__(self, program: str, profile: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._count = 0
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"]
        command = [program, *options, f"--user-data-dir={profile}", "about:blank"]
        # The browser reads from 3 and writes to 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *command]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(shell, pass_fds=(read, write), stdout=quiet, stderr=quiet)
        os.close(read)
        os.close(write)
        self._answers = os.fdopen(self._read, "rb")
        (page,) = (one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def show(self, page: Path, width: int, dark: bool = False, height: int = 900) -> None:
        """Load a page, as wide as a screen of so many pixels."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._loaded = False
        self._call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._next()

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise ValueError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def check_width(self, width: int) -> None:
        """Nothing of the page lies outside of a window so wide, and there is no sideways scrolling."""
        assert self.ask("document.documentElement.scrollWidth") == width
        outside = "[...document.querySelectorAll('main > *, section > :not(.scroll)')]"
        outside += f".filter(e => e.getBoundingClientRect().right > {width}).length"
        assert self.ask(outside) == 0

    def screenshot(self, path: Path, whole: bool = True) -> None:
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print(self, path: Path) -> None:
        answer = self._call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise ValueError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while not text.endswith(b"\0"):
            if not (byte := self._answers.read(1)):
                raise OSError("the browser ended")
            text += byte
        message: dict[str, Any] = json.loads(text[:-1])
        method, params = message.get("method"), message.get("params", {})
        self._loaded = getattr(self, "_loaded", False) or method == "Page.loadEventFired"
        if method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.loadingFailed"):
            self.complaints.append(json.dumps(params))
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._write)
        self._answers.close()
