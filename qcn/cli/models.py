"""`qcn models`."""

import json
from typing import Annotated

import typer

from qcn.cli.say import say, show
from qcn.names import CARD, CARD_TEXT
from qcn.terminal.tables import table_of


def models(
    name: Annotated[str | None, typer.Argument(help="Print the card of this network. Default: list all.")] = None,
) -> None:
    """List the trained networks that come with qcn, or print the model card of one of them."""
    from qcn.networks.shipped import SHIPPED, find_network, networks

    if name is not None:
        print((find_network(name) / CARD_TEXT).read_text(encoding="utf-8"), end="")
        return
    numbers = ("test error, or familiar / novel", "parameters", "size")
    table = table_of("name", *numbers, right=numbers, whole=("name",))
    for folder in networks().values():
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        errors = " / ".join(f"{100 * rate['error']:.2f} %" for rate in card["errors"].values())
        size = sum(file.stat().st_size for file in folder.iterdir())
        table.add_row(folder.name, errors, f"{card['parameters']:,}", f"{size / 1e6:.2f} MB")
    show(table)
    say(f"They are bundles, in {SHIPPED}, and answer without torch: qcn predict PICTURE --model mnist")
    say("Every command that takes a bundle or a run also takes these names, with or without -qcn.")
    say("To see a network's card, with its data, recipe, intervals and limits: qcn models NAME")
