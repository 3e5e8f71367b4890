"""Write the tables of the documentation from the files in benchmarks/results, and docs/runs.csv.

    python benchmarks/tables.py

A page has a table between `<!-- table: NAME -->` and `<!-- end of table -->`. The text around it is written by hand.
"""

import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import comparison
from measurements import RESULTS, ROOT, Row, csv_text, grouped, read, rows_of, table

PAGES = [ROOT / "docs" / name for name in ("results.md", "speed.md", "calibrate.md")]
RUNS = ROOT / "docs" / "runs.csv"
H200 = "x86_64, 16 cores, NVIDIA H200"


def runs() -> list[Row]:
    return list(read("accuracy-h200.json")["results"])


def runs_csv() -> str:
    """docs/runs.csv: one line per training run."""
    lines = []
    for row in (one for several in comparison.by_recipe(runs()).values() for one in several):
        recipe, machine, splits = comparison.recipe(row), row["machine"], row["splits"]
        figures = {
            f"{split}_{name}": splits[split][name] if split in splits else ""
            for split in ("test", "familiar", "novel")
            for name in ("wrong", "total")
        }
        lines.append(
            {
                **{name: row[name] for name in ("dataset", "model", "seed", "loss", "lr")},
                "settings": recipe.varied,
                "batch_size": row["batch_size"],
                "epochs": row["epochs"],
                "epoch": row["epoch"],
                "validation_error": row["validation_error"],
                "error_percent": f"{comparison.error_of(row):.2f}",
                **figures,
                "seconds": f"{row['seconds']:.0f}" if "seconds" in row else "",
                "machine": machine["gpu"].partition(",")[0],
                "torch": machine["torch"],
                "commit": machine["commit"][:7],
                "date": machine.get("date", ""),
                "weights_sha256": row["weights_sha256"],
            }
        )
    return csv_text(lines)


def quality() -> str:
    return comparison.quality(runs(), read("published.json"))


def ablations() -> str:
    return comparison.ablations(runs())


def robustness() -> str:
    """By data set and network: errors at the middle severity, under attack, calibration, and after rejection."""
    lines, kinds = [], ("rotation", "shift", "noise", "blur", "contrast")
    for record in (read(file.name) for file in sorted(RESULTS.glob("robustness-*.json"))):
        weakest = record["epsilons"].index(4)
        for row in sorted(record["results"], key=lambda row: (row["model"] != "qcn", row["model"])):
            at = row["rejection"]["coverage"].index(0.9)
            rates = [row["clean"], *(row["corruptions"][kind][2] for kind in kinds), row["attacks"]["pgd"][weakest]]
            cells = [f"{100 * rate['error']:.1f}" for rate in rates]
            cells += [f"{100 * row['calibration']['error']:.1f}", f"{100 * row['rejection']['error'][at]:.1f}"]
            lines.append([f"{record['dataset']}, `{row['model']}`", *cells])
    return table(["", "clean", *kinds, "PGD 4/255", "ECE", "least sure 10 % refused"], lines)


def unknown() -> str:
    """The share of pictures that each network calls known."""
    others, lines = ("mnist", "fashion-mnist", "cifar10", "toys", "noise"), []
    for row in sorted(read("unknown.json")["results"], key=lambda row: str(row["network"])):
        rates = [row["kept"], *(row["others"].get(name, {}).get("called_known") for name in others)]
        lines.append([f"`{row['network']}`", *(f"{100 * rate['error']:.0f}" if rate else "" for rate in rates)])
    return table(["network", "own, right", *others], lines)


def one_answer() -> str:
    """By network: the answers that differ from Python's, and the largest difference of a probability, by way."""
    rows = read("one-answer.json")["results"]
    cells = [
        [
            f"`{row['network']}`",
            f"{row['pictures']:,}",
            str(sum(of[what] for of in row["ways"].values() for what in ("label", "order", "known"))),
            *(f"{row['ways'][name]['probability']:.0e}" for name in ("shell", "C++", "page")),
        ]
        for row in rows
    ]
    return table(["network", "pictures", "other answers", "shell", "C++", "page"], cells)


def times(**wanted: Any) -> list[Row]:
    """The rows of speed.csv that have these values; a value may be one of several."""
    several = {name: value if isinstance(value, tuple) else (value,) for name, value in wanted.items()}
    rows = rows_of(RESULTS / "speed.csv")
    return [row for row in rows if all(row.get(name, "") in values for name, values in several.items())]


