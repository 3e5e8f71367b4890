"""HTML pages: each one file that asks nothing of any network.

What a page says may come from a stranger's bundle or picture, so every word is escaped (Jinja's autoescape).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import qcn
from qcn.text import readable


def render(template: Path, sheets: Sequence[Path], filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """The page of a template. It is also given `css`, the style sheets, the `version`, and when it was `made`."""
    environment = Environment(
        loader=FileSystemLoader(template.parent, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    environment.filters |= {"readable": readable, **filters}
    return environment.get_template(template.name).render(
        css="\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets),
        version=qcn.__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **values,
    )


def _without_controls(value: Any) -> Any:
    """What is put into a page: text with its control characters written out; what the templates made, as it is."""
    return readable(value, keep="\n") if type(value) is str else value
