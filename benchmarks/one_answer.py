"""Whether every way to ask a network gives one answer: shell, JSON, CSV, Python, C++ and the page.

    python benchmarks/one_answer.py BUNDLE PICTURES [BUNDLE PICTURES …] [--count 5000]

Each bundle is asked about up to --count PNG or JPEG files below its folder of pictures: by `qcn predict` (its table,
--jsonl and --csv), by `qcn.load`, by `qcn-run --json`, and by its page, page.html, in Node. Counted are the pictures
for which label, order of the classes or `known` differ from Python's, and the largest difference of a probability.
`saturated` is how many of the pictures have an activation that is exactly 1 in float32.
"""

import argparse
import contextlib
import csv
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measurements import RESULTS, put
from PIL import Image

import qcn
from qcn.cli import predict as shell
from qcn.export.backends import web
from qcn.export.bundle import Bundle
from qcn.libqcn.location import find_program
from qcn.networks.confidence import order

FILE = "one-answer.json"
PAGE = """
const fs = require("fs"), path = require("path"), vm = require("vm");
const [web, page, files] = process.argv.slice(2);
const text = (file) => fs.readFileSync(file, "utf8");
for (const name of ["libqcn.js", "answers.js"]) vm.runInThisContext(text(path.join(web, name)), name);
const data = JSON.parse(/<script type="application\\/json" id="data">(.*?)<\\/script>/s.exec(text(page))[1]);
(async () => {
  const { manifest, sums, weights } = data.networks[0], made = JSON.parse(manifest);
  const network = (await openLibrary(data.wasm)).network(manifest, sums, await unpack(weights));
  for (const line of text(files).trim().split("\\n")) {
    const [raw, width, height, channels] = line.split("\\t");
    const pixels = new Uint8Array(fs.readFileSync(raw));
    const seen = network.preprocess({ pixels, width: +width, height: +height, channels: +channels });
    const { best, order, probability, known } = answerOf(network.infer(seen, 1).logit, made);
    console.log(JSON.stringify({ label: made.classes[best], order, probability: probability[best], known }));
  }
})();
"""


@dataclass(frozen=True)
class Said:
    """The answer of one way to a picture; `order` None if it does not tell."""

    label: str
    order: tuple[int, ...] | None
    probability: float
    known: bool


def in_groups(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def ordered(logit: dict[str, float], classes: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(order(np.array([[logit[name] for name in classes]], np.float32))[0].tolist())


def by_python(model: qcn.Model, files: list[Path]) -> tuple[list[Said], int]:
    result, saturated = [], 0
    for answer in model.stream(files):
        saturated += bool((1 / (1 + np.exp(-answer.logit)) == 1).any())  # in float32
        names = [model.classes.index(label) for label, _ in answer.top(len(model.classes))]
        result.append(Said(answer.label, tuple(names), answer.probability, answer.known))
    return result, saturated


def by_shell(bundle: Path, files: list[Path], classes: tuple[str, ...], folder: Path) -> dict[str, list[Said]]:
    """The table of `qcn predict`, of all pictures and classes, and the rows that it writes."""
    from qcn.cli import main

    rows = {"jsonl": folder / "rows.jsonl", "csv": folder / "rows.csv"}
    text = io.StringIO()
    words = ["qcn", "predict", *map(str, files), "--model", str(bundle), "--top", str(len(classes))]
    words += [word for name, path in rows.items() for word in (f"--{name}", str(path))]
    shell.TABLE, before = 10**9, (sys.argv, shell.TABLE)
    sys.argv = words
    try:
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv, shell.TABLE = before
    lines = [json.loads(line) for line in rows["jsonl"].read_text(encoding="utf-8").splitlines()]
    table = list(csv.DictReader(rows["csv"].read_text(encoding="utf-8").splitlines()))
    return {
        "shell": list(of_table(text.getvalue(), classes)),
        "JSON": [Said(one["label"], ordered(one["logit"], classes), one["probability"], one["known"]) for one in lines],
        "CSV": [
            Said(
                one["label"],
                ordered({name: float(one[name]) for name in classes}, classes),
                float(one["probability"]),
                one["known"] == "true",
            )
            for one in table
        ],
    }


def of_table(text: str, classes: tuple[str, ...]) -> Iterator[Said]:
    """The answers in the table of the terminal: a line per class, those of a picture below each other."""
    lines = re.findall(r"(\S.*?) +(\d+\.\d) %\s*$", text, re.MULTILINE)
    for several in in_groups(lines, len(classes)):
        first, *others = [(said.split("  ")[-1].strip(), share) for said, share in several]
        unlike = re.search(r"unknown \(most like (.*)\)$", first[0])
        label = unlike[1] if unlike else first[0]
        names = [label, *(said for said, _ in others)]
        yield Said(label, tuple(map(classes.index, names)), float(first[1]) / 100, not unlike)


def by_cpp(bundle: Path, files: list[Path], classes: tuple[str, ...]) -> list[Said]:
    program = str(find_program("qcn-run"))
    lines: list[str] = []
    for some in in_groups(files, 500):
        command = [program, "--json", str(bundle), *map(str, some)]
        lines += subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    result = map(json.loads, lines)
    return [Said(one["label"], ordered(one["logit"], classes), one["probability"], one["known"]) for one in result]


def by_page(bundle: Path, files: list[Path], folder: Path) -> list[Said]:
    script, listed = folder / "page.js", folder / "pictures"
    script.write_text(PAGE, encoding="utf-8")
    places = []
    for number, file in enumerate(files):
        pixels = np.asarray(Image.open(file))
        raw = folder / f"{number}.raw"
        raw.write_bytes(pixels.tobytes())
        height, width, channels = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
        places.append(f"{raw}\t{width}\t{height}\t{channels}")
    listed.write_text("\n".join(places), encoding="utf-8")
    command = ["node", str(script), str(Path(web.__file__).parent), str(bundle / "page.html"), str(listed)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Said(one["label"], tuple(one["order"]), one["probability"], one["known"]) for one in map(json.loads, lines)]


def compare(bundle: Path, pictures: Path, count: int) -> dict[str, Any]:
    endings = (".png", ".jpg", ".jpeg")
    files = sorted(file for file in pictures.rglob("*") if file.suffix.lower() in endings)[:count]
    manifest = Bundle.open(bundle).manifest
    python, saturated = by_python(qcn.load(bundle), files)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways = by_shell(bundle, files, manifest.classes, folder)
        ways["C++"] = by_cpp(bundle, files, manifest.classes)
        ways["page"] = by_page(bundle, files, folder)
    row: dict[str, Any] = {"network": manifest.name, "pictures": len(files), "saturated": saturated}
    row |= {"unknown": sum(not one.known for one in python), "ways": {}}
    for way, result in ways.items():
        if len(result) != len(files):
            raise SystemExit(f"{way} has {len(result)} answers to {len(files)} pictures of {bundle}")
        pairs = list(zip(python, result, strict=True))
        row["ways"][way] = {
            "label": sum(a.label != b.label for a, b in pairs),
            "order": sum(a.order != b.order for a, b in pairs),
            "known": sum(a.known != b.known for a, b in pairs),
            "probability": max(abs(a.probability - b.probability) for a, b in pairs),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", type=Path, metavar="BUNDLE PICTURES")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--json", type=Path, default=RESULTS / FILE)
    arguments = parser.parse_args()
    rows = [compare(pair[0], pair[1], arguments.count) for pair in in_groups(arguments.pairs, 2)]
    put(arguments.json, rows, "network")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