def ms(figure: str | float | None) -> str:
    """Milliseconds, three digits."""
    if not figure:
        return ""
    x = float(figure)
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def engines(rows: Iterable[Row], names: dict[str, str]) -> str:
    """Medians at batch 1 and 64 by what `names` calls a row: its backend, and whether its routing is fused."""
    cells: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        kind = "fused" if "fused" in row["file"] else "unrolled" if "engine" in row["file"] else ""
        name = names.get(f"{row['backend']} {kind}".strip())
        # Of engines for one batch and for several, the one for the batch alone.
        if name and (f"b{row['batch']}-" in row["file"] or row["batch"] not in cells.get((name, row["precision"]), {})):
            cells.setdefault((name, row["precision"]), {})[row["batch"]] = row
    order = list(dict.fromkeys(names.values()))
    lines = [
        [name, precision, *(ms(of.get(batch, {}).get(what)) for batch in ("1", "64") for what in FIGURES)]
        for (name, precision), of in sorted(
            cells.items(), key=lambda one: (order.index(one[0][0]), one[0][1] != "fp32")
        )
        if precision == "fp32" or "fused" in name  # the others are as fast in fp16
    ]
    return table(["", "precision", "1 image", "without transfers", "64 images", "without transfers"], lines)


FIGURES = ("median_ms", "compute_ms")
WAYS = {
    "tensorrt fused": "TensorRT, fused routing",
    "torch-cuda": "PyTorch, fused routing",
    "tensorrt unrolled": "TensorRT, standard operators",
    "torchscript-cuda": "TorchScript",
    "onnxruntime-cuda": "ONNX Runtime",
}


def gpu() -> str:
    return engines(times(machine=H200, commit="399668c", variant=""), WAYS)


def calibrated_engines() -> str:
    lines = []
    for precision in ("fp32", "fp16", "int8"):
        rows = times(machine=H200, commit="29693a5", variant="", network="cifar10-qcn", precision=precision)
        by_batch = {row["batch"]: row["median_ms"] for row in rows}
        lines.append([precision, ms(by_batch["1"]), ms(by_batch["64"])])
    return table(["`cifar10-qcn`", "1 image", "64 images"], lines)


def libqcn_gpu() -> str:
    """What a C++ program waits for: from images, and from inputs that were pre-processed before."""
    lines = []
    rows = read("libqcn-h200.json")["results"]
    for (name, batch), several in grouped(rows, lambda row: (row["name"], row["batch"])).items():
        of = {row["preprocessing"]: row["latency_ms"] for row in several}
        lines.append([f"`{name}`", str(batch), ms(of[True]["p50"]), ms(of[True]["p99"]), ms(of[False]["p50"])])
    return table(["network", "images", "median", "p99", "pre-processed before"], lines)


def arm() -> str:
    rows = times(commit="9c44b90", batch="1", file=("weights.safetensors", "model.ts", "model.onnx", NAIVE))
    names = {
        "native": "libqcn",
        "torch-fused": "PyTorch, fused routing",
        "torch": "PyTorch",
        "torchscript": "TorchScript",
    }
    lines = [
        [
            names.get(
                row["backend"],
                f"ONNX Runtime, {'graph of torch’s own exporter' if row['file'] == NAIVE else '`qcn export`'}",
            ),
            ms(row["median_ms"]),
        ]
        for row in sorted(rows, key=lambda row: float(row["median_ms"]))
    ]
    return table(["fp32", "1 image"], lines)


NAIVE = "by torch's own exporter"


def cpu() -> str:
    """Medians and 99th percentiles of the newest release in history.csv."""
    rows = rows_of(ROOT / "benchmarks" / "history.csv")
    of = {
        (row["network"], row["backend"], row["precision"]): [ms(row["median_ms"]), ms(row["p99_ms"])]
        for row in rows
        if row["release"] == rows[-1]["release"] and row["machine"].startswith("x86_64")
    }
    kinds = (("native", "fp32"), ("native", "int8"), ("onnxruntime", "fp32"))
    lines = [
        [f"`{network}`", *(figure for kind in kinds for figure in of[(network, *kind)])]
        for network in dict.fromkeys(network for network, _, _ in of)
    ]
    return table(["1 image", "libqcn", "p99", "libqcn, calibrated", "p99", "ONNX Runtime", "p99"], lines)


def instruction_sets() -> str:
    """Least times of a network in fp32 and calibrated, by the instruction sets allowed."""
    rows, lines = times(commit=("a42da51", "578dc77"), network="cifar10-qcn"), []
    for name, of in grouped(rows, lambda row: row["instruction_set"]).items():
        least = {row["precision"]: row["least_ms"] for row in of}
        before, after = least["fp32"], least["calibrated"]
        lines.append([f"`{name}`", ms(before), ms(after), f"{float(before) / float(after):.2f}"])
    return table(["up to", "fp32", "calibrated", "times as fast"], lines)


