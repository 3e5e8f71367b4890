"""Draws the pictures of docs/results.md from the JSON files in benchmarks/results.

python benchmarks/figures.py
"""

import math
import statistics
from typing import Any

from evidence import by_model, by_seed, chosen, mean_errors, robustness_files, trained_alike
from matplotlib.figure import Figure
from pages import ROOT, read

from qcn.plots import COLOURS
from qcn.text import counted

IMAGES = ROOT / "docs" / "images"
POLAR = "viewpoints-azimuth-pooled"


def save(canvas: Figure, name: str) -> None:
    canvas.savefig(IMAGES / name, dpi=110, bbox_inches="tight", pad_inches=0.12)
    print(IMAGES / name)


def robustness(dataset: str, record: dict[str, Any]) -> None:
    """A curve per corruption and attack, a reliability plot, and error against coverage; one colour per model."""
    panels = [*record["amounts"], "fgsm", "pgd"]
    columns = math.ceil((len(panels) + 3) / 2)
    canvas = Figure(figsize=(2.6 * columns, 6.4), layout="constrained")
    axes = canvas.subplots(2, columns).ravel()
    groups = dict(zip(COLOURS, by_model(record).items(), strict=False))
    for ax, kind in zip(axes, panels, strict=False):
        attack = kind not in record["amounts"]
        amounts = record["epsilons"] if attack else record["amounts"][kind]["values"]
        start = 1 if kind == "contrast" else 0
        for colour, (_, rows) in groups.items():
            measured = [row for row in rows if row["attacks"]] if attack else rows
            if measured:
                errors = mean_errors(measured, "attacks" if attack else "corruptions", kind)
                clean = 100 * statistics.mean(row["clean"]["error"] for row in measured)
                before = [] if attack else [(start, clean)]  # not all images are attacked
                ax.plot(
                    *zip(*before, *zip(amounts, errors, strict=True), strict=True), "o-", color=colour, markersize=3
                )
        unit = "largest change, of 255" if attack else record["amounts"][kind]["unit"]
        ax.set(title=kind.upper() if attack else kind, xlabel=unit, ylabel="error, %", ylim=(0, None))
        if kind == "contrast":
            ax.invert_xaxis()
    reliability, coverage, *empty = axes[len(panels) :]
    reliability.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for colour, (model, rows) in groups.items():
        bins = [b for b in rows[0]["calibration"]["bins"] if b["images"] >= 10]  # fewer say nothing
        reliability.plot([b["confidence"] for b in bins], [b["right"] for b in bins], "o-", color=colour, markersize=3)
        kept = rows[0]["rejection"]["coverage"]
        errors = [100 * statistics.mean(row["rejection"]["error"][at] for row in rows) for at in range(len(kept))]
        coverage.plot([100 * share for share in kept], errors, "o-", color=colour, markersize=3)
        empty[0].plot([], [], "o-", color=colour, label=f"{model} ({len(rows)})")
    reliability.set(title="reliability", xlabel="probability said", ylabel="share that is right", ylim=(0, 1.05))
    coverage.set(title="the least certain refused", xlabel="answered, %", ylabel="error, %", ylim=(0, None))
    for ax in empty:
        ax.axis("off")
    empty[0].legend(frameon=False, loc="center", title=f"{dataset}: network (runs)")
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    save(canvas, f"robustness-{dataset}.png")


