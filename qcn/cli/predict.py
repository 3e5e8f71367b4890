"""`qcn predict`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qcn.cli.options import PublicKey, check_file
from qcn.errors import CheckFailed


def predict(
    sources: Annotated[
        list[str], typer.Argument(help="Pictures, folders, patterns, videos, or camera (camera1 for the second).")
    ],
    model: Annotated[str, typer.Option(help="A bundle, a training run, or the name of a network that ships.")],
    backend: Annotated[str, typer.Option(help="auto, native, tensorrt or onnxruntime.")] = "auto",
    top: Annotated[int, typer.Option(min=1, help="How many classes to show of each picture.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Pictures at once.")] = 16,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Frames of a video or camera, at most; all if not given.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File to write all answers to; none if not given.")] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Table to write: file, label, probability, one column per class; none if not given."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Folder for each picture with its answer, and a sheet of all; none if not given."),
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Say what is in pictures."""
    from qcn.predict import draw, records
    from qcn.predict.open import open_model
    from qcn.predict.sources import count, pictures

    check_file("--json", json)
    check_file("--csv", csv)
    total = count(sources)
    answering = open_model(model, backend, public_key)
    progress = Console(stderr=True)
    console = Console(markup=False, emoji=False)
    table = Table(box=None)
    for heading in ("file", "label", "probability", "activation"):
        table.add_column(
            heading, justify="right" if heading in ("probability", "activation") else "left", overflow="fold"
        )
    rows: list[records.Row] = []
    cards = []
    unreadable = []
    began = time.perf_counter()
    with progress.status(f"{model} on {answering.backend}") as status:
        for row, pixels in records.answered(answering, pictures(sources, frames), batch):
            rows.append(row)
            if row.answer is None or pixels is None:
                unreadable.append(row)
                continue
            if save:
                card = draw.drawn(pixels, row.answer)
                draw.save(card, save / records.file_name(row.file, len(rows)))
                cards.append(card)
            for place, (label, probability) in enumerate(row.answer.top(top)):
                index = answering.classes.index(label)
                active = f"{row.answer.activation[index]:.4f}"
                table.add_row("" if place else row.file, label, f"{100 * probability:.1f} %", active)
            rate = len(rows) / (time.perf_counter() - began)
            status.update(f"{len(rows):,} of {total:,}" if total else f"{len(rows):,}, {rate:,.0f} pictures/s")
    console.print(table)
    seconds = time.perf_counter() - began
    if save and cards:
        draw.save(draw.contact_sheet(cards), save / "sheet.png")
        print(save / "sheet.png")
    if json:
        records.write_json(json, rows)
        print(json)
    if csv:
        records.write_csv(csv, rows, answering.classes)
        print(csv)
    read = len(rows) - len(unreadable)
    print(f"{read:,} pictures in {seconds:.2f} s ({read / seconds:,.0f}/s), reading included, by {answering.backend}")
    for row in unreadable:
        typer.echo(f"{row.file}: {row.error}", err=True)
    if unreadable:
        raise CheckFailed(f"{len(unreadable):,} of {len(rows):,} pictures could not be read")
