"""WebKit, the engine of Safari, as WebKitGTK's MiniBrowser: spoken to by WebDriver, on a screen that nobody sees."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from verify.browser import Window, address

# Its WebDriver does not tell what the console got: the page itself keeps it. The script stands before the policy of the
# page, which therefore does not refuse it.
CONSOLE = """<script>
window.complaints = [];
const keep = (...words) => window.complaints.push(words.join(" "));
for (const level of ["error", "warn", "info", "log", "debug"]) console[level] = keep;
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, (event) => keep(kind, event.message, event.reason, event.blockedURI), true);
</script>"""
POPUP = "window.open('about:blank', '', 'toolbar=no,location=no,menubar=no,status=no,width=390,height=900'), true"


def find() -> str | None:
    browsers = [str(path) for path in sorted(Path("/usr/lib").glob("*/webkit*gtk*/MiniBrowser"))]
    return browsers[-1] if browsers and shutil.which("WebKitWebDriver") and shutil.which("Xvfb") else None


class Browser(Window):
    def __init__(self, program: str, profile: Path) -> None:
        super().__init__()
        profile.mkdir(exist_ok=True)
        self._program, self._profile, self._dark = program, profile, False
        read, write = os.pipe()
        screen = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1400x4000x24", "-nolisten", "tcp"]
        self._screen = subprocess.Popen(screen, pass_fds=(write,), stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read) as display:
            environment = {**os.environ, "DISPLAY": f":{display.readline().strip()}", "HOME": str(profile)}
        # A driven browser gives an isolated page no process of its own, and thus no SharedArrayBuffer unless told to.
        environment["JSC_useSharedArrayBuffer"] = "true"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        driver, quiet = ["WebKitWebDriver", f"--port={self._port}"], subprocess.DEVNULL
        self._driver = subprocess.Popen(driver, env=environment, stdout=quiet, stderr=quiet)
        self._session = ""
        try:
            self._wait()
            self._start()
        except BaseException:
            self.close()
            raise

    def show(self, page: Path | str, width: int, dark: bool = False, height: int = 900) -> None:
        if dark != self._dark:
            self._call("DELETE", "")
            self._dark = dark
            self._start()
        self._call("POST", "/window/rect", width=width, height=height)
        if isinstance(page, Path):
            copy = self._profile / page.name
            copy.write_text(page.read_text().replace("<head>", f"<head>{CONSOLE}", 1))
            page = copy
        self._call("POST", "/url", url=address(page))

    def ask(self, script: str) -> Any:
        self.complaints += self._run("window.complaints ? complaints.splice(0) : []")
        return self._run(script)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        if whole:
            width, height = self.ask("[innerWidth, document.documentElement.scrollHeight]")
            self._call("POST", "/window/rect", width=width, height=height)
            self.wait_for(f"innerHeight === {height}")
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def drag(self, element: str, right: int, down: int) -> None:
        self._call("POST", "/actions", actions=self.pointer(element, right, down))

    def choose_file(self, element: str, path: Path) -> None:
        (found,) = self._run(f"document.getElementById('{element}')").values()
        self._call("POST", f"/element/{found}/value", text=str(path))

    def close(self) -> None:
        if self._session:
            self._call("DELETE", "")
        for process in (self._driver, self._screen):
            process.terminate()
            process.wait(10)

    def _start(self) -> None:
        settings = ("javascript-can-open-windows-automatically", "enable-media-stream", "enable-mock-capture-devices")
        options = ["--automation", *(f"--{setting}=true" for setting in settings)]
        chosen = {"binary": self._program, "args": options + ["--dark-mode"] * self._dark}
        self._session = ""
        opened = self._call("POST", "", capabilities={"alwaysMatch": {"webkitgtk:browserOptions": chosen}})
        self._session = "/" + opened["sessionId"]
        # A window with tools in it cannot be as narrow as a phone.
        first = self._call("GET", "/window/handles")
        self._run(POPUP)
        (popup,) = set(self._call("GET", "/window/handles")) - set(first)
        self._call("POST", "/window", handle=popup)

    def _run(self, script: str) -> Any:
        return self._call("POST", "/execute/sync", script=f"return ({script})", args=[])

    def _call(self, method: str, path: str, **body: Any) -> Any:
        content = json.dumps(body).encode() if method == "POST" else None
        request = Request(f"http://127.0.0.1:{self._port}/session{self._session}{path}", content, method=method)
        try:
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            raise ValueError(f"{body}: {error.read().decode()}") from None

    def _wait(self) -> None:
        """Until the driver listens."""
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                if self._driver.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
