"""Chromium, spoken to through two pipes (--remote-debugging-pipe)."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from verify.browser import Window, address

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser(Window):
    def __init__(self, program: str, profile: Path) -> None:
        super().__init__()
        self._count = 0
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"]
        options += [
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
        ]  # a camera, and it is allowed
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

    def show(self, page: Path | str, width: int, dark: bool = False, height: int = 900) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._loaded = False
        self._call("Page.navigate", url=address(page))
        while not self._loaded:
            self._next()

    def ask(self, script: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise ValueError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path, whole: bool = True) -> None:
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def drag(self, element: str, right: int, down: int) -> None:
        x, y = self.middle(element)
        mouse = {"button": "left", "buttons": 1, "clickCount": 1}
        self._call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x + right, y=y + down, **mouse)
        self._call("Input.dispatchMouseEvent", type="mouseReleased", x=x + right, y=y + down, **mouse)

    def choose_file(self, element: str, path: Path) -> None:
        found = self._call("Runtime.evaluate", expression=f"document.getElementById('{element}')")["result"]
        self._call("DOM.setFileInputFiles", files=[str(path)], objectId=found["objectId"])

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

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._write)
        self._answers.close()
