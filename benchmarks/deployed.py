"""Gathers what was measured of a bundle on a device, so that benchmarks/tables.py can show it.

    python benchmarks/deployed.py --json FILE --commit COMMIT RESULT...

A RESULT is what `qcn benchmark --json`, `qcn verify-parity --report` (report.json) or `qcn-bench --json` wrote, as
deploy/tests/tensorrt_on_gpu.sh leaves them. Figures are copied; errors are joined to times by backend and file.
"""

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--commit", required=True, help="of the code that measured; several where they differ")
    arguments = parser.parse_args()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.results]
    parity = [row for record in records if "backends" in record for row in parities(record)]
    errors = {key(row): row for row in parity}
    machines = [record["machine"] for record in records if "plan" in record]
    if not machines:
        parser.error("none of them is a result of `qcn benchmark`")
    rows = [row for record in records if "plan" in record for row in times(record)]
    gathered = {
        "commit": arguments.commit,
        "machine": machines[0],
        "benchmark": [row | errors[key(row)] for row in rows],
        "parity": parity,
        "libqcn": [programs(record) for record in records if "load_ms" in record],
    }
    arguments.json.write_text(json.dumps(gathered, indent=1) + "\n", encoding="utf-8")


def key(row: Row) -> tuple[str, str]:
    return row["backend"], row["file"]


def times(record: Row) -> list[Row]:
    """The rows of `qcn benchmark`."""
    return [
        {
            **{name: speed[name] for name in ("backend", "file", "precision", "batch", "runner", "images_per_second")},
            "variant": speed.get("variant", ""),
            "latency_ms": speed["latency_ms"]["p50"],
            "p99_ms": speed["latency_ms"]["p99"],
            "compute_ms": speed["compute_ms"].get("p50"),
            "energy_mj": speed.get("energy_mj"),
        }
        for speed in record["results"].values()
        if not speed["missing"]
    ]


def parities(record: Row) -> list[Row]:
    """The rows of `qcn verify-parity`."""
    return [
        {
            "backend": verdict["backend"],
            "file": verdict["file"],
            "status": verdict["status"],
            "errors": {name: found["max_abs"] for name, found in verdict["outputs"].items()},
            "noise_floors": {name: found["noise_floor_multiple"] for name, found in verdict["outputs"].items()},
        }
        for verdict in record["backends"].values()
        if verdict["outputs"]
    ]


def programs(record: Row) -> Row:
    """What `qcn-bench` says."""
    kept = ("backend", "precision", "batch", "preprocessing", "load_ms", "images_per_second")
    return {**{name: record[name] for name in kept}, "latency_ms": record["latency_ms"]["p50"]}


if __name__ == "__main__":
    main()
