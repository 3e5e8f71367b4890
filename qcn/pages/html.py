"""HTML pages: each one file that asks nothing of any network.

Text may come from an untrusted bundle or picture, so all of it is escaped (Jinja's autoescape). All pages
extend base.html.jinja, use the parts of parts.html.jinja, and look as html.css says.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import qcn
from qcn.terminal.text import readable

HERE = Path(__file__).parent
CSS = HERE / "html.css"


def render(
    template: Path, *sheets: Path, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any
) -> str:
    """The page of a template, with style sheets of its own after the common one.

    It is also given `css`, the style sheets, the `version`, and when it was `made`.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, HERE], encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    environment.filters |= {"readable": readable, "coded": _coded, **(filters or {})}
    return environment.get_template(template.name).render(
        css="\n".join(sheet.read_text(encoding="utf-8") for sheet in (CSS, *sheets)),
        version=qcn.__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **values,
    )


def _coded(text: str) -> Markup:
    """A message with what stands between backticks, such as a command, as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(readable(text, keep="\n")))))


def _without_controls(value: Any) -> Any:
    """Escape control characters of text that is put into a page; markup of the templates stays."""
    return readable(value, keep="\n") if type(value) is str else value
