"""`qcn explain`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import MODEL, check_file
from qcn.cli.say import command, say, say_next
from qcn.errors import UsageError, unknown_name
from qcn.terminal.progress import doing, shown


def explain(
    source: Annotated[str, typer.Argument(**MODEL)],
    image: Annotated[Path | None, typer.Argument(help="A picture of any size.")] = None,
    golden: Annotated[
        int | None, typer.Option(help="Use this golden image of the bundle, counted from 1. Default: the picture.")
    ] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Class whose votes to show. Default: the network's answer.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Page to write. Default: runs/explain/IMAGE.html.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the numbers to this JSON file. Default: none.")] = None,
) -> None:
    """Show how a network arrived at its answer to one image: capsules, votes and poses, on one page. Needs torch."""
    with shown():
        doing("loading torch")
        import torch  # noqa: F401 (first, so that its absence is what is reported)

        from qcn.explain import numbers, picture
        from qcn.explain.page import page
        from qcn.explain.panels import answer
        from qcn.explain.routing import look
        from qcn.explain.source import open_source
        from qcn.networks.shipped import place
        from qcn.storage import records
        from qcn.storage.files import write_text
        from qcn.terminal.text import readable

        if (image is None) == (golden is None):
            raise UsageError("give a picture, or one of the bundle's golden images with --golden NUMBER (not both)")
        target = save or Path("runs/explain") / f"{image.stem if image else f'golden{golden}'}.html"
        check_file("--save", target)
        check_file("--json", json)
        doing(f"opening {source}")
        network = open_source(place(source))
        if class_name is not None and class_name not in network.classes:
            raise unknown_name("class", class_name, network.classes)
        given = picture.from_file(image, network) if image else picture.from_golden(golden or 0, network)
        doing(f"looking at {given.name}")
        inside = look(network.program, given.input)
        index = inside.winner if class_name is None else network.classes.index(class_name)
        typed = command()
        doing("drawing the page")
        write_text(target, page(network, given, inside, index, typed))
        if json:
            records.write(json, numbers.record(network, given, inside, index, typed))
    say(f"{given.name}: {readable(network.classes[inside.winner])}. {answer(network, inside)}")
    for path in filter(None, (target, json)):
        say(path)
    say_next("xdg-open", target)
