"""Faults planted in bundles, and what `qcn verify-parity` says of each: the table in docs/results.md.

python benchmarks/faults.py --json benchmarks/results/faults.json

Each is planted in a bundle of a small network whose hashes are mended afterwards (tests/verify/plants.py), so that only
the parity check can see it. Beside them stand honest networks, of other weights each, for false alarms.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import facts

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "verify"))

from plants import FAULTS, honest  # noqa: E402

from qcn.export.bundle import Bundle  # noqa: E402
from qcn.verify import parity  # noqa: E402
from qcn.verify.preprocessing import check_preprocessing  # noqa: E402
from qcn.verify.records import strict  # noqa: E402

CHOSEN_ON = 120  # seeds that the tolerance of fp32 was chosen on: false alarms are counted on others
BACKENDS = ("onnxruntime", "torch", "native")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--seeds", type=int, default=50, help="honest networks")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = facts() | {"faults": faults(Path(folder)), "honest": honest_ones(Path(folder), arguments.seeds)}
    for row in record["faults"]:
        print(f"{row['fault']}: {row['status']} by {row['caught_by']}, {row['place']}, {row['multiple']}")
    print(json.dumps(record["honest"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(strict(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def faults(folder: Path) -> list[dict[str, Any]]:
    """What became of each: caught by which verdict, at which place, and how far the outputs were off."""
    kept = {precision: honest(folder / precision, precision=precision).folder for precision in ("fp32", "fp16")}
    rows = []
    for name, fault in FAULTS.items():
        bundle = Bundle.open(shutil.copytree(kept[fault.precision], folder / "planted"))
        fault.plant(bundle)
        bundle = Bundle.open(bundle.folder)
        verdicts = [*parity.verify(bundle, [fault.backend], {}), check_preprocessing(bundle)]
        caught = next((verdict for verdict in verdicts if verdict.status == "failed"), None)
        rows.append(
            {
                "fault": name,
                "status": "found" if caught else "NOT FOUND",
                "caught_by": caught.key if caught else None,
                "place": caught.first_wrong if caught else None,
                "multiple": caught.worst if caught else None,
                "reason": caught.reasons[0].replace(str(bundle.folder), "BUNDLE") if caught else None,
            }
        )
        shutil.rmtree(bundle.folder)
    return rows


def honest_ones(folder: Path, seeds: int) -> dict[str, Any]:
    """How many honest networks raised an alarm, and the largest error of an output, by backend, in noise floors."""
    alarms, worst = 0, dict.fromkeys(BACKENDS, 0.0)
    for seed in range(CHOSEN_ON, CHOSEN_ON + seeds):
        routing = ("unrolled", "pointwise")[seed % 2]
        bundle = honest(folder / "honest", seed=seed, routing=routing, size=16, images=4)
        verdicts = parity.verify(bundle, BACKENDS, {})
        alarms += any(verdict.status == "failed" for verdict in [*verdicts, check_preprocessing(bundle)])
        for verdict in verdicts:
            worst[verdict.backend] = max(worst[verdict.backend], verdict.worst or 0.0)
        shutil.rmtree(bundle.folder)
    return {"networks": seeds, "alarms": alarms, "largest_multiple": worst}


if __name__ == "__main__":
    main()
