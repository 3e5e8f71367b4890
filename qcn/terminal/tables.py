"""Tables for a terminal."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table


def table_of(
    *headings: str,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    title: str | None = None,
    framed: bool = False,
) -> "Table":
    """An empty table: columns on the `right`, as numbers are, and those that stay `whole` and never break a line."""
    from rich.box import HEAVY_HEAD
    from rich.table import Table

    table = Table(box=HEAVY_HEAD if framed else None, title=title, title_justify="center" if framed else "left")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, no_wrap=heading in whole, overflow="fold")
    return table
