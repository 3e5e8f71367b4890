"""What tests ask of a real browser without a window. No package is needed: each browser is spoken to as it likes it."""

import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Window(ABC):
    """One page. `complaints` is what it wrote on its console, errors and failed or refused requests included;
    `requests` are the addresses that it asked for, as far as the browser tells them.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []

    @abstractmethod
    def show(self, page: Path | str, width: int, dark: bool = False, height: int = 900) -> None:
        """Load a file or an address, as wide as a screen of so many pixels."""

    @abstractmethod
    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""

    @abstractmethod
    def screenshot(self, path: Path, whole: bool = True) -> None: ...

    @abstractmethod
    def drag(self, element: str, right: int, down: int) -> None:
        """Press the mouse in the middle of an element of this id, move it by so many pixels, and let it go."""

    @abstractmethod
    def choose_file(self, element: str, path: Path) -> None:
        """As if a person had chosen this file in the input of this id."""

    @abstractmethod
    def close(self) -> None: ...

    def check_width(self, width: int) -> None:
        """Nothing of the page lies outside of a window so wide, and there is no sideways scrolling."""
        self.wait_for(f"document.documentElement.scrollWidth === {width}")
        outside = "[...document.querySelectorAll('main > *, section > :not(.scroll)')]"
        outside += f".filter(e => e.getBoundingClientRect().right > {width}).length"
        assert self.ask(outside) == 0

    def wait_for(self, condition: str, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < until, f"{condition}: {self.ask('document.body.innerText')} {self.complaints}"
            time.sleep(0.05)

    def middle(self, element: str) -> list[int]:
        box = f"document.getElementById('{element}').getBoundingClientRect()"
        found: list[int] = self.ask(f"[{box}.x + {box}.width / 2, {box}.y + {box}.height / 2].map(Math.round)")
        return found

    def pointer(self, element: str, right: int, down: int) -> list[dict[str, Any]]:
        """`drag` as WebDriver says it."""
        x, y = self.middle(element)
        move = {"type": "pointerMove", "duration": 50}
        steps = [{**move, "x": x, "y": y}, {"type": "pointerDown", "button": 0}]
        steps += [{**move, "x": x + right, "y": y + down}, {"type": "pointerUp", "button": 0}]
        return [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps}]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def address(page: Path | str) -> str:
    return page.resolve().as_uri() if isinstance(page, Path) else page
