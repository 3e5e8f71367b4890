"""Faults planted in bundles, and what `qcn verify-parity` says of each: the table in docs/results.md.

python benchmarks/faults.py --json benchmarks/results/faults.json
python benchmarks/faults.py --only half --seeds 20     # statistics of routing in half precision, whatever the weights

Each is planted in a bundle of a small network whose hashes are put right afterwards (tests/verify/plants.py), so that
only the parity check can see it. Beside them stand honest networks, of other weights each, for false alarms.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from measurements import write

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "verify"), str(ROOT / "tests")]

from plants import FAULTS, honest  # noqa: E402

from qcn.export.bundle import Bundle  # noqa: E402
from qcn.verify.parity.preprocessing import check_preprocessing  # noqa: E402
from qcn.verify.parity.verdict import Verdict  # noqa: E402
from qcn.verify.parity.verify import verify  # noqa: E402

CHOSEN_ON = 120  # seeds that the tolerance of fp32 was chosen on: false alarms are counted on others
BACKENDS = ("onnxruntime", "torch", "native")
HALF = ("variance in fp16", "sums of squares in fp16", "sums of squares in fp16, of the second iteration")
PARTS = ("faults", "half", "honest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--only", choices=PARTS, action="append", help="some parts, not all")
    parser.add_argument("--honest", type=int, default=50, help="honest networks")
    parser.add_argument("--seeds", type=int, default=20, help="networks whose routing is given half precision")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "faults" in parts:
            record["faults"] = faults(Path(folder))
        if "half" in parts:
            record["half"] = half_statistics(Path(folder), arguments.seeds)
        if "honest" in parts:
            record["honest"] = honest_ones(Path(folder), arguments.honest)
            print(json.dumps(record["honest"]))
    write(arguments.json, **record)


def faults(folder: Path) -> list[dict[str, Any]]:
    """The outcome of each fault: the verdict that found it, its place, and how far the outputs were off."""
    kept = {precision: honest(folder / precision, precision=precision).folder for precision in ("fp32", "fp16")}
    rows = []
    for name, fault in FAULTS.items():
        bundle = planted(name, kept[fault.precision], folder / "planted")
        with fault.running():
            verdicts = [*verify(bundle, [fault.backend], {}), check_preprocessing(bundle)]
        result = next((verdict for verdict in verdicts if verdict.status == "failed"), None)
        rows.append(
            {
                "fault": name,
                "status": "found" if result else "NOT FOUND",
                "caught_by": result.key if result else None,
                "place": result.first_wrong if result else None,
                "share": share(result),
                "reason": result.reasons[0].replace(str(bundle.folder), "BUNDLE") if result else None,
            }
        )
        print("{fault}: {status} by {caught_by}, {place}: {reason}".format(**rows[-1]), flush=True)
        shutil.rmtree(bundle.folder)
    return rows


def half_statistics(folder: Path, seeds: int) -> list[dict[str, Any]]:
    """For networks of other weights each: an honest fp16 graph, and the same with statistics in half precision.

    The outputs are within what fp16 is allowed, so that only a look inside can find it.
    """
    rows = []
    print(f"{'seed':>4}  {'network':24} {'status':7} {'outputs, of allowed':>19}  first wrong")
    for seed in range(seeds):
        kept = honest(folder / f"half{seed}", seed=seed, precision="fp16", size=16, images=4)
        for name in ("honest", *HALF):
            bundle = planted(name, kept.folder, folder / "planted") if name in FAULTS else kept
            (verdict,) = verify(bundle, ["onnxruntime"], {})
            outputs = max(errors.share for errors in verdict.outputs.values())
            row = {"seed": seed, "network": name, "status": verdict.status, "outputs": outputs}
            rows.append(row | {"place": verdict.first_wrong})
            print(f"{seed:4}  {name:24} {verdict.status:7} {outputs:19.1%}  {verdict.first_wrong or ''}", flush=True)
            if name in FAULTS:
                shutil.rmtree(bundle.folder)
        shutil.rmtree(kept.folder)
    right = sum((row["status"] == "passed") == (row["network"] == "honest") for row in rows)
    print(f"{right} of {len(rows)} as they should be")
    return rows


def planted(name: str, honest_one: Path, to: Path) -> Bundle:
    """A copy of an honest bundle with a fault in it."""
    FAULTS[name].plant(Bundle.open(shutil.copytree(honest_one, to)))
    return Bundle.open(to)


def share(verdict: Verdict | None) -> float | str | None:
    """The largest error of an output as a share of what is allowed, "inf" if it is not finite; None without outputs."""
    worst = max((errors.share for errors in verdict.outputs.values()), default=None) if verdict else None
    return str(worst) if worst == float("inf") else worst


def honest_ones(folder: Path, seeds: int) -> dict[str, Any]:
    """How many honest networks raised an alarm, and the largest error by backend, as a share of what is allowed."""
    alarms, worst = 0, dict.fromkeys(BACKENDS, 0.0)
    for seed in range(CHOSEN_ON, CHOSEN_ON + seeds):
        routing = ("unrolled", "tensorrt")[seed % 2]
        bundle = honest(folder / "honest", seed=seed, routing=routing, size=16, images=4)
        verdicts = verify(bundle, BACKENDS, {})
        alarms += any(verdict.status == "failed" for verdict in [*verdicts, check_preprocessing(bundle)])
        for verdict in verdicts:
            worst[verdict.backend] = max(worst[verdict.backend], float(share(verdict) or 0.0))
        shutil.rmtree(bundle.folder)
    return {"networks": seeds, "alarms": alarms, "largest_share": worst}


if __name__ == "__main__":
    main()
