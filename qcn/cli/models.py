"""`qcn models`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def models(
    name: Annotated[str | None, typer.Argument(help="One of them, to read its card; all if not given.")] = None,
) -> None:
    """List the trained networks that come with qcn; with a name, print what is known of that one (its model card)."""
    from qcn.cards import load_card, text
    from qcn.shipped import find_network, networks

    if name is not None:
        print(text(load_card(find_network(name))), end="")
        return
    table = Table(box=None)
    for heading in ("name", "data set", "test error", "familiar / novel", "parameters", "size"):
        left = heading in ("name", "data set")
        table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for folder in networks().values():
        card = load_card(folder)
        error = ("", card.headline) if "novel" in card.errors else (card.headline, "")
        table.add_row(card.name, card.data.name, *error, f"{card.parameters:,}", f"{card.bytes / 1e6:.2f} MB")
    Console(markup=False, emoji=False).print(table)
    print("Every command that takes a run takes a name, and -qcn may be left out: qcn predict PICTURE --model mnist")
    print("The card of one, with its data, recipe, intervals and limits: qcn models NAME")
