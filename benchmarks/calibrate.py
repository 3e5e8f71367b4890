"""What calibration costs and saves, on the networks that ship: errors on their test splits, sizes, times.

    python benchmarks/calibrate.py --data-dir data --json benchmarks/results/calibrate-x86_64.json [MODEL …]

Every network is calibrated as `qcn calibrate MODEL --max-drop 0.2` does it, on its validation split. Then the test
splits are answered once by each of: float32, the chosen int8 operations alone, the chosen fp16 capsule layers alone,
and both, which is the calibrated bundle. Of a split of more than 10,000 images, 10,000 are taken, evenly spread. Rows
of other networks in the file stay. Compare times of a quiet machine only.
"""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from measurements import put

from qcn.calibrate import pipeline
from qcn.calibrate.assignments import apply, array_bytes, in_words
from qcn.calibrate.bodies import find_body
from qcn.calibrate.images import spread
from qcn.calibrate.request import CalibrationRequest
from qcn.data.registry import load
from qcn.export.backends.format import Job
from qcn.export.backends.onnx.format import UNROLLED_GRAPH
from qcn.export.request import ExportRequest
from qcn.intervals import ErrorRate, lost_and_won, paired_drop
from qcn.networks.shipped import run_of
from qcn.terminal.progress import shown

MODELS = (
    "mnist",
    "fashion-mnist",
    "fashion-mnist-qcn-deep",
    "cifar10",
    "viewpoints-azimuth-pooled",
    "cifar10-cnn-small",
    "viewpoints-azimuth-pooled-cnn-small",
)
MOST = 10_000  # of a test split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    for model in arguments.models or MODELS:
        with tempfile.TemporaryDirectory() as folder, shown():
            result = measured(model, arguments.data_dir, Path(folder))
        put(arguments.json, [{"model": model, **result}], "model")
        for row in result["rows"]:
            drop = "" if row["drop"] is None else f"  {row['drop']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
            print(
                f"{model:26} {row['split']:9} {row['what']:18} {100 * row['error']['error']:6.2f} %{drop}", flush=True
            )


def measured(model: str, data_dir: Path, folder: Path) -> dict[str, Any]:
    """Everything of one network."""
    request = CalibrationRequest(data_dir=data_dir, command=f"qcn calibrate {model}")
    result = pipeline.calibrate(run_of(model), folder / "report", request, lambda audit, digits: None)
    chosen = result.search.chosen
    assert chosen is not None
    out, _ = pipeline.write(result, folder / "calibrated", request)
    Job(result.base, ExportRequest()).add(UNROLLED_GRAPH)
    programs = {"float32": result.program}
    for precision in dict.fromkeys(chosen.assignment.values()):
        alone = {name: one for name, one in chosen.assignment.items() if one == precision}
        programs[f"{precision} alone"] = apply(result.program, alone, result.calibration)
    programs["calibrated"] = out.program()
    body = find_body(result.base, request.backend, programs["calibrated"])
    rows = []
    for split, whole in load(result.calibration.data, data_dir).tests.items():
        images = spread(whole, MOST)
        before = None
        for what, program in programs.items():
            right = body.answers(program, images.images, f"{model}, {split}: {what}").predicted == images.labels
            before = right if before is None else before
            lost, won = lost_and_won(before, right)
            low, high = paired_drop(lost, won, len(right))
            points = [100 * x for x in ((lost - won) / len(right), low, high)] if what != "float32" else [None] * 3
            rows.append(
                {
                    "split": split,
                    "what": what,
                    "error": asdict(ErrorRate.of(int(np.sum(~right)), len(right))),
                    "lost": lost,
                    "won": won,
                    **dict(zip(("drop", "low", "high"), points, strict=True)),
                }
            )
    return {
        "validation_images": result.audit.images,
        "body": result.search.body,
        "assignment": chosen.assignment,
        "words": in_words(result.program, chosen.assignment),
        "validation": {"drop": chosen.drop, "bound": chosen.bound},
        "timed": {
            in_words(result.program, one.assignment): asdict(one.timed) for one in result.search.trials if one.timed
        },
        "weights": {what: array_bytes(program) for what, program in programs.items()},
        "bundle": {
            name: {artefact.file: artefact.bytes for artefact in one.manifest.files}
            for name, one in (("float32", result.base), ("calibrated", out))
        },
        "refused": result.search.refused,
        "rows": rows,
        "digits": [asdict(one) | {"kept_in_fp16": one.in_fp16} for one in result.digits],
        "sensitivities": [asdict(one) for one in result.sensitivities],
    }


if __name__ == "__main__":
    main()
