"""Firefox, spoken to by WebDriver BiDi: JSON through a web socket."""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from verify.browser import Window, address

EVENTS = ["log.entryAdded", "network.beforeRequestSent", "network.fetchError"]
# As on a phone the scroll bar takes nothing of the width; a camera, and it is allowed.
SETTINGS = {"ui.useOverlayScrollbars": 1, "media.navigator.streams.fake": True}
SETTINGS |= {"media.navigator.permission.disabled": True}


def find() -> str | None:
    return shutil.which("firefox-esr") or shutil.which("firefox")


class Browser(Window):
    def __init__(self, program: str, profile: Path) -> None:
        super().__init__()
        self._program, self._profile, self._dark = program, profile, False
        self._start()

    def show(self, page: Path | str, width: int, dark: bool = False, height: int = 900) -> None:
        if dark != self._dark:
            self.close()
            self._dark = dark
            self._start()
        self._call("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": height})
        self._call("browsingContext.navigate", context=self._tab, url=address(page), wait="complete")

    def ask(self, script: str) -> Any:
        parameters = {
            "expression": f"JSON.stringify(({script}))",
            "target": {"context": self._tab},
            "awaitPromise": False,
        }
        answer = self._call("script.evaluate", **parameters)
        if answer["type"] != "success":
            raise ValueError(f"{script}: {answer['exceptionDetails']['text']}")
        return json.loads(answer["result"].get("value", "null"))

    def screenshot(self, path: Path, whole: bool = True) -> None:
        part = "document" if whole else "viewport"
        answer = self._call("browsingContext.captureScreenshot", context=self._tab, origin=part)
        path.write_bytes(base64.b64decode(answer["data"]))

    def drag(self, element: str, right: int, down: int) -> None:
        self._call("input.performActions", context=self._tab, actions=self.pointer(element, right, down))

    def choose_file(self, element: str, path: Path) -> None:
        parameters = {"expression": f"document.getElementById('{element}')", "target": {"context": self._tab}}
        found = self._call("script.evaluate", **parameters, awaitPromise=False)["result"]
        chosen = {"sharedId": found["sharedId"]}
        self._call("input.setFiles", context=self._tab, element=chosen, files=[str(path)])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._answers.close()
        self._socket.close()

    def _start(self) -> None:
        self._profile.mkdir(exist_ok=True)
        settings = {**SETTINGS, "layout.css.prefers-color-scheme.content-override": 0 if self._dark else 1}
        lines = [f'user_pref("{name}", {json.dumps(value)});\n' for name, value in settings.items()]
        (self._profile / "user.js").write_text("".join(lines))
        command = [self._program, "--headless", "--no-remote", "--profile", str(self._profile)]
        log = self._profile / "log.txt"
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [*command, "--remote-debugging-port", "0", "about:blank"],
                stdout=said,
                stderr=said,
                env={**os.environ, "HOME": str(self._profile)},  # root may not use another user's
            )
        until = time.monotonic() + 60
        while not (found := re.search(r"listening on ws://127\.0\.0\.1:(\d+)\n", log.read_text())):
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                raise OSError(f"Firefox did not start: {log.read_text()}")
            time.sleep(0.02)
        self._socket = socket.create_connection(("127.0.0.1", int(found[1])), timeout=60)
        self._answers = self._socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = ["GET /session HTTP/1.1", f"Host: 127.0.0.1:{found[1]}", "Upgrade: websocket", "Connection: Upgrade"]
        upgrade += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "\r\n"]
        self._socket.sendall("\r\n".join(upgrade).encode())
        while self._answers.readline().strip():
            pass
        self._count = 0
        self._call("session.new", capabilities={})
        self._tab = self._call("browsingContext.getTree")["contexts"][0]["context"]
        self._call("session.subscribe", events=EVENTS)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = json.dumps({"id": self._count, "method": method, "params": params}).encode()
        # One frame of text. Its length has as few bytes as it can; what a client sends is masked, here by 1, 1, 1, 1.
        size = len(message)
        long = struct.pack(">BH", 0xFE, size) if size < 65536 else struct.pack(">BQ", 0xFF, size)
        length = bytes([0x80 + size]) if size < 126 else long
        self._socket.sendall(b"\x81" + length + b"\1" * 4 + bytes(byte ^ 1 for byte in message))
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if answer["type"] == "error":
                    raise ValueError(f"{method}: {answer['error']}: {answer['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        text, last = bytearray(), False
        while not last:
            first, size = self._answers.read(2)
            if size >= 126:
                size = int.from_bytes(self._answers.read(2 if size == 126 else 8), "big")
            text, last = text + self._answers.read(size), first >= 128
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method == "network.beforeRequestSent":
            self.requests.append(params["request"]["url"])
        elif method in EVENTS:
            self.complaints.append(json.dumps(params))
        return message