def azimuths(rows: list[dict[str, Any]]) -> bool:
    """Error at each azimuth as a polar plot, QCN beside its rivals; False where no run on record has such errors."""
    rows = [row for row in rows if "novel" in (row.get("by_azimuth") or {})]
    ours = chosen(rows, POLAR, "qcn")
    if not ours:
        return False
    rivals = {model: chosen(rows, POLAR, model) for model in ("cnn-small", "cnn")}
    groups = {"qcn": ours} | {model: runs for model, runs in rivals.items() if runs and trained_alike(ours, runs)}
    canvas = Figure(figsize=(6.4, 5.6), layout="constrained")
    ax = canvas.subplots(subplot_kw={"projection": "polar"})
    for colour, (model, runs) in zip(COLOURS, groups.items(), strict=False):
        angles = sorted(map(int, _by_azimuth(runs[0])))
        found = [
            by_seed(runs, lambda row, angle=angle: 100 * _by_azimuth(row)[str(angle)]["error"]) for angle in angles
        ]
        means = [statistics.mean(errors.values()) for errors in found]
        around = [math.radians(angle) for angle in (*angles, angles[0])]
        label = f"{model} ({counted(len(found[0]), 'seed')})"
        ax.plot(around, [*means, means[0]], "o-", color=colour, markersize=3, label=label)
    known = [math.radians(angle) for angle in angles if str(angle) not in runs[0]["by_azimuth"]["novel"]]
    ax.scatter(known, [ax.get_rmax()] * len(known), color="0.3", s=22, zorder=3, clip_on=False, label="trained on")
    ax.set_theta_zero_location("N")
    ax.set_rlabel_position(63)  # between what was trained on and the curves
    ax.set_title("Error on known toys by azimuth, %", pad=18)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.05))
    save(canvas, "azimuths.png")
    return True


def _by_azimuth(row: dict[str, Any]) -> dict[str, Any]:
    """The errors of a run at the azimuths of both splits."""
    return {**row["by_azimuth"].get("familiar", {}), **row["by_azimuth"]["novel"]}


def poses(record: dict[str, Any]) -> None:
    """Circular correlations of the objects, and for each layer the angles and the axes of its rotors."""
    import numpy as np

    layers = record["rotors"]["trained"]
    canvas = Figure(figsize=(3.3 * (1 + len(layers)), 5.4), layout="constrained")
    grid = canvas.add_gridspec(2, 1 + len(layers))
    ax = canvas.add_subplot(grid[:, 0])
    for place, (which, name) in enumerate(
        (which, name) for name in ("once", "twice") for which in ("trained", "untrained")
    ):
        values = record["turning"][which][name]
        colour = COLOURS[0] if which == "trained" else "0.6"
        offsets = np.linspace(-0.3, 0.3, len(values["each"]))
        ax.scatter(place + offsets, values["each"], s=5, color=colour, alpha=0.6)
        ax.plot([place - 0.35, place + 0.35], [values["mean"]] * 2, color="k")
        ax.plot([place - 0.35, place + 0.35], [values["chance"]] * 2, color="k", linestyle=":")
    labels = ["azimuth,\ntrained", "azimuth,\nuntrained", "2 × azimuth,\ntrained", "2 × azimuth,\nuntrained"]
    ax.set_xticks(range(4), labels, fontsize=7)
    ax.set(title="pose against azimuth\n(— mean, ··· chance)", ylabel="circular correlation", ylim=(0, 1))
    for column, (layer, found) in enumerate(layers.items(), 1):
        ax = canvas.add_subplot(grid[0, column])
        centres = (np.arange(len(found["degrees"])) + 0.5) * 180 / len(found["degrees"])
        ax.bar(centres, found["degrees"], width=180 / len(found["degrees"]) * 0.9, color=COLOURS[0])
        before = record["rotors"]["untrained"][layer]["degrees"]
        ax.step(centres, before, where="mid", color="0.4", linewidth=1)
        ax.set(title=f"{layer}: {found['rotors']:,} rotors", xlabel="angle, degrees", yticks=[])
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax = canvas.add_subplot(grid[1, column], projection="mollweide")
        counts = np.array(found["axes"])
        while counts.sum() < 2 * counts.size and counts.shape[0] % 2 == 0:  # few rotors: larger fields
            counts = counts.reshape(counts.shape[0] // 2, 2, counts.shape[1] // 2, 2).sum((1, 3))
        longitude = np.linspace(-np.pi, np.pi, counts.shape[1] + 1)
        latitude = np.arcsin(np.linspace(-1, 1, counts.shape[0] + 1))
        ax.pcolormesh(longitude, latitude, counts / counts.mean(), cmap="Blues", vmin=0, vmax=2.5)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title("axes: density on the sphere", fontsize=8)
    save(canvas, "poses.png")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for dataset, record in robustness_files().items():
        robustness(dataset, record)
    azimuths(read("accuracy-h200.json")["results"])
    poses(read("poses.json"))


if __name__ == "__main__":
    main()