def browser() -> str:
    lines = []
    for machine, narrow in (("x86_64, 2 cores", "sse2"), ("aarch64, 2 cores", "neon")):
        keys = (("native", ""), ("native", narrow), ("web, Node", ""), ("web, Chromium", ""))
        for network, rows in grouped(times(machine=machine, variant="1 thread"), lambda row: row["network"]).items():
            of = {(row["backend"], row.get("instruction_set", "")): row["least_ms"] for row in rows}
            lines.append([f"`{network}`, {machine.partition(',')[0]}", *(ms(of[key]) for key in keys)])
    return table(["network", "libqcn", "libqcn, 128 bits", "Node", "Chromium"], lines)


def routing_gpu() -> str:
    """Batch 64 alone."""
    record, graph = read("routing-cuda.json"), ", CUDA graph"
    rows = {row["variant"]: row for row in record["inference"] if row["batch"] == 64}
    steps = {row["variant"]: row["ms"] for row in record["training"]}
    lines = [
        [name, ms(row["ms"]), ms(rows[name + graph]["ms"]), ms(steps[name]), f"{row['peak_gib'] * 1024:,.0f}"]
        for name, row in rows.items()
        if not name.endswith(graph)
    ]
    return table(["64 images", "forward", "as a CUDA graph", "training step", "MiB of a forward"], lines)


def routing_cpu() -> str:
    record = read("routing-cpu.json")
    lines = [
        [f"{what}, {row['variant']}", str(row["batch"]), ms(row["ms"])]
        for what, part in (("forward", "inference"), ("training step", "training"))
        for row in record[part]
        if row["batch"] < 16
    ]
    return table(["", "images", "ms"], lines)


def routing_cpp() -> str:
    """The CUDA C++ kernels that are chosen, all layers as one graph."""
    rows = [row for row in read("routing-cuda-cpp.json")["results"] if row["layer"] == "all four" and row["chosen"]]
    batches = sorted({row["batch"] for row in rows})
    by = {(row["batch"], row["arithmetic"]): row["us"] for row in rows}
    lines = [[str(batch), *(f"{by[batch, arithmetic]:.0f}" for arithmetic in ("single", "half"))] for batch in batches]
    return table(["images", "single, µs", "half, µs"], lines)


def calibrated() -> str:
    """What was chosen, what it costs and what it saves on each machine; errors are the same on all."""
    machines = ("x86_64", "aarch64")
    every = [{**row, "on": machine} for machine in machines for row in read(f"calibrate-{machine}.json")["results"]]
    lines = []
    for network, rows in grouped(every, lambda row: row["model"]).items():
        cells, times = set(), dict.fromkeys(machines, "")
        for row in rows:
            (after,) = [one for one in row["rows"] if one["what"] == "calibrated" and one["split"] != "familiar"]
            size = row["weights"]["calibrated"] / row["weights"]["float32"]
            error = f"{100 * after['error']['error'] - after['drop']:.2f}"
            lost = f"{after['drop']:+.2f} ({after['low']:+.2f} to {after['high']:+.2f})"
            cells.add((row["words"], error, lost, f"{100 * size:.0f} %"))
            took = row["timed"][row["words"]]
            times[row["on"]] = f"{took['float32']:.2f} → {took['milliseconds']:.2f}"
        (same,) = cells
        lines.append([f"`{network}`", *same, *times.values()])
    headings = ["network", "chosen", "error, %", "points lost", "weights", "x86_64, ms", "aarch64, ms"]
    return table(headings, lines)


# The rows of the table of directions: data set, network and, as in the file of results, what was changed and how many
# images it was trained on. Every run is in that file.
DIRECTIONS = (
    ("viewpoints, test", "qcn-deep", "without directions", 21870),
    ("viewpoints, test", "cnn-small", "without directions", 21870),
    ("viewpoints, test", "qcn-deep", "epochs 120", 21870),
    ("viewpoints, test", "cnn-small", "epochs 120", 21870),
    ("viewpoints, test", "qcn-deep", "epochs 120", 24300),
    ("viewpoints-azimuth-pooled, novel", "qcn-deep", "", 12960),
    ("eth80, five folds, test", "qcn-deep", "weight 10", 2296),
    ("eth80, five folds, test", "cnn-small", "weight 10", 2296),
    ("coil20-between, novel", "qcn-deep", "", 560),
    ("coil20-between, novel", "cnn-small", "", 560),
    ("scanned, test", "qcn-deep", "", 8000),
    ("scanned, test", "cnn-small", "", 8000),
    ("scanned-128, test", "qcn-lite0", "weight 5", 8000),
    ("scanned-128, test", "cnn-lite0", "weight 5", 8000),
    ("scanned-128, test", "qcn-lite0", "weight 15, epochs 48", 8000),
)


