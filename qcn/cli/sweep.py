"""`qcn sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from qcn.cli.options import DATA, DataDir, data_dir_option
from qcn.cli.say import command, say, say_next, show
from qcn.errors import Stopped
from qcn.names import Engine
from qcn.terminal.progress import doing, shown
from qcn.terminal.text import counted


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file of settings, lists of them and ranges: docs/training.md.")],
    trials: Annotated[
        list[str] | None, typer.Argument(help="Trials of its [trials], or patterns such as 'mnist-*'. Default: all.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="This process, or ray: one per GPU or core, here or on a cluster.")
    ] = "process",
    data_dir: DataDir = DATA,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; one that was begun is gone on with. Default: runs/sweep/FILE.")
    ] = None,
) -> None:
    """Train over lists and ranges of settings, stop weak trials early, and rank them on validation."""
    from qcn.sweep.plan import read_sweep

    plan = read_sweep(file)
    chosen = plan.only(trials or ())
    folder = out or Path("runs/sweep") / file.stem
    sizes = f"{counted(len(chosen.trials), 'trial')}, {counted(chosen.runs, 'run')}, {counted(chosen.cost, 'epoch')}"
    judged = ", ".join(map(str, chosen.rungs[:-1]))
    say(f"{sizes} in all" + (f"; weak ones are stopped after {judged} epochs" if judged else ""))
    with shown():
        doing("loading torch")
        from qcn.sweep import outcome, run

        try:
            outcomes = run.sweep(plan, folder, data_dir, engine, only=trials or ())
        except Stopped as error:
            raise Stopped(f"stopped and saved; continue with: {command()}") from error
        files = outcome.write(folder, plan, outcomes)
    show(outcome.table(outcomes))
    for path in files:
        say(path)
    if files[-1].name == outcome.BEST:
        name = outcomes[0].trial.name
        say(f"best on validation, by which it was chosen: {name}; with fresh seeds it says how good it is")
        say_next("qcn", "sweep", files[-1], *data_dir_option(data_dir))
