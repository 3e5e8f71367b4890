"""`qcn predict`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import MODEL, Backend, PublicKey, check_file
from qcn.cli.say import say, show
from qcn.errors import CheckFailed
from qcn.progress import doing, shown
from qcn.tables import table_of
from qcn.text import counted, readable


def predict(
    sources: Annotated[
        list[str], typer.Argument(help="Pictures, folders, patterns, videos, or camera (camera1 for the second).")
    ],
    model: Annotated[str, typer.Option(**MODEL)],
    backend: Backend = "auto",
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per picture.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Batch size.")] = 16,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Most frames to take from a video or camera. Default: all.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write all answers to this JSON file. Default: none.")] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Write a CSV table: file, label, probability, known, one logit per class. Default: none."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write each picture with its answer, and a sheet of all, into this folder. Default: none."),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Classify pictures, videos or camera frames."""
    from qcn.predict import draw, records
    from qcn.predict.open import open_model
    from qcn.predict.sources import count, pictures

    check_file("--json", json)
    check_file("--csv", csv)
    table = table_of("file", "label", "probability", right=("probability",), whole=("probability",))
    rows: list[records.Row] = []
    cards = []
    unreadable = []
    with shown():
        doing(f"loading {model}")
        total = count(sources)
        answering = open_model(model, backend, public_key)
        began = time.perf_counter()
        for row, pixels in records.answered(answering, pictures(sources, frames), batch):
            rows.append(row)
            rate = len(rows) / (time.perf_counter() - began)
            done = f"{counted(len(rows), 'picture')}, {rate:,.0f}/s, by {answering.backend}"
            doing(done, len(rows) if total else None, of=total or 1)
            if row.answer is None or pixels is None:
                unreadable.append(row)
                continue
            if save:
                card = draw.drawn(pixels, row.answer)
                draw.save(card, save / records.file_name(row.file, len(rows)))
                cards.append(card)
            for place, (label, probability) in enumerate(row.answer.top(top)):
                named, said = ("", label) if place else (row.file, row.answer.words())
                table.add_row(readable(named), readable(said), f"{100 * probability:.1f} %")
    show(table)
    seconds = time.perf_counter() - began
    if save and cards:
        draw.save(draw.contact_sheet(cards), save / "sheet.png")
        say(save / "sheet.png")
    if json:
        records.write_json(json, rows)
        say(json)
    if csv:
        records.write_csv(csv, rows, answering.classes)
        say(csv)
    read = len(rows) - len(unreadable)
    print(
        f"{counted(read, 'picture')} in {seconds:.2f} s ({read / seconds:,.0f}/s), including reading, by "
        f"{answering.backend}"
    )
    for row in unreadable:
        typer.echo(row.error, err=True)
    if unreadable:
        raise CheckFailed(f"{len(unreadable):,} of {counted(len(rows), 'picture')} could not be read")