def direction() -> str:
    """Class error and direction, by row and recipe: means over seeds or folds, errors with standard deviations."""
    every = []
    for row in read("direction-h200.json")["results"]:
        dataset, model, weight = row["row"].split("/")
        data = re.sub(r"-fold\d$", ", five folds", dataset)
        changes = [f"{name} {value}" for name, value in row["changed"].items()]
        weighed = {"off": ["without directions"], "3": []}.get(weight, [f"weight {weight}"])
        words = ", ".join(weighed + changes)
        for split, figures in row["splits"].items():
            every.append({**figures, "key": (f"{data}, {split}", model, words, row["train"])})
    groups, lines = grouped(every, lambda row: row["key"]), []
    for key in DIRECTIONS:
        data, model, words, train = key
        errors = [row["error"] for row in groups[key]]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        error = f"{statistics.mean(errors):.2f}{spread} %"
        recipe = "; ".join(filter(None, (f"{train:,}", words)))
        lines.append([data, f"`{model}`", recipe, str(len(errors)), error, *angles(groups[key])])
    headings = ["data set, split", "network", "training images; changed", "runs", "error"]
    return table([*headings, "median angle", "within the spread"], lines)


def angles(rows: list[Row]) -> list[str]:
    """The median angle and the share within the spread, on average over the runs that were trained with directions."""
    with_angles = [row for row in rows if row.get("median") is not None]
    if not with_angles:
        return ["", ""]
    median, covered = (statistics.mean(row[name] for row in with_angles) for name in ("median", "coverage"))
    return [f"{median:.1f}°", f"{100 * covered:.0f} %"]


def photographs() -> str:
    """ETH-80's new objects by networks on EfficientNet-Lite0: means over folds, errors with their range."""
    every = []
    for row in read("direction-h200.json")["results"]:
        if side := re.match(r"eth80-(\d+)-", row["row"]):
            key = ("freeze" in row["changed"], side[1], row["epochs"], row["row"].split("/")[1])
            every.append({**row["splits"]["test"], "key": key})
    lines = []
    for (frozen, side, epochs, network), rows in sorted(grouped(every, lambda row: row["key"]).items()):
        errors = [row["error"] for row in rows]
        error = f"{statistics.mean(errors):.2f} ({min(errors):.1f} to {max(errors):.1f})"
        backbone = f"{'frozen' if frozen else 'tuned'}, {side}×{side}, {epochs} epochs"
        lines.append([backbone, f"`{network}`", str(len(rows)), error, *angles(rows)])
    headings = ["backbone", "network", "folds", "error, % (range)"]
    return table([*headings, "median angle", "within the spread"], lines)


def few_pictures() -> str:
    """Errors by pictures per class, mean and range over seeds; and the least seconds that training took."""
    rows = [row for row in read("few-pictures.json")["results"] if row["count"] != "way"]
    counts, lines = sorted({row["count"] for row in rows}), []
    for model, of in grouped(rows, lambda row: row["model"]).items():
        line = [f"`{model}`"]
        for _, several in sorted(grouped(of, lambda row: row["count"]).items()):
            errors, seconds = ([row[name] for row in several] for name in ("error", "seconds"))
            mean = statistics.mean(errors)
            line.append(f"{mean:.1f} % ({min(errors):.1f} to {max(errors):.1f}), {min(seconds):.0f} s")
        lines.append(line)
    return table(["network", *(f"{count} per class" for count in counts)], lines)


def faults() -> str:
    record = read("faults.json")
    half = record["half"]
    right = {
        name: [row["status"] for row in half if (row["network"] == "honest") == (name == "honest")]
        for name in ("honest", "faulty")
    }
    result = sum(row["status"] == "found" for row in record["faults"])
    honest = record["honest"]
    lines = [
        ["kinds of faults planted in one network", str(len(record["faults"])), f"{result} found"],
        [
            "routing statistics in fp16, other weights",
            str(len(right["faulty"])),
            f"{right['faulty'].count('failed')} found",
        ],
        ["correct fp16 exports", str(len(right["honest"])), f"{right['honest'].count('failed')} false alarms"],
        ["correct fp32 exports, other weights", str(honest["networks"]), f"{honest['alarms']} false alarms"],
    ]
    return table(["", "bundles", ""], lines)


TABLES: dict[str, Callable[[], str]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        quality,
        direction,
        photographs,
        few_pictures,
        ablations,
        robustness,
        unknown,
        one_answer,
        faults,
        gpu,
        calibrated_engines,
        libqcn_gpu,
        arm,
        cpu,
        instruction_sets,
        browser,
        routing_gpu,
        routing_cpu,
        routing_cpp,
        calibrated,
    )
}


def page(text: str) -> str:
    """A page with its tables as the files have them now."""
    form = r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)"
    return re.sub(form, lambda one: f"{one[1]}\n{TABLES[one[2]]()}\n\n{one[3]}", text, flags=re.DOTALL)


def main() -> None:
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    RUNS.write_text(runs_csv(), encoding="utf-8")


if __name__ == "__main__":
    main()
