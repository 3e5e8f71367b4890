"""Write the tables of the documentation from the files in benchmarks/results, and docs/runs.csv.

    python benchmarks/tables.py

A page has a table between `<!-- table: NAME -->` and `<!-- end of table -->`. The text around it is written by hand.
"""

import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import comparison
from measurements import RESULTS, ROOT, Row, csv_text, read, rows_of, table

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
    rows = rows_of(RESULTS / "speed.csv")

    def fits(row: Row) -> bool:
        return all(
            row.get(name, "") in (value if isinstance(value, tuple) else (value,)) for name, value in wanted.items()
        )

    return [row for row in rows if fits(row)]


def ms(figure: str | None) -> str:
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
    cells: dict[tuple[str, int], dict[bool, Row]] = {}
    for row in read("libqcn-h200.json")["results"]:
        cells.setdefault((row["name"], row["batch"]), {})[row["preprocessing"]] = row["latency_ms"]
    lines = [
        [f"`{name}`", str(batch), ms(of[True]["p50"]), ms(of[True]["p99"]), ms(of[False]["p50"])]
        for (name, batch), of in cells.items()
    ]
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
    least: dict[str, dict[str, str]] = {}
    for row in times(commit=("a42da51", "578dc77"), network="cifar10-qcn"):
        least.setdefault(row["instruction_set"], {})[row["precision"]] = row["least_ms"]
    lines = []
    for name, of in least.items():
        before, after = of["fp32"], of["calibrated"]
        lines.append([f"`{name}`", ms(before), ms(after), f"{float(before) / float(after):.2f}"])
    return table(["up to", "fp32", "calibrated", "times as fast"], lines)


def browser() -> str:
    lines = []
    for machine, narrow in (("x86_64, 2 cores", "sse2"), ("aarch64, 2 cores", "neon")):
        rows = times(machine=machine, variant="1 thread")
        for network in dict.fromkeys(row["network"] for row in rows):
            of = {
                (row["backend"], row.get("instruction_set", "")): row["least_ms"]
                for row in rows
                if row["network"] == network
            }
            keys = (("native", ""), ("native", narrow), ("web, Node", ""), ("web, Chromium", ""))
            lines.append([f"`{network}`, {machine.partition(',')[0]}", *(ms(of[key]) for key in keys)])
    return table(["network", "libqcn", "libqcn, 128 bits", "Node", "Chromium"], lines)


def routing_gpu() -> str:
    """Batch 64 alone."""
    rows = [row for row in read("routing-cuda.json")["inference"] if row["batch"] == 64]
    steps = {row["variant"]: row["ms"] for row in read("routing-cuda.json")["training"]}
    plain = [row for row in rows if "CUDA graph" not in row["variant"]]
    graphs = {row["variant"].removesuffix(", CUDA graph"): row["ms"] for row in rows if "CUDA graph" in row["variant"]}
    lines = [
        [
            row["variant"],
            *(ms(str(x)) for x in (row["ms"], graphs[row["variant"]], steps[row["variant"]])),
            f"{row['peak_gib'] * 1024:,.0f}",
        ]
        for row in plain
    ]
    return table(["64 images", "forward", "as a CUDA graph", "training step", "MiB of a forward"], lines)


