"""Draw the pictures of README and docs: docs/images/novel.png, the views that a network learns from and is asked about;
azimuths.png, its errors by azimuth; history.png, the times of benchmarks/history.csv.

python tools/pictures.py
"""

import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from comparison import by_seed, choose, trained_alike
from measurements import ROOT, grouped, read, rows_of

from qcn.data.viewpoints import raytrace
from qcn.data.viewpoints.light import LIGHTS
from qcn.data.viewpoints.toys import CATEGORIES, toy
from qcn.pages.plots import COLOURS
from qcn.terminal.text import counted

IMAGES = ROOT / "docs" / "images"
POLAR = "viewpoints-azimuth-pooled"
TOYS = (("animal", 0), ("truck", 3))
# As in the split `viewpoints-azimuth`: by heading, its azimuths in degrees, in two rows per toy.
BLOCKS = {"It learns from these views …": (300, 320, 340, 0, 20, 40), "… and is asked about these": range(60, 300, 20)}
TILE, GAP, BLOCK_GAP, HEADING = 128, 6, 34, 52


def views() -> None:
    """docs/images/novel.png."""
    columns = [len(azimuths) // 2 for azimuths in BLOCKS.values()]
    width = sum(columns) * (TILE + GAP) + BLOCK_GAP - GAP
    picture = Image.new("RGB", (width, HEADING + 2 * len(TOYS) * (TILE + GAP) - GAP), "white")
    draw = ImageDraw.Draw(picture)
    left = 0
    for (heading, azimuths), colour, across in zip(BLOCKS.items(), COLOURS, columns, strict=False):
        draw.text((left, 4), heading, fill=colour, font=ImageFont.load_default(30))
        for row, (category, instance) in enumerate(TOYS):
            shown = toy(CATEGORIES.index(category), instance, 0)
            angles, light = np.array(azimuths), LIGHTS[:1]
            tiles = raytrace.render(shown, np.array([35]), angles, light, size=TILE, device=torch.device("cpu"))
            for place, view in enumerate(tiles[0, :, 0, 0]):
                x = left + place % across * (TILE + GAP)
                y = HEADING + (2 * row + place // across) * (TILE + GAP)
                picture.paste(Image.fromarray(view), (x, y))
                draw.rectangle((x, y, x + TILE - 1, y + TILE - 1), outline=colour, width=3)
        left += across * (TILE + GAP) - GAP + BLOCK_GAP
    picture.quantize(128).save(IMAGES / "novel.png", optimize=True)


def azimuths(rows: list[dict[str, Any]]) -> None:
    """docs/images/azimuths.png: the error at each azimuth as a polar plot, QCN beside its rivals."""
    rows = [row for row in rows if "novel" in (row.get("by_azimuth") or {})]
    ours = choose(rows, POLAR, "qcn")
    rivals = {model: choose(rows, POLAR, model) for model in ("cnn-small", "cnn")}
    groups = {"qcn": ours} | {model: runs for model, runs in rivals.items() if runs and trained_alike(ours, runs)}
    canvas = Figure(figsize=(6.4, 5.6), layout="constrained")
    ax = canvas.subplots(subplot_kw={"projection": "polar"})
    for colour, (model, runs) in zip(COLOURS, groups.items(), strict=False):
        angles = sorted(map(int, _by_azimuth(runs[0])))
        result = [
            by_seed(runs, lambda row, angle=angle: 100 * _by_azimuth(row)[str(angle)]["error"]) for angle in angles
        ]
        means = [statistics.mean(errors.values()) for errors in result]
        around = [math.radians(angle) for angle in (*angles, angles[0])]
        label = f"{model} ({counted(len(result[0]), 'seed')})"
        ax.plot(around, [*means, means[0]], "o-", color=colour, markersize=3, label=label)
    known = [math.radians(angle) for angle in angles if str(angle) not in runs[0]["by_azimuth"]["novel"]]
    ax.scatter(known, [ax.get_rmax()] * len(known), color="0.3", s=22, zorder=3, clip_on=False, label="trained on")
    ax.set_theta_zero_location("N")
    ax.set_rlabel_position(63)  # between what was trained on and the curves
    ax.set_title("Error on known toys by azimuth, %", pad=18)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.05))
    canvas.savefig(IMAGES / "azimuths.png", dpi=110, bbox_inches="tight", pad_inches=0.12)


def _by_azimuth(row: dict[str, Any]) -> dict[str, Any]:
    """The errors of a run at the azimuths of both splits."""
    return {**row["by_azimuth"].get("familiar", {}), **row["by_azimuth"]["novel"]}


def history(rows: list[dict[str, Any]]) -> None:
    """docs/images/history.png: the median time of libqcn by commit, one line per network, precision and machine."""
    rows = sorted((row for row in rows if row["backend"] == "native"), key=lambda row: row["date"])
    when = [f"{row['date']}\n{row['commit']}" for row in rows]
    commits = list(dict.fromkeys(when))
    canvas = Figure(figsize=(8, 4.2), layout="constrained")
    ax = canvas.subplots()
    lines = grouped(rows, lambda row: (row["machine"].split(",")[0], row["network"], row["precision"]))
    for place, ((machine, network, precision), points) in enumerate(sorted(lines.items())):
        at = [commits.index(f"{row['date']}\n{row['commit']}") for row in points]
        style = {"fp32": "o-", "int8": "s--"}[precision]
        label = f"{network}, {'calibrated' if precision == 'int8' else precision}, {machine}"
        ax.plot(at, [float(row["median_ms"]) for row in points], style, color=f"C{place // 2}", label=label)
    ax.set_xticks(range(len(commits)), commits)
    ax.set_yscale("log")
    ax.set(title="libqcn, 1 image, median milliseconds", ylabel="ms")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.02))
    canvas.savefig(IMAGES / "history.png", dpi=110, bbox_inches="tight", pad_inches=0.12)


if __name__ == "__main__":
    views()
    azimuths(read("accuracy-h200.json")["results"])
    history(rows_of(ROOT / "benchmarks" / "history.csv"))