def routing_cpu() -> str:
    record = read("routing-cpu.json")
    lines = [
        [f"{what}, {row['variant']}", str(row["batch"]), ms(str(row["ms"]))]
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
    by_network: dict[str, dict[str, Row]] = {}
    for machine in ("x86_64", "aarch64"):
        for row in read(f"calibrate-{machine}.json")["results"]:
            by_network.setdefault(row["model"], {})[machine] = row
    lines = []
    for network, by_machine in by_network.items():
        cells = set()
        for row in by_machine.values():
            (after,) = [one for one in row["rows"] if one["what"] == "calibrated" and one["split"] != "familiar"]
            size = row["weights"]["calibrated"] / row["weights"]["float32"]
            error = f"{100 * after['error']['error'] - after['drop']:.2f}"
            lost = f"{after['drop']:+.2f} ({after['low']:+.2f} to {after['high']:+.2f})"
            cells.add((row["words"], error, lost, f"{100 * size:.0f} %"))
        (same,) = cells
        times = [
            f"{of['timed'][of['words']]['float32']:.2f} → {of['timed'][of['words']]['milliseconds']:.2f}" if of else ""
            for of in (by_machine.get(machine) for machine in ("x86_64", "aarch64"))
        ]
        lines.append([f"`{network}`", *same, *times])
    headings = ["network", "chosen", "error, %", "points lost", "weights", "x86_64, ms", "aarch64, ms"]
    return table(headings, lines)


# The rows of the table of directions: data set, network and, as in the file of results, what was changed and how many
# images it was trained on. Every run is in that file.
DIRECTIONS = (
    ("viewpoints, test", "qcn-deep", "without directions", 21870),
    ("viewpoints, test", "cnn-small", "without directions", 21870),
    ("viewpoints, test", "qcn-deep", "", 21870),
    ("viewpoints, test", "cnn-small", "", 21870),
    ("viewpoints, test", "qcn-deep", "epochs 120", 21870),
    ("viewpoints, test", "cnn-small", "epochs 120", 21870),
    ("viewpoints, test", "qcn-deep", "epochs 120", 24300),
    ("viewpoints-azimuth-pooled, novel", "qcn-deep", "", 12960),
    ("eth80, five folds, test", "qcn-deep", "augment mirrored", 2360),
    ("eth80, five folds, test", "cnn-small", "augment mirrored", 2360),
    ("scanned, test", "qcn-deep", "", 8000),
    ("scanned, test", "cnn-small", "", 8000),
)


def direction() -> str:
    """Class error and direction, by row and recipe: means over seeds or folds, errors with standard deviations."""
    groups: dict[tuple[str, str, str, int], list[Row]] = {}
    for row in read("direction-h200.json")["results"]:
        dataset, model, weight = row["row"].split("/")
        data = re.sub(r"-fold\d$", ", five folds", dataset)
        changes = [f"{name} {value}" for name, value in row["changed"].items()]
        words = ", ".join(["without directions"] * (weight == "off") + changes)
        for split, figures in row["splits"].items():
            groups.setdefault((f"{data}, {split}", model, words, row["train"]), []).append(figures)
    lines = []
    for key in DIRECTIONS:
        data, model, words, train = key
        rows = groups[key]
        errors = [row["error"] for row in rows]
        told = [row for row in rows if row.get("median") is not None]
        cells = [f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f} %", "", ""]
        if told:
            cells[1:] = [
                f"{statistics.mean(row['median'] for row in told):.1f}°",
                f"{100 * statistics.mean(row['coverage'] for row in told):.0f} %",
            ]
        lines.append([data, f"`{model}`", "; ".join([f"{train:,}"] + [words] * bool(words)), str(len(rows)), *cells])
    headings = ["data set, split", "network", "training images; changed", "runs", "error"]
    return table([*headings, "median angle", "within the spread"], lines)


def photographs() -> str:
    """ETH-80's new objects by networks on EfficientNet-Lite0: means over folds, errors with their range."""
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in read("direction-h200.json")["results"]:
        if side := re.match(r"eth80-(\d+)-", row["row"]):
            network = row["row"].split("/")[1]
            groups.setdefault((side[1], network, "freeze" in row["changed"]), []).append(row["splits"]["test"])
    lines = []
    for (side, network, frozen), rows in sorted(groups.items(), key=lambda group: (group[0][2], group[0])):
        errors = [row["error"] for row in rows]
        angle, covered = (statistics.mean(row[name] for row in rows) for name in ("median", "coverage"))
        lines.append(
            [f"{'frozen' if frozen else 'tuned'}, {side}×{side}", f"`{network}`", str(len(rows))]
            + [f"{statistics.mean(errors):.2f} ({min(errors):.1f} to {max(errors):.1f})"]
            + [f"{angle:.1f}°", f"{100 * covered:.0f} %"]
        )
    headings = ["backbone", "network", "folds", "error, % (range)"]
    return table([*headings, "median angle", "within the spread"], lines)


def few_pictures() -> str:
    """Errors by pictures per class, mean and range over seeds; and the least seconds that training took."""
    rows = [row for row in read("few-pictures.json")["results"] if row["count"] != "way"]
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        line = [f"`{model}`"]
        for count in sorted({row["count"] for row in rows}):
            errors = [row["error"] for row in rows if (row["model"], row["count"]) == (model, count)]
            seconds = [row["seconds"] for row in rows if (row["model"], row["count"]) == (model, count)]
            mean = sum(errors) / len(errors)
            line.append(f"{mean:.1f} % ({min(errors):.1f} to {max(errors):.1f}), {min(seconds):.0f} s")
        lines.append(line)
    return table(["network", *(f"{count} per class" for count in sorted({row["count"] for row in rows}))], lines)


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
